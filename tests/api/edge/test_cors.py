from tests.api.edge.fakes import make_request
from vllmfront.api.edge import CorsPolicy

ORIGIN = (b"origin", b"http://a.example")


def test_without_an_origin_there_are_no_headers() -> None:
    policy = CorsPolicy(allowed_origins=["*"])

    assert list(policy.headers(make_request("GET", "/health"))) == []


def test_by_default_no_origin_is_allowed() -> None:
    assert list(CorsPolicy().headers(make_request("GET", "/health", ORIGIN))) == [
        (b"vary", b"origin")
    ]


def test_an_allowed_origin_is_named() -> None:
    policy = CorsPolicy(allowed_origins=["http://a.example"], allow_credentials=True)

    assert list(policy.headers(make_request("GET", "/health", ORIGIN))) == [
        (b"vary", b"origin"),
        (b"access-control-allow-origin", b"http://a.example"),
        (b"access-control-allow-credentials", b"true"),
    ]


def test_a_preflight_mirrors_the_headers_asked_for() -> None:
    wanted = (b"access-control-request-headers", b"x-foo")
    request = make_request("OPTIONS", "/v1/models", ORIGIN, wanted)

    assert list(CorsPolicy().headers(request)) == [
        (b"vary", b"origin"),
        (b"access-control-allow-methods", b"DELETE,GET,HEAD,OPTIONS,PATCH,POST,PUT"),
        (b"access-control-max-age", b"600"),
        (b"access-control-allow-headers", b"x-foo"),
    ]


def test_configured_lists_replace_the_mirrors() -> None:
    policy = CorsPolicy(
        allowed_origins=["*"], allowed_methods=["GET"], allowed_headers=["x-a", "x-b"]
    )
    answer = dict(policy.headers(make_request("OPTIONS", "/v1/models", ORIGIN)))

    assert answer[b"access-control-allow-methods"] == b"GET"
    assert answer[b"access-control-allow-headers"] == b"x-a,x-b"

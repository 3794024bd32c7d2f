import pytest

from tests.api.edge.fakes import make_request
from vllmfront.api.edge import AccessControl
from vllmfront.api.http import HttpRequest

KEYS = ["first", "second"]


@pytest.mark.parametrize("path", ["/health", "/ping", "/live", "/ready", "/metrics", "/version"])
def test_probes_need_no_key(path: str) -> None:
    assert AccessControl(KEYS).allows(make_request("GET", path))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/load",
        "/pause",
        "/invocations",
        "/supervisor",
        "/nope",
    ],
)
def test_everything_else_needs_one(path: str) -> None:
    assert not AccessControl(KEYS).allows(make_request("POST", path))


def test_browsers_may_ask_for_cors_without_a_key() -> None:
    assert AccessControl(KEYS).allows(make_request("OPTIONS", "/v1/models"))


@pytest.mark.parametrize("value", [b"Bearer first", b"bearer second", b"BEARER first"])
def test_each_key_opens_whatever_the_case_of_the_scheme(value: bytes) -> None:
    request = make_request("GET", "/v1/models", (b"authorization", value))

    assert AccessControl(KEYS).allows(request)


@pytest.mark.parametrize(
    "value",
    [
        b"first",
        b"Bearer",
        b"Bearer ",
        b"Bearer  first",
        b"Bearer first ",
        b"Basic first",
        b"Bearer x",
    ],
)
def test_nothing_but_a_key_opens(value: bytes) -> None:
    request = make_request("GET", "/v1/models", (b"authorization", value))

    assert not AccessControl(KEYS).allows(request)


def test_without_keys_all_is_open() -> None:
    access = AccessControl([])

    assert not access.enabled
    assert access.allows(make_request("POST", "/v1/completions"))


def bearer(path: str, key: bytes) -> HttpRequest:
    return make_request("GET", path, (b"authorization", b"Bearer " + key))


def test_an_admin_key_is_what_admin_paths_need() -> None:
    access = AccessControl(KEYS, ["admin"])

    assert access.allows(bearer("/supervisor", b"admin"))
    assert not access.allows(bearer("/supervisor", b"first"))
    assert not access.allows(make_request("GET", "/supervisor"))
    assert access.allows(bearer("/v1/models", b"first"))
    assert not access.allows(bearer("/v1/models", b"admin"))


def test_without_an_admin_key_the_others_open_admin_paths() -> None:
    access = AccessControl(KEYS)

    assert access.allows(bearer("/supervisor", b"second"))
    assert not access.allows(make_request("GET", "/supervisor"))


def test_an_admin_key_alone_closes_admin_paths_alone() -> None:
    access = AccessControl([], ["admin"])

    assert access.enabled
    assert not access.allows(make_request("GET", "/supervisor"))
    assert access.allows(make_request("POST", "/v1/completions"))

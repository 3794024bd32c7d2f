import pytest

from tests.api.edge.fakes import make_request
from vllmfront.api.edge import AccessControl

KEYS = ["first", "second"]


@pytest.mark.parametrize("path", ["/health", "/ping", "/metrics", "/version"])
def test_probes_need_no_key(path: str) -> None:
    assert AccessControl(KEYS).allows(make_request("GET", path))


@pytest.mark.parametrize(
    "path", ["/v1/models", "/tokenize", "/detokenize", "/load", "/pause", "/invocations", "/nope"]
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

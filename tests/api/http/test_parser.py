import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllmfront.api.http import HttpConfig, HttpRequest
from vllmfront.api.http._parser import RequestParser
from vllmfront.api.http._rejection import Rejection
from vllmfront.api.http._request_head import HeadReader, Http2Preface

SMALL = HttpConfig(max_head_bytes=400, max_headers=5, max_target_bytes=100, max_body_bytes=64)


def parse(data: bytes, cuts: tuple[int, ...] = (), config: HttpConfig = SMALL) -> list[object]:
    """Return the requests in *data*, fed in pieces, and the rejection's status at the end."""
    parser = RequestParser(config, heads=HeadReader(config))
    found: list[object] = []
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    try:
        for begin, end in itertools.pairwise(edges):
            parser.feed(data[begin:end])
            while (request := parser.next_request()) is not None:
                found.append(request)
    except Rejection as rejection:
        found.append(rejection.status)
    return found


def one(data: bytes) -> HttpRequest:
    (request,) = parse(data)
    assert isinstance(request, HttpRequest)
    return request


def test_a_request_keeps_its_parts() -> None:
    request = one(
        b"POST /a%20b/c?x=%201 HTTP/1.1\r\nHost: h\r\nX-A:  v \r\nContent-Length: 3\r\n\r\nabc"
    )

    assert request.method == "POST"
    assert request.path == "/a b/c"
    assert request.raw_path == b"/a%20b/c"
    assert request.query == b"x=%201"
    assert request.headers == [(b"host", b"h"), (b"x-a", b"v"), (b"content-length", b"3")]
    assert request.body == b"abc"
    assert request.http_version == "1.1"


def test_chunks_are_joined_and_their_decoration_is_dropped() -> None:
    request = one(
        b"POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n"
        b'3;a="b"\r\nabc\r\n02 ; x\r\nde\r\n0\r\nTrailer: t\r\n\r\n'
    )

    assert request.body == b"abcde"


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"http://host:1/a?b", "/a", b"b"),
        (b"HTTPS://host", "/", b""),
        (b"http://host?q", "/", b"q"),
        (b"*", "*", b""),
        (b"/a#b", "/a", b""),
        (b"/%ff", "/\N{REPLACEMENT CHARACTER}", b""),
    ],
)
def test_forms_of_the_target(target: bytes, path: str, query: bytes) -> None:
    request = one(b"GET %b HTTP/1.1\r\n\r\n" % target)

    assert (request.path, request.query) == (path, query)


def test_an_upgrade_is_ignored_and_the_body_read() -> None:
    request = one(
        b"POST / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAA\r\nContent-Length: 2\r\n\r\nhi"
    )

    assert request.body == b"hi"


def test_a_method_that_nobody_knows_is_a_method() -> None:
    assert one(b"FROB / HTTP/1.1\r\n\r\n").method == "FROB"


def test_line_ends_before_a_request_are_skipped() -> None:
    data = b"\r\nPOST / HTTP/1.1\r\nContent-Length: 1\r\n\r\na\r\nGET / HTTP/1.1\r\n\r\n"

    assert len(parse(data)) == 2


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nConnection: x, close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", True),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n", False),
    ],
)
def test_who_wants_to_keep_the_connection(head: bytes, keeps: bool) -> None:
    parser = RequestParser(SMALL, heads=HeadReader(SMALL))
    parser.feed(head)
    parser.next_request()

    assert parser.keep_alive is keeps


@pytest.mark.parametrize(
    "data",
    [
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.2\r\n\r\n",
        b"GET / HTTP/0.9\r\n\r\n",
        b"SOURCE / ICE/1.0\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET relative HTTP/1.1\r\n\r\n",
        b"G(T / HTTP/1.1\r\n\r\n",
        b"\nGET / HTTP/1.1\r\n\r\n",
        b"\rGET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"\n",
        b" / HTTP/1.1\r\n\r\n",
        b"\x00\xff\r\n\r\n",
        b"GET / HTTP/1.1\r\nA B: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nA : c\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\x00c\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\rB: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\nB: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\na",
        b"POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\na",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\na",
        b"POST / HTTP/1.1\r\nContent-Length:\r\n\r\na",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\na",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_a_doubtful_head_is_refused(data: bytes) -> None:
    assert parse(data) == [400]


@pytest.mark.parametrize(
    "chunks",
    [
        b"zz\r\n",
        b"-1\r\n",
        b"0x1\r\na\r\n",
        b"+1\r\na\r\n",
        b" 1\r\na\r\n",
        b"\r\n",
        b"1 \r\na\r\n",
        b"1\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n0\r\n\r\n",
        b"00000000000000001\r\na\r\n",
        b"1;\x01\r\na\r\n",
        b"0\r\nbad trailer\r\n\r\n",
        b"41\r\n",
        b"ffffffffffffffff\r\n",
    ],
)
def test_doubtful_chunks_are_refused(chunks: bytes) -> None:
    data = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks

    assert parse(data) == [400]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /%b HTTP/1.1\r\n\r\n" % (b"a" * 99), None),
        (b"GET /%b HTTP/1.1\r\n\r\n" % (b"a" * 100), 414),
        (b"GET /" + b"a" * 500, 414),
        (b"GET / HTTP/1.1\r\n" + b"a: 1\r\n" * 5 + b"\r\n", None),
        (b"GET / HTTP/1.1\r\n" + b"a: 1\r\n" * 6 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: %b\r\n\r\n" % (b"a" * 500), 431),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 500, 431),
        (b"POST / HTTP/1.1\r\nContent-Length: 65\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", 405),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ],
)
def test_limits(data: bytes, status: int | None) -> None:
    found = parse(data)

    assert [each for each in found if isinstance(each, int)] == ([] if status is None else [status])


@pytest.mark.parametrize(
    "decoration",
    [
        b"1;" + b"x" * 450 + b"\r\na\r\n",
        b"1;" + b"x" * 450,
        b"1;xxxxxxxxxx\r\na\r\n" * 50,
        b"0\r\n" + b"a: b\r\n" * 99,
    ],
)
def test_chunk_decoration_is_limited(decoration: bytes) -> None:
    data = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + decoration

    assert parse(data) == [431]


def test_chunks_together_keep_the_body_limit() -> None:
    data = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"8\r\n12345678\r\n" * 9

    assert parse(data) == [400]


def test_a_preface_is_told_from_a_malformed_request() -> None:
    parser = RequestParser(SMALL, heads=HeadReader(SMALL))
    parser.feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

    with pytest.raises(Http2Preface):
        parser.next_request()


@pytest.mark.parametrize(
    ("head", "wants"),
    [
        (b"POST / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n", True),
        (b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n", True),
        (b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n", False),
        (b"POST / HTTP/1.1\r\nExpect: other\r\nContent-Length: 1\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n", False),
        (b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na", False),
    ],
)
def test_who_waits_to_be_told_to_continue(head: bytes, wants: bool) -> None:
    parser = RequestParser(SMALL, heads=HeadReader(SMALL))
    parser.feed(head)
    parser.next_request()

    assert parser.wants_continue is wants


PIECES = st.sampled_from(
    [
        b"GET /a HTTP/1.1\r\n", b"POST /b HTTP/1.1\r\n", b"Content-Length: 5\r\n", b"\r\n",
        b"Transfer-Encoding: chunked\r\n", b"hello", b"5\r\nhello\r\n", b"0\r\n\r\n", b"0\r\n",
        b"Host: a\r\n", b"X: y\r\n", b" ", b"\n", b"\r", b"\x00", b"Upgrade: h2c\r\n",
        b"Connection: upgrade\r\n", b"PRI * HTTP/2.0\r\n", b"CONNECT a:1 HTTP/1.1\r\n",
    ]
)  # fmt: skip
NOISE = st.one_of(
    st.binary(max_size=200),
    st.lists(PIECES, max_size=12).map(b"".join),
    st.lists(st.one_of(PIECES, st.binary(max_size=3)), max_size=12).map(b"".join),
)


@given(NOISE, st.lists(st.integers(0, 400), max_size=20))
def test_any_bytes_give_the_same_clean_result_in_any_pieces(data: bytes, cuts: list[int]) -> None:
    assert parse(data, tuple(cuts)) == parse(data)


@given(st.lists(st.binary(max_size=20), max_size=8), st.lists(st.integers(0, 400), max_size=20))
def test_chunked_bodies_survive_any_cut(chunks: list[bytes], cuts: list[int]) -> None:
    coded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks if chunk)
    data = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + coded + b"0\r\n\r\n"
    config = HttpConfig(max_body_bytes=200)

    (request,) = parse(data, tuple(cuts), config)

    assert isinstance(request, HttpRequest)
    assert request.body == b"".join(chunks)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (
            b"POST / HTTP/1.1\r\nContent-Length: 65\r\n\r\n",
            (
                "Refused a request: the body is larger than 64 bytes; "
                "VLLM_HTTP_MAX_REQUEST_BODY_SIZE raises the limit"
            ),
        ),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n41\r\n",
            (
                "Refused a request: the body is larger than 64 bytes; "
                "VLLM_HTTP_MAX_REQUEST_BODY_SIZE raises the limit"
            ),
        ),
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            (
                "Refused a request: HTTP/2 is not spoken here; "
                "let the proxy in front, or the client, use HTTP/1.1"
            ),
        ),
        (b"GET / HTTP/9.9\r\n\r\n", None),
    ],
)
def test_what_an_operator_can_mend_is_logged(
    data: bytes, line: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    parse(data)

    assert [record.getMessage() for record in caplog.records] == ([] if line is None else [line])

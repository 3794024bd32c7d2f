import logging

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.http.rig import DATE, echo, ok, open_rig
from vllmfront.api.http import HttpConfig, HttpRequest, ResponseWriter

POST = b"POST /p HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
CLOSE = b"connection: close"


async def stream_two(_request: HttpRequest, response: ResponseWriter) -> None:
    await trio.lowlevel.checkpoint()
    response.start(200, [(b"content-type", b"text/event-stream")])
    response.write(b"one")
    response.write(b"")
    response.finish(b"two!")


async def test_a_request_is_answered_and_the_connection_kept() -> None:
    async with open_rig(echo) as rig:
        client = await rig.connect()

        assert await client.get(b"/a") == ok(b"GET /a 0!")
        assert await client.get(b"/b%20c?q=1") == ok(b"GET /b c 0!")
        assert rig.server.statistics().connections_open == 1
        assert rig.server.statistics().requests_total == 2


async def test_a_response_carries_the_date() -> None:
    async with open_rig(echo) as rig:
        client = await rig.connect()
        await client.send(POST)
        answer = await client.read()

        assert DATE.search(answer) is not None


async def test_pieces_of_a_stream_arrive_one_by_one_as_chunks() -> None:
    go_on = trio.Event()

    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        response.start(200, [(b"content-type", b"text/event-stream")])
        response.write(b"data: 1\n\n")
        await go_on.wait()
        response.finish(b"data: 2\n\n")

    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        head = await client.read_until(b"\r\n\r\n")
        first = await client.read_until(b"\n\n\r\n")
        go_on.set()
        rest = await client.read_until(b"0\r\n\r\n")

        assert head == (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        assert first == b"9\r\ndata: 1\n\n\r\n"
        assert rest == b"9\r\ndata: 2\n\n\r\n0\r\n\r\n"


async def test_pipelined_requests_are_answered_in_order() -> None:
    paths = [b"/%d" % n for n in range(40)]

    async with open_rig(echo) as rig:
        answer = await rig.ask(
            b"".join(b"GET %b HTTP/1.1\r\n\r\n" % path for path in paths)
            + b"GET /last HTTP/1.1\r\nConnection: close\r\n\r\n"
        )

    expected = b"".join(ok(b"GET %b 0!" % path) for path in paths)
    assert answer == expected + ok(b"GET /last 0!", CLOSE)


async def test_more_pipelined_bytes_than_are_read_ahead_are_served_too() -> None:
    body = b"x" * 60_000
    request = b"POST /big HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async with open_rig(echo) as rig:
        client = await rig.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, request * 20)
            answers = [await client.read_until(b"!") for _ in range(20)]

    assert answers == [ok(b"POST /big 60000!")] * 20


async def test_a_body_that_comes_in_many_pieces_is_put_together() -> None:
    async with open_rig(echo) as rig:
        client = await rig.connect()
        await client.send(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(50):
            await client.send(b"400\r\n%b\r\n" % (b"x" * 1024))
        await client.send(b"0\r\n\r\n")

        assert await client.read_until(b"!") == ok(b"POST / 51200!")


async def test_a_client_that_expects_it_is_told_to_continue() -> None:
    async with open_rig(echo) as rig:
        client = await rig.connect()
        await client.send(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
        interim = await client.read_until(b"\r\n\r\n")
        await client.send(b"x")

        assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert await client.read_until(b"!") == ok(b"POST / 1!")


async def test_a_too_large_body_is_refused_before_it_is_sent() -> None:
    async with open_rig(echo, HttpConfig(max_body_bytes=10)) as rig:
        client = await rig.connect()
        await client.send(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n")

        assert await client.read_until(b"}}") == (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: 125\r\nconnection: close\r\n\r\n"
            b'{"error":{"message":"Failed to buffer the request body: length limit exceeded",'
            b'"type":"Bad Request","param":null,"code":400}}'
        )
        assert rig.server.statistics().rejected == {400: 1}


async def test_a_client_that_sends_a_too_large_body_first_still_gets_the_answer() -> None:
    async with open_rig(echo, HttpConfig(max_body_bytes=10)) as rig:
        client = await rig.connect()
        await client.send(b"POST / HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n")
        await client.send(b"x" * 5_000_000)

        assert (await client.read_all()).startswith(b"HTTP/1.1 400 Bad Request\r\n")


async def test_a_head_request_gets_the_head_alone() -> None:
    async with open_rig(echo) as rig:
        client = await rig.connect()
        await client.send(b"HEAD /x HTTP/1.1\r\n\r\n")
        head = await client.read_until(b"\r\n\r\n")

        assert head == ok(b"HEAD /x 0!").removesuffix(b"HEAD /x 0!")
        assert await client.get() == ok(b"GET / 0!")


async def test_a_head_request_of_a_stream_gets_the_head_alone() -> None:
    async with open_rig(stream_two) as rig:
        answer = await rig.ask(b"HEAD / HTTP/1.1\r\nConnection: close\r\n\r\n")

    assert answer.endswith(b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n")


async def test_an_old_client_gets_a_stream_that_ends_with_the_connection() -> None:
    async with open_rig(stream_two) as rig:
        answer = await rig.ask(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")

    assert answer == b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\nonetwo!"


async def test_an_old_client_may_keep_its_connection() -> None:
    async with open_rig(echo) as rig:
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        first = await client.read_until(b"!")
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        second = await client.read_all()

    kept = ok(b"GET / 0!", b"connection: keep-alive").replace(b"1.1", b"1.0")
    assert first == kept
    assert second == ok(b"GET / 0!").replace(b"1.1", b"1.0")


async def test_keep_alive_may_be_switched_off() -> None:
    async with open_rig(echo, HttpConfig(keep_alive_timeout=0)) as rig:
        assert await rig.ask(b"GET / HTTP/1.1\r\n\r\n") == ok(b"GET / 0!", CLOSE)


@pytest.mark.parametrize(
    ("data", "start"),
    [
        (b"\x00\xff\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n"),
        (b"GET / HTTP/1.1\r\nA B: c\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed\r\n"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", b"HTTP/1.1 431 Request Header"),
        (b"GET /" + b"a" * 65600 + b" HTTP/1.1\r\n\r\n", b"HTTP/1.1 414 URI Too Long\r\n"),
        (POST.replace(b"Content", b"Transfer-Encoding: gzip, chunked\r\nX"), b"HTTP/1.1 501 "),
    ],
)
async def test_a_broken_request_is_refused_and_the_connection_closed(
    data: bytes, start: bytes
) -> None:
    async with open_rig(echo) as rig:
        answer = await rig.ask(data)

    assert answer.startswith(start)
    assert answer.endswith(b"connection: close\r\n\r\n")


async def test_broken_chunks_are_refused_with_the_error_object() -> None:
    async with open_rig(echo) as rig:
        answer = await rig.ask(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")

    assert answer.endswith(
        b'{"error":{"message":"Failed to buffer the request body: error reading a body from '
        b'connection","type":"Bad Request","param":null,"code":400}}'
    )


async def test_a_broken_request_behind_a_good_one_is_refused_after_its_answer() -> None:
    async with open_rig(echo) as rig:
        answer = await rig.ask(b"GET /a HTTP/1.1\r\n\r\n\x00\r\n\r\n")

    assert answer.startswith(ok(b"GET /a 0!") + b"HTTP/1.1 400 Bad Request\r\n")


async def test_a_preface_of_http2_is_dropped_without_an_answer() -> None:
    async with open_rig(echo) as rig:
        assert await rig.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == b""


async def test_a_handler_that_fails_becomes_a_500(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        if request.path == "/bad":
            raise LookupError("a bug")
        await echo(request, response)

    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.send(b"GET /bad HTTP/1.1\r\n\r\n")
        failed = await client.read_until(b"}}")

        assert failed.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert b"a bug" not in failed
        assert await client.get() == ok(b"GET / 0!")
    assert "The handler of GET /bad failed" in caplog.text


async def test_a_handler_that_answers_nothing_becomes_a_500() -> None:
    async def handler(_request: HttpRequest, _response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()

    async with open_rig(handler) as rig:
        answer = await rig.ask(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 500 ")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_handler_that_fails_in_a_stream_cuts_it(
    version: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        response.start(200, [])
        response.write(b"begun")
        await trio.lowlevel.checkpoint()
        raise LookupError("a bug")

    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.send(b"GET / HTTP/%b\r\n\r\n" % version)
        received = b""
        try:
            received = await client.read_all()
        except trio.BrokenResourceError:
            received = b"reset"

        assert not received.endswith(b"0\r\n\r\n")
        # Where only the connection's end marks the body's, it must not look like a good end.
        assert (received == b"reset") is (version == b"1.0")
        with trio.fail_after(1):
            await rig.server.wait_drained()
    assert "was left without its end" in caplog.text


async def test_a_body_with_a_length_of_its_own_is_not_chunked() -> None:
    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()
        response.start(200, [(b"Content-Length", b"6")])
        response.write(b"abc")
        response.finish(b"de!")

    async with open_rig(handler) as rig:
        client = await rig.connect()

        assert await client.get() == b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcde!"
        assert await client.get() == b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcde!"


@pytest.mark.parametrize("pieces", [(b"abc",), (b"abcdefg",)])
async def test_a_body_that_misses_its_own_length_cuts_the_connection(
    pieces: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()
        response.start(200, [(b"content-length", b"6")])
        for piece in pieces:
            response.write(piece)
        response.finish()

    async with open_rig(handler) as rig:
        answer = await rig.ask(b"GET / HTTP/1.1\r\n\r\n")

    assert len(answer.partition(b"\r\n\r\n")[2]) < 6
    assert "Content-Length" in caplog.text


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_body_has_no_framing(status: int) -> None:
    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()
        if request.path == "/stream":
            response.start(status, [])
            response.finish(b"nobody reads this")
        else:
            response.respond(status, b"nobody reads this", content_type=b"")

    async with open_rig(handler) as rig:
        client = await rig.connect()
        for path in (b"/", b"/stream"):
            await client.send(b"GET %b HTTP/1.1\r\n\r\n" % path)
            head = await client.read_until(b"\r\n\r\n")

            assert head.count(b"\r\n") == 2
            assert b"length" not in head


async def test_added_headers_come_with_either_kind_of_head() -> None:
    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        response.add_headers([(b"x-request-id", b"7")])
        assert (response.status, response.head_time) == (0, 0.0)
        await (stream_two if request.path == "/stream" else echo)(request, response)
        assert response.status == 200
        assert response.head_time > 0

    async with open_rig(handler) as rig:
        client = await rig.connect()

        assert await client.get() == ok(b"GET / 0!", b"x-request-id: 7").replace(
            b"content-length: 8\r\nx-request-id: 7\r\n", b"x-request-id: 7\r\ncontent-length: 8\r\n"
        )
        assert b"x-request-id: 7\r\n" in await client.get(b"/stream")


async def test_a_header_with_a_line_end_never_reaches_the_wire() -> None:
    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()
        response.respond(200, b"", headers=[(b"x", b"a\r\nset-cookie: b")])

    async with open_rig(handler) as rig:
        answer = await rig.ask(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"cookie" not in answer


async def test_a_late_writer_cannot_touch_the_next_response() -> None:
    kept: list[ResponseWriter] = []

    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        kept.append(response)
        if len(kept) > 1:
            kept[0].write(b"late")
            kept[0].finish(b"late")
            kept[0].respond(200, b"late")
            kept[0].on_drained(lambda: None)
        await echo(request, response)

    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.get()

        assert await client.get() == ok(b"GET / 0!")
        assert await client.get() == ok(b"GET / 0!")


async def test_a_second_answer_to_one_request_is_a_bug() -> None:
    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        await echo(request, response)
        with pytest.raises(RuntimeError):
            response.respond(200, b"again")
        with pytest.raises(RuntimeError):
            response.start(200, [])

    async with open_rig(handler) as rig:
        client = await rig.connect()

        assert await client.get() == ok(b"GET / 0!")


async def test_writing_before_the_head_is_a_bug() -> None:
    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        with pytest.raises(RuntimeError):
            response.write(b"x")
        with pytest.raises(RuntimeError):
            response.finish()
        await echo(request, response)

    async with open_rig(handler) as rig:
        client = await rig.connect()

        assert await client.get() == ok(b"GET / 0!")


NOISE = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.sampled_from(
            [b"GET / HTTP/1.1\r\n", b"\r\n\r\n", POST, b"Transfer-Encoding: chunked\r\n", b"0\r\n"]
        ),
    ),
    max_size=6,
)


async def test_no_bytes_trouble_the_server(caplog: pytest.LogCaptureFixture) -> None:
    found: list[list[bytes]] = []

    @settings(max_examples=60, database=None)
    @given(NOISE)
    def collect(pieces: list[bytes]) -> None:
        found.append(pieces)

    collect()
    caplog.set_level(logging.WARNING)
    async with open_rig(echo) as rig:
        for pieces in found:
            client = await rig.connect()
            for piece in pieces:
                await client.send(piece)
            await client.stream.send_eof()
            answer = await client.read_all()

            assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
        with trio.fail_after(1):
            await rig.server.wait_drained()
        assert await (await rig.connect()).get() == ok(b"GET / 0!")
    assert caplog.records == []

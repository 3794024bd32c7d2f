import trio

from tests.api.http.rig import echo, ok, open_rig
from vllmfront.api.http import HttpRequest, ResponseWriter


async def test_a_request_is_answered_and_the_connection_kept() -> None:
    async with open_rig(echo) as rig:
        client = await rig.connect()

        assert await client.get(b"/a") == ok(b"GET /a 0!")
        assert await client.get(b"/b%20c?q=1") == ok(b"GET /b c 0!")
        assert rig.server.statistics().connections_open == 1


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

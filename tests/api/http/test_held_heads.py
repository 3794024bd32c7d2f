import pytest
import trio

from tests.api.http.rig import open_rig
from vllmfront.api.http import HttpRequest, ResponseWriter

HEAD = b"HTTP/1.1 200 OK\r\nx-a: b\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


async def test_a_held_head_is_sent_by_a_flush() -> None:
    go_on = trio.Event()

    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        response.start(200, [(b"x-a", b"b")], hold=True)
        response.flush()
        await go_on.wait()
        response.flush()
        response.finish()

    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        head = await client.read_until(b"\r\n\r\n")
        go_on.set()
        rest = await client.read_until(END)

        assert head == HEAD
        assert rest == END


@pytest.mark.parametrize("pieces", [[], [b"one"], [b"one", b"two"]])
async def test_a_held_head_goes_before_the_first_piece(pieces: list[bytes]) -> None:
    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()
        response.start(200, [(b"x-a", b"b")], hold=True)
        for piece in pieces:
            response.write(piece)
        response.finish(b"end")

    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        answer = await client.read_until(END)

        chunks = b"".join(b"%X\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b"end"])
        assert answer == HEAD + chunks + END


async def test_a_held_head_is_not_lost_where_the_connection_delimits() -> None:
    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()
        response.start(200, [(b"x-a", b"b")], hold=True)
        response.finish()

    async with open_rig(handler) as rig:
        answer = await rig.ask(b"GET / HTTP/1.0\r\n\r\n")

        assert b"x-a: b\r\n" in answer

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


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("size", [3, 3000])
async def test_a_piece_made_of_three_is_one_chunk(hold: bool, size: int) -> None:
    taken: list[bool] = []
    middle = b"x" * size

    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()
        response.start(200, [(b"x-a", b"b")], hold=hold)
        taken.append(response.offer(b"<", middle, b">"))
        taken.append(response.offer(b"<", b"", b">"))
        response.finish()
        taken.append(response.offer(b"<", b"late", b">"))

    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        answer = await client.read_until(END)

        chunks = b"%X\r\n<%b>\r\n2\r\n<>\r\n" % (size + 2, middle)
        assert answer == HEAD + chunks + END
        assert taken == [True, True, False]


@pytest.mark.parametrize(
    ("request_line", "end"),
    [(b"GET / HTTP/1.0", b"\r\n\r\n<one>"), (b"HEAD / HTTP/1.1", b"\r\n\r\n")],
)
async def test_a_piece_made_of_three_is_framed_as_any_other(
    request_line: bytes, end: bytes
) -> None:
    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        response.start(200, [(b"x-a", b"b")])
        assert response.offer(b"<", b"one", b">")
        response.finish()

    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.send(request_line + b"\r\nConnection: close\r\n\r\n")

        assert (await client.read_all()).endswith(end)


async def test_a_client_that_does_not_keep_up_is_not_offered_more() -> None:
    taken: list[bool] = []

    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        response.start(200, [(b"x-a", b"b")])
        response.write(b"x" * 20_000_000)  # more than any socket takes
        taken.append(response.offer(b"<", b"no", b">"))
        drained = trio.Event()
        response.on_drained(drained.set)
        await drained.wait()
        taken.append(response.offer(b"<", b"yes", b">"))
        response.finish()

    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        body = bytearray()
        while not body.endswith(END):
            body += await client.read()

        assert taken == [False, True]
        assert body.endswith(b"x\r\n5\r\n<yes>\r\n" + END)

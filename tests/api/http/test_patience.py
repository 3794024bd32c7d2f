# ruff: noqa: ARG001  # pytest-trio takes the clock from the arguments of a test
"""Clients that are slow: to ask, to send, to read, to leave. Time is virtual."""

import pytest
import trio
from trio.testing import MockClock

from tests.api.http.rig import Client, Rig, echo, ok, open_rig
from vllmfront.api.http import CLIENT_STALLED, HttpConfig, HttpRequest, ResponseWriter


@pytest.fixture
def clock() -> MockClock:
    """Time jumps when nothing has happened for a moment: the kernel takes real time."""
    return MockClock(autojump_threshold=0.02)


async def end_of(client: Client) -> tuple[float, bytes]:
    """Return when the connection ended, and what came before that."""
    received = await client.read_all()
    return round(trio.current_time(), 1), received


async def drip(client: Client, data: bytes, seconds: float) -> None:
    for byte in data:
        await trio.sleep(seconds)
        await client.send(bytes([byte]))


CONFIG = HttpConfig(
    keep_alive_timeout=5, header_timeout=10, body_timeout=60, send_timeout=60, linger_timeout=3
)


@pytest.mark.parametrize(("keep_alive", "first"), [(5.0, 5.0), (7.0, 7.0), (0.0, 5.0)])
async def test_who_says_nothing_is_sent_away(
    clock: MockClock, keep_alive: float, first: float
) -> None:
    async with open_rig(echo, HttpConfig(keep_alive_timeout=keep_alive)) as rig:
        client = await rig.connect()

        assert await end_of(client) == (first, b"")


async def test_an_idle_connection_is_closed_after_a_while(clock: MockClock) -> None:
    async with open_rig(echo, CONFIG) as rig:
        client = await rig.connect()
        for _ in range(4):
            await trio.sleep(4)
            await client.get()

        assert await end_of(client) == (21.0, b"")


async def test_a_head_must_come_in_time(clock: MockClock) -> None:
    async with open_rig(echo, CONFIG) as rig, trio.open_nursery() as nursery:
        client = await rig.connect()
        await trio.sleep(3)
        nursery.start_soon(drip, client, b"GET / HTT", 1.0)
        ended, answer = await end_of(client)

        assert ended == 14.0  # ten seconds after the first byte
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_must_make_progress(clock: MockClock, chunked: bool) -> None:
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 5000"
    async with open_rig(echo, CONFIG) as rig, trio.open_nursery() as nursery:
        client = await rig.connect()
        await client.send(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        if chunked:
            await client.send(b"1388\r\n")
        await trio.sleep(50)
        await client.send(b"x" * 2000)
        nursery.start_soon(drip, client, b"xxxx", 20.0)
        ended, answer = await end_of(client)

        assert ended == 110.0  # the last progress was at 50
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert rig.server.statistics().rejected == {408: 1}
        assert rig.server.statistics().ended == {}  # no handler has begun


async def test_a_slow_body_that_makes_progress_is_served(clock: MockClock) -> None:
    async with open_rig(echo, CONFIG) as rig:
        client = await rig.connect()
        await client.send(b"POST / HTTP/1.1\r\nContent-Length: 20000\r\n\r\n")
        for _ in range(10):
            await trio.sleep(50)
            await client.send(b"x" * 2000)

        assert await client.read_until(b"!") == ok(b"POST / 20000!")


async def test_a_handler_may_take_its_time(clock: MockClock) -> None:
    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        await trio.sleep(3600)
        await echo(request, response)

    async with open_rig(handler, CONFIG) as rig:
        client = await rig.connect()

        assert await client.get() == ok(b"GET / 0!")
        assert await end_of(client) == (3605.0, b"")


class Torrent:
    """Writes until the client is congested, each time it is not."""

    def __init__(self, total: int | None = None) -> None:
        self.total = total
        self.written = 0
        self.causes: list[str | None] = []
        self.ended = trio.Event()

    async def __call__(self, request: HttpRequest, response: ResponseWriter, /) -> None:
        response.start(200, [])
        drained = trio.Event()
        try:
            while self.total is None or self.written < self.total:
                response.write(b"x" * 10_000)
                self.written += 10_000
                if response.congested:
                    response.on_drained(drained.set)
                    await drained.wait()
                    drained = trio.Event()
            response.on_drained(None)
            response.finish(b"!")
        finally:
            self.causes.append(request.close_cause)
            self.ended.set()


async def read_slowly(client: Client, seconds: float) -> int:
    total = 0
    while True:
        await trio.sleep(seconds)
        data = await client.stream.receive_some(400_000)
        total += len(data)
        if data.endswith(b"0\r\n\r\n"):
            return total


async def test_who_reads_nothing_is_cut_off(clock: MockClock) -> None:
    torrent = Torrent()
    async with open_rig(torrent, CONFIG) as rig:
        client = await rig.connect(buffer=4096)
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        await torrent.ended.wait()

        assert torrent.causes == [CLIENT_STALLED]
        # The kernel may take a little more at first, which counts as progress.
        assert 60.0 <= trio.current_time() < 90.0
        assert rig.server.statistics().ended == {CLIENT_STALLED: 1}


async def test_who_reads_slowly_gets_everything(clock: MockClock) -> None:
    torrent = Torrent(total=6_000_000)
    async with open_rig(torrent, CONFIG) as rig:
        client = await rig.connect(buffer=300_000)
        await client.send(b"GET / HTTP/1.1\r\n\r\n")

        assert await read_slowly(client, 50.0) > 6_000_000
        assert torrent.causes == [None]


async def test_a_large_answer_waits_for_a_slow_reader(clock: MockClock) -> None:
    body = b"x" * 8_000_000

    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()
        response.respond(200, body)

    config = HttpConfig(max_unsent_bytes=1000)  # for streams only
    async with open_rig(handler, config) as rig:
        client = await rig.connect(buffer=65536)
        await client.send(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        await trio.sleep(30)

        assert len(await client.read_all()) > 16_000_000


async def test_a_large_answer_that_is_not_read_is_cut_off(clock: MockClock) -> None:
    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()
        response.respond(200, b"x" * 20_000_000)

    async with open_rig(handler, CONFIG) as rig:
        client = await rig.connect(buffer=4096)
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        await trio.sleep(70)
        await rig.server.wait_drained()

        assert rig.server.statistics().ended == {CLIENT_STALLED: 1}


async def test_a_producer_that_ignores_congestion_is_cut_off(clock: MockClock) -> None:
    causes: list[str | None] = []

    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        response.start(200, [])
        try:
            while True:
                response.write(b"x" * 100_000)
                await trio.lowlevel.checkpoint()
        finally:
            causes.append(request.close_cause)

    async with open_rig(handler, HttpConfig(max_unsent_bytes=1_000_000)) as rig:
        client = await rig.connect(buffer=4096)
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        await trio.sleep(1)
        await rig.server.wait_drained()

    assert causes == [CLIENT_STALLED]


async def test_one_stalled_client_holds_up_nobody(clock: MockClock) -> None:
    torrent = Torrent()

    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        await (torrent if request.path == "/torrent" else echo)(request, response)

    async with open_rig(handler, CONFIG) as rig:
        stalled = await rig.connect(buffer=4096)
        await stalled.send(b"GET /torrent HTTP/1.1\r\n\r\n")
        await trio.sleep(1)
        other = await rig.connect()

        with trio.fail_after(1):
            assert await other.get() == ok(b"GET / 0!")


async def say_and_stay(rig: Rig, data: bytes) -> float:
    """Send *data*, read the answer but never hang up; return when the server has had enough."""
    client = await rig.connect()
    await client.send(data)
    await client.read_all()
    await rig.server.wait_drained()
    return round(trio.current_time(), 1)


@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", 0.0),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\nand more", 3.0),
        (b"\x00\r\n\r\n", 3.0),
    ],
)
async def test_who_does_not_hang_up_is_left(clock: MockClock, data: bytes, seconds: float) -> None:
    """At once where nothing unread could spoil the answer."""
    async with open_rig(echo, CONFIG) as rig:
        assert await say_and_stay(rig, data) == seconds


async def test_who_talks_on_after_a_refusal_is_left_in_the_end(clock: MockClock) -> None:
    async with open_rig(echo, CONFIG) as rig:
        client = await rig.connect()
        await client.send(b"\x00\r\n\r\n")
        await client.read_all()
        with pytest.raises(trio.BrokenResourceError):
            while True:
                await trio.sleep(1)
                await client.send(b"x")
        await rig.server.wait_drained()

        assert 30 < trio.current_time() < 40

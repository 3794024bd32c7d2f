"""Writes that are gathered: sent together, in order, and each client's trouble its own."""

import socket

import pytest
import trio

from tests.api.http.rig import Client, Rig, open_rig
from vllmfront.api.http import CLIENT_GONE, HttpRequest, ResponseWriter
from vllmfront.api.http._outlet import Outlet
from vllmfront.api.http._write_batch import WriteBatch

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
END = b"0\r\n\r\n"


class Streams:
    """A handler whose responses stay open until the test finishes them."""

    def __init__(self) -> None:
        self.responses: list[ResponseWriter] = []
        self.requests: list[HttpRequest] = []
        self._done: list[trio.Event] = []

    async def __call__(self, request: HttpRequest, response: ResponseWriter) -> None:
        response.start(200, ())
        self.requests.append(request)
        self.responses.append(response)
        done = trio.Event()
        self._done.append(done)
        await done.wait()

    async def open(self, rig: Rig, *, buffer: int | None = None) -> Client:
        client = await rig.connect(buffer=buffer)
        await client.send(REQUEST)
        await client.read_until(b"\r\n\r\n")
        return client

    def finish(self, last: bytes) -> None:
        for response, done in zip(self.responses, self._done, strict=True):
            response.finish(last)
            done.set()


async def test_what_is_gathered_goes_out_at_the_end_in_order() -> None:
    streams = Streams()
    async with open_rig(streams) as rig:
        clients = [await streams.open(rig) for _ in range(3)]
        writes = rig.server.writes
        writes.begin()
        for response in streams.responses:
            response.write(b"one")
            response.write(b"two")
        with trio.move_on_after(0.02) as nothing_came:
            await clients[0].read()
        writes.end()
        streams.finish(b"end")

        assert nothing_came.cancelled_caught
        for client in clients:
            chunks = b"3\r\none\r\n3\r\ntwo\r\n3\r\nend\r\n"
            assert await client.read_until(END) == chunks + END


async def test_what_one_client_is_sent_meanwhile_is_one_send() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        writes = WriteBatch()
        outlet = Outlet(ours, None, writes)  # type: ignore[arg-type]  # nothing happens to it
        writes.begin()
        outlet.write_nowait(b"one")
        outlet.write_nowait(b"two")
        writes.end()
        outlet.write_nowait(b"three")

        assert [theirs.recv(100), theirs.recv(100)] == [b"onetwo", b"three"]


async def test_a_request_that_ends_while_writes_are_gathered_lets_the_next_one_come() -> None:
    streams = Streams()
    async with open_rig(streams) as rig:
        client = await streams.open(rig)
        rig.server.writes.begin()
        streams.finish(b"end")
        rig.server.writes.end()
        await client.read_until(END)
        streams.responses.clear()
        await client.send(REQUEST)
        await client.read_until(b"\r\n\r\n")
        [response] = streams.responses
        response.write(b"again")

        assert await client.read_until(b"again") == b"5\r\nagain"


async def test_what_the_socket_does_not_take_is_kept_and_comes_first_later() -> None:
    streams = Streams()
    piece = b"x" * 1_000_000
    async with open_rig(streams) as rig:
        client = await streams.open(rig, buffer=65536)
        [response] = streams.responses
        for _ in range(8):  # more than any socket takes
            rig.server.writes.begin()
            response.write(piece)
            rig.server.writes.end()
        congested = response.congested
        streams.finish(b"end")

        body = bytearray()
        while not body.endswith(END):
            body += await client.read()
        assert congested
        assert body.count(b"x") == 8 * len(piece)
        assert body.endswith(b"3\r\nend\r\n" + END)


async def test_a_client_that_has_left_does_not_keep_others_from_theirs() -> None:
    streams = Streams()
    async with open_rig(streams) as rig:
        clients = [await streams.open(rig) for _ in range(2)]
        writes = rig.server.writes
        writes.begin()
        for response in streams.responses:
            response.write(b"for you")
        # Gone without a word that the server could have read yet.
        sock = clients[0].stream.socket
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
        writes.end()

        assert await clients[1].read_until(b"you") == b"7\r\nfor you"
        connection = streams.requests[0].connection
        assert connection is not None
        with trio.fail_after(5):
            await connection.wait_closed()
        assert streams.requests[0].close_cause == CLIENT_GONE
        assert streams.requests[1].close_cause is None


def test_a_fault_of_one_sender_is_logged_and_ends_it_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Faulty:
        dropped = False

        def send_gathered(self) -> None:
            raise RuntimeError("a bug")

        def drop(self) -> None:
            self.dropped = True

    class Sound:
        sent = False

        def send_gathered(self) -> None:
            self.sent = True

        def drop(self) -> None:
            raise AssertionError

    writes, faulty, sound = WriteBatch(), Faulty(), Sound()
    writes.begin()
    writes.add(faulty)
    writes.add(sound)
    writes.end()

    assert faulty.dropped
    assert sound.sent
    assert not writes.gathering
    assert "Sending to an HTTP client failed" in caplog.text

import socket
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from vllmfront.api.http._readiness import Readiness

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def readiness() -> Iterator[Readiness]:
    with Readiness() as readiness:
        yield readiness


async def test_a_watched_socket_is_called_back_whenever_it_is_readable(
    pair: Pair, readiness: Readiness, nursery: trio.Nursery
) -> None:
    ours, theirs = pair
    await nursery.start(readiness.serve)
    seen: list[bytes] = []
    arrived = trio.Event()

    def read() -> None:
        seen.append(ours.recv(100))
        arrived.set()

    readiness.watch(ours.fileno(), read)
    for data in (b"one", b"two"):
        arrived = trio.Event()
        theirs.send(data)
        with trio.fail_after(5):
            await arrived.wait()

    assert seen == [b"one", b"two"]


async def test_the_other_ends_leaving_is_a_call_too(
    pair: Pair, readiness: Readiness, nursery: trio.Nursery
) -> None:
    ours, theirs = pair
    await nursery.start(readiness.serve)
    gone = trio.Event()

    def read() -> None:
        assert ours.recv(100) == b""
        readiness.unwatch(ours.fileno())
        gone.set()

    readiness.watch(ours.fileno(), read)
    theirs.close()
    with trio.fail_after(5):
        await gone.wait()


async def test_what_is_no_longer_watched_is_left_alone(
    pair: Pair, readiness: Readiness, nursery: trio.Nursery
) -> None:
    ours, theirs = pair
    await nursery.start(readiness.serve)
    calls: list[str] = []
    other_ours, other_theirs = socket.socketpair()
    with other_ours, other_theirs:
        # Whichever is called first takes both back: the second call of the turn must not come.
        def both() -> None:
            calls.append("called")
            readiness.unwatch(ours.fileno())
            readiness.unwatch(other_ours.fileno())
            readiness.unwatch(other_ours.fileno())

        theirs.send(b"x")
        other_theirs.send(b"x")
        readiness.watch(ours.fileno(), both)
        readiness.watch(other_ours.fileno(), both)
        with trio.fail_after(5):
            while not calls:
                await trio.lowlevel.checkpoint()
        for _ in range(5):
            await trio.testing.wait_all_tasks_blocked()

        assert calls == ["called"]


async def test_a_socket_that_cannot_be_watched_is_not_remembered(readiness: Readiness) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        descriptor = ours.fileno()
    with pytest.raises(OSError, match="Bad file descriptor"):
        readiness.watch(descriptor, lambda: None)

    readiness.unwatch(descriptor)
    await trio.lowlevel.checkpoint()

"""Peers that vanish without closing their connections."""

from collections.abc import Iterator

import pytest
import trio
import zmq

from tests.network.relay import open_wire
from vllmfront.engine.transport import (
    PeerChange,
    PeerMonitor,
    host_of,
    open_context,
    open_monitor,
    open_receiver,
    open_router,
)
from vllmfront.engine.transport import _heartbeat as heartbeat

Context = zmq.Context[zmq.Socket[bytes]]
ELSEWHERE = "tcp://0.0.0.0:*"
"""An address that peers on other hosts can reach."""


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)
    monkeypatch.setattr(heartbeat, "TIMEOUT", 0.3)
    with open_context() as opened:
        yield opened


async def next_change(monitor: PeerMonitor) -> PeerChange:
    while (event := monitor.event_nowait()) is None:
        await monitor.wait_event()
    return event.change


def peer(context: Context, kind: int, port: int) -> zmq.Socket[bytes]:
    """Connect as engines do, who know nothing of heartbeats."""
    made = context.socket(kind)
    made.setsockopt(zmq.IDENTITY, b"\0\0")
    made.setsockopt(zmq.LINGER, 0)
    made.connect(f"tcp://127.0.0.1:{port}")
    return made


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.PUSH])
async def test_one_that_vanishes_is_noticed_and_finds_back_by_itself(
    context: Context, kind: int
) -> None:
    opened = open_router if kind == zmq.DEALER else open_receiver
    with trio.fail_after(10), opened(context, ELSEWHERE) as socket, open_monitor(socket) as monitor:
        async with open_wire("127.0.0.1", host_of(socket.address)[1]) as wire:
            engine = peer(context, kind, wire.port)
            assert await next_change(monitor) is PeerChange.CAME
            # It answers, and so may stay, although it says nothing by itself.
            await trio.sleep(3 * heartbeat.TIMEOUT)
            assert monitor.event_nowait() is None

            wire.cut()
            began = trio.current_time()
            assert await next_change(monitor) is PeerChange.LEFT
            assert trio.current_time() - began < 5
            # It has noticed, too: its next connection waits in the wire.
            while wire.connections == 1:  # noqa: ASYNC110 (no event)
                await trio.sleep(0.01)
            wire.mend()
            assert await next_change(monitor) is PeerChange.CAME
            engine.send(b"here")
            assert [frame.bytes for frame in await socket.receive()][-1] == b"here"
            engine.close()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:*", "tcp://[::1]:*", "ipc://*"])
def test_on_one_host_nobody_has_to_ask(context: Context, address: str) -> None:
    with context.socket(zmq.PULL) as socket:
        heartbeat.watch_peers(socket, address)

        assert socket.getsockopt(zmq.HEARTBEAT_IVL) == 0


def test_a_peer_is_missed_within_ten_seconds() -> None:
    assert heartbeat.INTERVAL + heartbeat.TIMEOUT < 9

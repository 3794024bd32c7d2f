"""Listeners that several sockets serve one after the other, without a peer being refused."""

import socket as sockets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import zmq

from vllmfront.engine.transport import (
    MessageReceiver,
    MessageRouter,
    PeerGone,
    SharedListener,
    ipc_address,
    listen_ipc,
    listen_tcp,
    open_context,
    open_receiver,
    open_router,
)
from vllmfront.errors import ConfigurationError

Context = zmq.Context[zmq.Socket[bytes]]
ENGINE = b"\x00\x00"


@pytest.fixture
def context() -> Iterator[Context]:
    with open_context() as opened:
        yield opened


@pytest.fixture(params=["tcp", "ipc"])
def listener(request: pytest.FixtureRequest) -> Iterator[SharedListener]:
    tcp = request.param == "tcp"
    with listen_tcp("127.0.0.1", 0) if tcp else listen_ipc(ipc_address("i")) as listening:
        yield listening


@pytest.fixture
def dealer(context: Context, listener: SharedListener) -> Iterator[zmq.Socket[bytes]]:
    with context.socket(zmq.DEALER) as made:
        made.setsockopt(zmq.IDENTITY, ENGINE)
        made.connect(listener.address)
        yield made


def serve(context: Context, listener: SharedListener) -> MessageRouter:
    return open_router(context, "", adopt_fd=listener.duplicate())


def settle() -> None:
    """Let ZeroMQ's thread do what it was told: closing takes effect a moment later."""
    time.sleep(0.05)


async def receive(receiver: MessageReceiver) -> list[bytes]:
    with trio.fail_after(5):
        return [frame.bytes for frame in await receiver.receive()]


async def send(router: MessageRouter, text: bytes) -> None:
    """Send to the engine, once it is there."""
    with trio.fail_after(5):
        while True:
            try:
                router.send_nowait(ENGINE, [text])
            except PeerGone:
                await trio.sleep(0.01)
            else:
                return


async def test_a_peer_finds_each_server_of_its_address(
    context: Context, listener: SharedListener, dealer: zmq.Socket[bytes]
) -> None:
    with serve(context, listener) as first:
        await send(first, b"one")
    settle()
    dealer.send(b"between")
    with serve(context, listener) as second:
        assert await receive(second) == [ENGINE, b"between"]
        await send(second, b"two")

    assert [dealer.recv() for _ in range(2)] == [b"one", b"two"]


async def test_a_server_in_another_context_takes_the_late_ones(
    context: Context, listener: SharedListener, dealer: zmq.Socket[bytes]
) -> None:
    with serve(context, listener) as first:
        dealer.send(b"early")
        assert await receive(first) == [ENGINE, b"early"]
    settle()
    with (
        context.socket(zmq.PUSH) as late,
        open_context() as other,
        open_receiver(other, "", adopt_fd=listener.duplicate()) as second,
    ):
        late.connect(listener.address)
        late.send(b"late")
        assert await receive(second) == [b"late"]


def test_the_file_goes_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    listener = listen_ipc(f"ipc://{path}")
    with SharedListener(listener.duplicate(), owns_file=False) as heir:
        assert heir.address == listener.address
    assert path.exists()
    listener.close()
    listener.close()

    assert not path.exists()
    assert "closed" in repr(listener)


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with listen_tcp("127.0.0.1", 0) as first:
        port = int(first.address.rpartition(":")[2])
        with pytest.raises(ConfigurationError, match=f"at tcp://127.0.0.1:{port}: Address"):
            listen_tcp("127.0.0.1", port)
    path = f"{tmp_path}/socket"
    with listen_ipc(f"ipc://{path}"), pytest.raises(ConfigurationError, match=f"at ipc://{path}: "):
        listen_ipc(f"ipc://{path}")


@pytest.mark.skipif(not sockets.has_ipv6, reason="this Python has no IPv6")
async def test_ipv6_addresses_can_be_listened_on(context: Context) -> None:
    with listen_tcp("::1", 0) as listener, serve(context, listener) as router:
        assert router.address == listener.address
        assert listener.address.startswith("tcp://[::1]:")


def test_a_descriptor_that_is_no_socket_is_refused() -> None:
    with Path("/dev/null").open() as file, pytest.raises(ConfigurationError):
        SharedListener(file.fileno())

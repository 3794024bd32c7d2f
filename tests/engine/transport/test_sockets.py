"""Sockets: what waits, what wakes, what is lost (nothing)."""

import socket as sockets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import trio
import zmq
from trio.testing import wait_all_tasks_blocked

from vllmfront.engine.transport import (
    MessageReceiver,
    MessageRouter,
    PeerChange,
    PeerGone,
    ipc_address,
    open_context,
    open_monitor,
    open_receiver,
    open_router,
    tcp_address,
)
from vllmfront.errors import ConfigurationError

Context = zmq.Context[zmq.Socket[bytes]]
ANY_PORT = tcp_address("127.0.0.1", 0)
ENGINE = b"\x00\x00"


@pytest.fixture
def context() -> Iterator[Context]:
    with open_context() as opened:
        yield opened


class Peers:
    """The other ends, which must not be collected before they are closed."""

    def __init__(self) -> None:
        self._context: Context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []

    def dealer(self, address: str, identity: bytes = ENGINE) -> zmq.Socket[bytes]:
        made = self._connect(zmq.DEALER)
        made.setsockopt(zmq.IDENTITY, identity)
        made.connect(address)
        return made

    def pusher(self, address: str) -> zmq.Socket[bytes]:
        made = self._connect(zmq.PUSH)
        made.connect(address)
        return made

    def close(self) -> None:
        for socket in self._sockets:
            socket.close(linger=0)
        self._context.term()

    def _connect(self, kind: int) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        self._sockets.append(made)
        made.setsockopt(zmq.IPV6, 1)
        made.set_hwm(0)
        return made


@pytest.fixture
def peers() -> Iterator[Peers]:
    opened = Peers()
    yield opened
    opened.close()


def texts(message: list[zmq.Frame] | None) -> list[bytes]:
    assert message is not None
    return [frame.bytes for frame in message]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for an I/O thread, which sets no event."""
    with trio.fail_after(5):
        while not condition():  # noqa: ASYNC110 (it sets none)
            await trio.sleep(0.001)


async def test_everything_waiting_is_received_after_one_wake_up(
    context: Context, peers: Peers
) -> None:
    with open_receiver(context, ANY_PORT) as receiver:
        push = peers.pusher(receiver.address)
        for number in range(50):
            push.send_multipart([b"%d" % number, b"aux"])

        with trio.fail_after(5):
            received = [texts(await receiver.receive()) for _ in range(50)]

        assert received == [[b"%d" % number, b"aux"] for number in range(50)]
        assert receiver.receive_nowait() is None


async def test_a_send_that_uses_up_the_report_wakes_the_owner(
    context: Context, peers: Peers
) -> None:
    with open_router(context, ANY_PORT) as router:
        engine = peers.dealer(router.address)
        engine.send(b"hello")
        await router.receive()
        got: list[list[bytes]] = []

        async def own() -> None:
            got.append(texts(await router.receive()))

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(own)
                await wait_all_tasks_blocked()
                engine.send(b"news")
                # It arrives while no task runs: the descriptor reports it, and this send, the
                # first call into the socket, uses the report up.
                time.sleep(0.05)  # noqa: ASYNC251 (Trio must not see the descriptor)
                router.send_nowait(ENGINE, [b"request"])

        assert got == [[ENGINE, b"news"]]


async def test_a_second_receiver_is_refused(context: Context) -> None:
    with open_router(context, ANY_PORT) as router:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.receive)
            await wait_all_tasks_blocked()

            with pytest.raises(trio.BusyResourceError):
                await router.receive()

            nursery.cancel_scope.cancel()


async def test_closing_wakes_the_receiver(context: Context) -> None:
    for open_socket in (open_router, open_receiver):
        with open_socket(context, ANY_PORT) as socket:

            async def own(socket: MessageReceiver = socket) -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await socket.receive()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(own)
                await wait_all_tasks_blocked()
                socket.close()

            with pytest.raises(trio.ClosedResourceError):
                socket.receive_nowait()
            with pytest.raises(trio.ClosedResourceError):
                await socket.wait_message()
            assert "closed" in repr(socket)


def test_a_closed_router_sends_nothing(context: Context) -> None:
    with open_router(context, ANY_PORT) as router:
        router.close()

        with pytest.raises(trio.ClosedResourceError):
            router.send_nowait(ENGINE, [b"x"])


async def test_a_message_for_a_missing_peer_is_an_error(context: Context, peers: Peers) -> None:
    with open_router(context, ANY_PORT) as router:
        with pytest.raises(PeerGone) as never_there:
            router.send_nowait(ENGINE, [b"x"])
        engine = peers.dealer(router.address)
        engine.send(b"hello")
        await router.receive()
        router.send_nowait(ENGINE, [b"x"])
        engine.close(linger=0)

        def gone() -> bool:
            try:
                router.send_nowait(ENGINE, [b"x"])
            except PeerGone:
                return True
            return False

        await until(gone)

        assert never_there.value.identity == ENGINE


async def test_a_peer_that_comes_back_takes_over(context: Context, peers: Peers) -> None:
    with open_router(context, ANY_PORT) as router:
        old = peers.dealer(router.address)
        old.send(b"old")
        await router.receive()
        new = peers.dealer(router.address)
        new.send(b"new")
        await router.receive()

        router.send_nowait(ENGINE, [b"request"])

        assert new.poll(5000)
        assert new.recv() == b"request"
        assert not old.poll(0)


async def test_ten_thousand_sends_wait_for_a_slow_peer(context: Context, peers: Peers) -> None:
    with open_router(context, ANY_PORT) as router:
        engine = peers.dealer(router.address)
        engine.send(b"hello")
        await router.receive()
        for number in range(10_000):
            router.send_nowait(ENGINE, [b"%d" % number])

        received = [engine.recv() for _ in range(10_000)]

        assert received == [b"%d" % number for number in range(10_000)]


async def test_the_monitor_tells_whose_connection_ended(context: Context, peers: Peers) -> None:
    with open_router(context, ANY_PORT) as router, open_monitor(router) as monitor:
        engines = [peers.dealer(router.address, bytes([rank, 0])) for rank in range(3)]
        descriptors = []
        for engine in engines:
            engine.send(b"hello")
            message = await router.receive()
            descriptors.append(message[0].get(zmq.SRCFD))
        engines[1].close(linger=0)

        left: list[int] = []
        with trio.fail_after(5):
            while not left:
                await monitor.wait_event()
                while (event := monitor.event_nowait()) is not None:
                    if event.change is PeerChange.LEFT:
                        left.append(event.descriptor)

        assert left == [descriptors[1]]


async def test_the_file_of_an_ipc_socket_is_removed(context: Context, peers: Peers) -> None:
    address = ipc_address("test")
    path = trio.Path(address.removeprefix("ipc://"))
    with open_receiver(context, address) as receiver:
        assert await path.is_socket()
        peers.pusher(receiver.address).send(b"x")
        assert texts(await receiver.receive()) == [b"x"]

    assert not await path.exists()


def test_an_ipc_path_that_is_too_long_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(tmp_path / ("x" * 100)))

    with pytest.raises(ConfigurationError, match="VLLM_RPC_BASE_PATH"):
        ipc_address("test")


def test_an_address_in_use_is_an_os_error(context: Context) -> None:
    with open_router(context, ANY_PORT) as router, pytest.raises(OSError, match="cannot bind"):
        open_router(context, router.address)


@pytest.mark.skipif(not sockets.has_ipv6, reason="this Python has no IPv6")
async def test_ipv6_works(context: Context, peers: Peers) -> None:
    with open_receiver(context, tcp_address("::1", 0)) as receiver:
        assert receiver.address.startswith("tcp://[::1]:")
        peers.pusher(receiver.address).send(b"x")

        assert texts(await receiver.receive()) == [b"x"]


def listener(kind: str, tmp_path: Path) -> tuple[sockets.socket, str]:
    """Return a listening socket as a supervisor hands it down, and its ZeroMQ address."""
    if kind == "ipc":
        path = str(tmp_path / "inherited")
        made = sockets.socket(sockets.AF_UNIX)
        made.bind(path)
        address = f"ipc://{path}"
    else:
        family, host = (sockets.AF_INET, "127.0.0.1") if kind == "v4" else (sockets.AF_INET6, "::1")
        made = sockets.socket(family)
        made.bind((host, 0))
        address = tcp_address(host, made.getsockname()[1])
    made.listen()
    return made, address


@pytest.mark.parametrize("kind", ["ipc", "v4", "v6"])
async def test_an_inherited_listener_serves_who_connected_before(
    context: Context, peers: Peers, tmp_path: Path, kind: str
) -> None:
    inherited, address = listener(kind, tmp_path)
    engine = peers.dealer(address)
    engine.send(b"hello")
    with open_router(context, "", adopt_fd=inherited.detach()) as router:
        assert texts(await router.receive()) == [ENGINE, b"hello"]
        assert router.address == address
        router.send_nowait(ENGINE, [b"request"])
        assert engine.poll(5000)

    assert not (tmp_path / "inherited").exists() or kind == "ipc", "the supervisor removes it"


def test_a_descriptor_that_is_no_listener_is_refused(context: Context, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(ConfigurationError, match="socket"):
        open_receiver(context, "", adopt_fd=file.fileno())


async def exchange(
    router: MessageRouter, engine: zmq.Socket[bytes], total: int, random: Random
) -> list[int]:
    """Receive *total* numbered messages under random cancellation while others send."""
    received: list[int] = []
    sent = 0
    with trio.fail_after(600):
        while len(received) < total:
            for _ in range(min(random.randrange(4), total - sent)):
                engine.send(b"%d" % sent)
                sent += 1
            if random.random() < 0.5:
                router.send_nowait(ENGINE, [b"noise"])
            if sent == len(received):
                continue
            with trio.move_on_after(random.choice([0, 0, 1e-5, 1])):
                message = await router.receive()
                received.append(int(message[1].bytes))
    return received


async def soak(context: Context, peers: Peers, total: int, seed: int) -> None:
    with open_router(context, ANY_PORT) as router:
        engine = peers.dealer(router.address)
        engine.send(b"0")
        await router.receive()

        received = await exchange(router, engine, total, Random(seed))

        assert received == list(range(total))


async def test_thousands_of_messages_survive_random_cancellation(
    context: Context, peers: Peers
) -> None:
    await soak(context, peers, 5_000, seed=1)


@pytest.mark.slow
async def test_a_million_messages_survive_random_cancellation(
    context: Context, peers: Peers
) -> None:
    await soak(context, peers, 1_000_000, seed=2)

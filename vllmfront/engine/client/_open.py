"""Opening a client: its sockets, its tasks, and their end."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from ipaddress import ip_address

import attrs
import trio

from vllmfront.engine.client._books import Books
from vllmfront.engine.client._client import EngineClient
from vllmfront.engine.client._config import EngineClientConfig
from vllmfront.engine.client._connections import OutputConnections
from vllmfront.engine.client._ids import IdSource
from vllmfront.engine.client._inbox import OutputInbox
from vllmfront.engine.client._link import EngineLink
from vllmfront.engine.client._membership import Membership
from vllmfront.engine.client._reader import OutputReader
from vllmfront.engine.client._turns import at_the_end_of_each_turn
from vllmfront.engine.client._utility import UtilityCalls
from vllmfront.engine.handshake import HandshakeOwner, Roster, watch_start_up
from vllmfront.engine.metrics import EngineMetrics, TerminalCause
from vllmfront.engine.transport import (
    MessageReceiver,
    MessageRouter,
    PeerMonitor,
    host_of,
    ipc_address,
    open_context,
    open_monitor,
    open_receiver,
    open_router,
    resolve_host,
    tcp_address,
)
from vllmfront.engine.wire import EngineAddresses
from vllmfront.errors import ConfigurationError, EngineUnavailable, Reason, StartupFailed

ABORT_LINGER = 100
"""Milliseconds that the last aborts get to leave when a client closes."""


@attrs.frozen(kw_only=True)
class _Sockets:
    handshake: MessageRouter | None
    inputs: MessageRouter
    outputs: MessageReceiver
    input_monitor: PeerMonitor
    output_monitor: PeerMonitor
    handshake_monitor: PeerMonitor | None
    advertised_host: str

    def addresses(self) -> EngineAddresses:
        """Return where engines connect for requests and outputs."""
        return EngineAddresses(
            inputs=[self._advertised(self.inputs.address)],
            outputs=[self._advertised(self.outputs.address)],
        )

    def handshake_address(self) -> str | None:
        """Return where engines say HELLO, None where they do so elsewhere."""
        return None if self.handshake is None else self._advertised(self.handshake.address)

    def files(self) -> list[str]:
        """Return the paths of Unix sockets that exist while the client is open."""
        bound = (self.inputs.address, self.outputs.address)
        return [path.removeprefix("ipc://") for path in bound if path.startswith("ipc://")]

    def _advertised(self, address: str) -> str:
        if not address.startswith("tcp://"):
            return address
        return tcp_address(self.advertised_host, host_of(address)[1])


@asynccontextmanager
async def open_engine_client(
    config: EngineClientConfig, *, metrics: EngineMetrics | None = None
) -> AsyncGenerator[EngineClient, None]:
    """Serve the traffic of the engines in *config* for as long as the block runs.

    The block begins at once, while the engines load: see ``EngineClient.wait_ready``. Engines may
    leave and come back as often as they like. What is in flight at the end is aborted.

    Args:
        config: Who the engines are and where they find us.
        metrics: Counters to go on with, where a client follows another.

    Raises:
        ConfigurationError: A host cannot be resolved, or a descriptor is no listening socket.
        OSError: An address cannot be bound.
        ExceptionGroup: What the block raised, or a StartupFailed because an engine did not join
            in time.
    """
    metrics = metrics or EngineMetrics(enabled=config.count_metrics, bounds=config.histogram_bounds)
    bind_host = await resolve_host(config.handshake_host)
    if config.advertised_host is None and ip_address(bind_host).is_unspecified:
        raise ConfigurationError(
            f"engines cannot connect to {bind_host}; say which address of this host they should use"
        )
    with ExitStack() as stack:
        sockets = _open_sockets(stack, config, bind_host)
        parts = _assemble(config, metrics, sockets)
        stack.enter_context(at_the_end_of_each_turn(parts.books.send_posted))
        async with trio.open_nursery() as nursery:
            _start(nursery, parts.tasks)
            try:
                yield parts.client
            finally:
                closed = EngineUnavailable("The engine client was closed", reason=Reason.DRAINING)
                parts.books.fail_all(closed, TerminalCause.SHUTDOWN)
                nursery.cancel_scope.cancel(reason="the engine client was closed")


@attrs.frozen(kw_only=True)
class _Parts:
    client: EngineClient
    books: Books
    tasks: Sequence[Callable[[], Awaitable[None]]]
    """They run as long as the client is open."""


def _start(nursery: trio.Nursery, tasks: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Start *tasks*, which need not run before anybody relies on them: messages wait."""
    for task in tasks:
        nursery.start_soon(task)


def _assemble(config: EngineClientConfig, metrics: EngineMetrics, sockets: _Sockets) -> _Parts:
    """Connect the parts of a client; nothing runs yet."""
    roster = Roster(config.ranks, owns_handshake=sockets.handshake is not None)
    membership = Membership(
        config.ranks, metrics, sockets.inputs, watches_loading=config.watch_loading
    )
    calls = UtilityCalls(membership)
    books = Books(membership, metrics, IdSource(randomize=config.randomize_ids))
    connections = OutputConnections(sockets.output_monitor, membership)
    inbox = OutputInbox(
        sockets.outputs,
        metrics=metrics,
        calls=calls,
        membership=membership,
        connections=connections,
    )
    reader = OutputReader(inbox, books, membership)
    link = EngineLink(
        sockets.inputs,
        sockets.input_monitor,
        roster=roster,
        membership=membership,
        reader=reader,
    )
    client = EngineClient(
        books=books,
        calls=calls,
        membership=membership,
        metrics=metrics,
        limits=config.limits,
        handshake_address=sockets.handshake_address(),
        socket_files=sockets.files(),
    )
    tasks: list[Callable[[], Awaitable[None]]] = [
        reader.serve,
        connections.serve,
        link.serve_registrations,
        link.serve_departures,
        partial(_watch_start_up, roster, config.ready_timeout, membership),
    ]
    if sockets.handshake is not None and sockets.handshake_monitor is not None:
        owner = HandshakeOwner(
            sockets.handshake,
            sockets.handshake_monitor,
            roster=roster,
            addresses=sockets.addresses(),
            members=membership,
        )
        tasks += [owner.serve_messages, owner.serve_departures]
    return _Parts(client=client, books=books, tasks=tasks)


def _open_sockets(stack: ExitStack, config: EngineClientConfig, bind_host: str) -> _Sockets:
    context = stack.enter_context(open_context())

    def data_address(purpose: str) -> str:
        return ipc_address(purpose) if config.all_local else tcp_address(bind_host, 0)

    handshake = None
    if config.input_fd is None:
        address = tcp_address(bind_host, config.handshake_port)
        handshake = stack.enter_context(open_router(context, address))
    inputs = open_router(context, data_address("i"), adopt_fd=config.input_fd, linger=ABORT_LINGER)
    stack.enter_context(inputs)
    outputs = open_receiver(context, data_address("o"), adopt_fd=config.output_fd)
    stack.enter_context(outputs)
    return _Sockets(
        handshake=handshake,
        inputs=inputs,
        outputs=outputs,
        input_monitor=stack.enter_context(open_monitor(inputs)),
        output_monitor=stack.enter_context(open_monitor(outputs)),
        handshake_monitor=(
            None if handshake is None else stack.enter_context(open_monitor(handshake))
        ),
        advertised_host=config.advertised_host or bind_host,
    )


async def _watch_start_up(roster: Roster, ready_timeout: float, membership: Membership) -> None:
    """Give the client up when its engines do not join in time."""
    try:
        await watch_start_up(roster, ready_timeout)
    except StartupFailed as error:
        membership.start_failed(error)
        raise

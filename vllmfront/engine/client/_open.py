"""Opening a client: its sockets, its tasks, and their end."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from functools import partial
from ipaddress import ip_address

import attrs
import trio
import zmq

from vllmfront.engine.client._books import Books
from vllmfront.engine.client._client import EngineClient
from vllmfront.engine.client._config import EngineClientConfig
from vllmfront.engine.client._connections import OutputConnections
from vllmfront.engine.client._dispatch import Dispatch
from vllmfront.engine.client._entrance import (
    Entrance,
    adopt_entrance,
    open_entrance,
    other_slot,
)
from vllmfront.engine.client._ids import IdSource
from vllmfront.engine.client._inbox import OutputInbox
from vllmfront.engine.client._link import EngineLink
from vllmfront.engine.client._membership import Membership
from vllmfront.engine.client._prepare import Preparation
from vllmfront.engine.client._reader import OutputReader
from vllmfront.engine.client._reception import Reception
from vllmfront.engine.client._reconnection import Reconnections
from vllmfront.engine.client._recovery import Recovery
from vllmfront.engine.client._request_checks import RequestChecks
from vllmfront.engine.client._spare import SpareSlot
from vllmfront.engine.client._stall import StallWatch
from vllmfront.engine.client._succession import EngineLegacy, Succession, inherit
from vllmfront.engine.client._turns import at_the_end_of_each_turn
from vllmfront.engine.client._utility import UtilityCalls
from vllmfront.engine.client._waiting_room import WaitingRoom
from vllmfront.engine.handshake import Roster, watch_restarts, watch_start_up
from vllmfront.engine.metrics import EngineMetrics, TerminalCause
from vllmfront.engine.transport import (
    MessageReceiver,
    MessageRouter,
    PeerMonitor,
    open_context,
    open_monitor,
    open_receiver,
    open_router,
    resolve_host,
)
from vllmfront.errors import ConfigurationError, EngineUnavailable, Reason, StartupFailed

ABORT_LINGER = 100
"""Milliseconds that the last aborts get to leave when a client closes."""


@attrs.frozen(kw_only=True)
class Inheritance:
    """What a client gets from that of the process before it."""

    descriptors: Sequence[int]
    """Listening, in the order of ``Entrance.listeners``; the client owns them."""

    legacy: EngineLegacy


@attrs.frozen(kw_only=True)
class _Sockets:
    context: zmq.Context[zmq.Socket[bytes]]
    entrance: Entrance | None
    """None where somebody else does the handshake."""

    slot: int
    inputs: MessageRouter
    outputs: MessageReceiver
    input_monitor: PeerMonitor
    output_monitor: PeerMonitor


@asynccontextmanager
async def open_engine_client(
    config: EngineClientConfig,
    *,
    metrics: EngineMetrics | None = None,
    inheritance: Inheritance | None = None,
) -> AsyncGenerator[EngineClient, None]:
    """Serve the traffic of the engines in *config* for as long as the block runs.

    The block begins at once, while the engines load: see ``EngineClient.wait_ready``. Engines may
    leave and come back as often as they like. What is in flight at the end is aborted.

    Args:
        config: Who the engines are and where they find us.
        metrics: Counters to go on with, where a client follows another.
        inheritance: The engines of a client in another process, which may serve on for a while;
            see ``EngineClient.succession``.

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
        sockets = _open_sockets(stack, config, bind_host, inheritance)
        parts = _assemble(config, metrics, sockets, inheritance)
        stack.enter_context(at_the_end_of_each_turn(parts.dispatch.send_posted))
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
    dispatch: Dispatch
    tasks: Sequence[Callable[[], Awaitable[None]]]
    """They run as long as the client is open."""


def _start(nursery: trio.Nursery, tasks: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Start *tasks*, which need not run before anybody relies on them: messages wait."""
    for task in tasks:
        nursery.start_soon(task)


def _assemble(
    config: EngineClientConfig,
    metrics: EngineMetrics,
    sockets: _Sockets,
    inheritance: Inheritance | None,
) -> _Parts:
    """Connect the parts of a client; nothing runs yet."""
    entrance = sockets.entrance
    roster = Roster(config.ranks, owns_handshake=entrance is not None)
    membership = Membership(
        config.ranks, metrics, sockets.inputs, watches_loading=config.watch_loading
    )
    calls = UtilityCalls(membership, client_index=sockets.slot)
    checks = RequestChecks(config.limits, membership)
    books = Books(membership, metrics, WaitingRoom(config.recovery_wait))
    ids = IdSource(randomize=config.randomize_ids)
    dispatch = Dispatch(books, membership, ids, client_index=sockets.slot)
    recovery = Recovery(books, dispatch, membership, checks, retries=config.request_retries)
    stalls = StallWatch(
        membership, calls, stall_after=config.stall_timeout, lose_after=config.stall_restart
    )
    connections = OutputConnections(sockets.output_monitor, membership)
    inbox = OutputInbox(
        sockets.outputs,
        metrics=metrics,
        calls=calls,
        membership=membership,
        connections=connections,
    )
    reader = OutputReader(inbox, books, membership)
    reconnections = Reconnections(membership)
    link = EngineLink(
        sockets.inputs,
        sockets.input_monitor,
        roster=roster,
        membership=membership,
        reader=reader,
        reconnections=reconnections,
    )
    tasks: list[Callable[[], Awaitable[None]]] = [
        reader.serve,
        connections.serve,
        link.serve_registrations,
        link.serve_departures,
        link.serve_doubts,
        reconnections.serve,
        recovery.serve,
        stalls.serve,
        partial(books.deadlines.serve, books.expire),
    ]
    succession = None
    if entrance is not None:
        succession = _succession(entrance, sockets, roster, membership, inbox)
        tasks += succession.tasks
    if inheritance is None:
        tasks.append(partial(_watch_start_up, roster, config.ready_timeout, membership))
        if succession is not None:
            succession.lead()
    else:
        assert succession is not None
        inherit(inheritance.legacy, roster, membership)
        tasks.append(partial(watch_restarts, roster, config.ready_timeout, membership))
        succession.receive()
    client = EngineClient(
        books=books,
        calls=calls,
        checks=checks,
        dispatch=dispatch,
        membership=membership,
        metrics=metrics,
        preparation=Preparation(checks, dispatch, membership, continuation=config.continuation),
        roster=roster,
        stalls=stalls,
        succession=succession,
    )
    return _Parts(client=client, books=books, dispatch=dispatch, tasks=tasks)


def _succession(
    entrance: Entrance,
    sockets: _Sockets,
    roster: Roster,
    membership: Membership,
    inbox: OutputInbox,
) -> Succession:
    free = entrance.slots[other_slot(sockets.slot)]
    return Succession(
        entrance,
        sockets.slot,
        roster=roster,
        membership=membership,
        reception=Reception(sockets.context, entrance, roster=roster, members=membership),
        spare=SpareSlot(sockets.context, free, inbox=inbox, membership=membership),
    )


def _open_sockets(
    stack: ExitStack,
    config: EngineClientConfig,
    bind_host: str,
    inheritance: Inheritance | None,
) -> _Sockets:
    context = stack.enter_context(open_context())
    slot, entrance = 0, None
    input_fd, output_fd = config.input_fd, config.output_fd
    if input_fd is None or output_fd is None:
        entrance = stack.enter_context(_open_entrance(config, bind_host, inheritance))
        slot = inheritance.legacy.slot if inheritance is not None else 0
        own = entrance.slots[slot]
        input_fd, output_fd = own.inputs.duplicate(), own.outputs.duplicate()
    inputs = stack.enter_context(open_router(context, "", adopt_fd=input_fd, linger=ABORT_LINGER))
    outputs = stack.enter_context(open_receiver(context, "", adopt_fd=output_fd))
    return _Sockets(
        context=context,
        entrance=entrance,
        slot=slot,
        inputs=inputs,
        outputs=outputs,
        input_monitor=stack.enter_context(open_monitor(inputs)),
        output_monitor=stack.enter_context(open_monitor(outputs)),
    )


def _open_entrance(
    config: EngineClientConfig, bind_host: str, inheritance: Inheritance | None
) -> AbstractContextManager[Entrance]:
    advertised = config.advertised_host or bind_host
    if inheritance is not None:
        return adopt_entrance(inheritance.descriptors, advertised)
    return open_entrance(
        bind_host, config.handshake_port, advertised_host=advertised, local=config.all_local
    )


async def _watch_start_up(roster: Roster, ready_timeout: float, membership: Membership) -> None:
    """Give the client up when its engines do not join in time, and later one that does not."""
    try:
        await watch_start_up(roster, ready_timeout)
    except StartupFailed as error:
        membership.give_up(error)
        raise
    await watch_restarts(roster, ready_timeout, membership)

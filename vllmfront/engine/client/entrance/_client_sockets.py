"""A client's sockets, and where engines find them."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import attrs
import zmq

from vllmfront.engine.client._config import EngineClientConfig
from vllmfront.engine.client.entrance._entrance import (
    Entrance,
    adopt_entrance,
    open_entrance,
    open_slot,
)
from vllmfront.engine.client.entrance._lasting import open_lasting
from vllmfront.engine.client.entrance._saved import SavedState
from vllmfront.engine.client.entrance._state_file import StateFile
from vllmfront.engine.client.entrance._succession import EngineLegacy
from vllmfront.engine.handshake import ClientAddresses
from vllmfront.engine.transport import (
    MessageReceiver,
    MessageRouter,
    PeerMonitor,
    open_context,
    open_monitor,
    open_receiver,
    open_router,
)

ABORT_LINGER = 100
"""Milliseconds that the last aborts get to leave when a client closes."""


@attrs.frozen(kw_only=True)
class Inheritance:
    """What a client gets from that of the process before it."""

    descriptors: Sequence[int]
    """Listening, in the order of ``Entrance.listeners``; the client owns them."""

    legacy: EngineLegacy


@attrs.frozen(kw_only=True)
class ClientSockets:
    """What one client holds for as long as it is open."""

    context: zmq.Context[zmq.Socket[bytes]]
    entrance: Entrance | None
    """None where somebody else does the handshake."""

    slot: int
    """The place of its addresses among those that engines were told: its ``client_index``."""

    record: StateFile | None
    """Where engines are kept for a process that is started after this one."""

    saved: SavedState | None
    """What an earlier process has left there."""

    guest: ClientAddresses | None
    """Where engines reach us that hear of it from the first frontend of the deployment."""

    inputs: MessageRouter
    outputs: MessageReceiver
    input_monitor: PeerMonitor
    output_monitor: PeerMonitor


@contextmanager
def open_client_sockets(
    config: EngineClientConfig, bind_host: str, inheritance: Inheritance | None
) -> Iterator[ClientSockets]:
    """Hold the sockets that engines connect to for the block.

    Args:
        config: Who the engines are.
        bind_host: Numeric.
        inheritance: What a client in another process leaves; None binds new addresses.

    Raises:
        ConfigurationError: A descriptor is no listening socket, or an address cannot be bound.
    """
    with ExitStack() as stack:
        context = stack.enter_context(open_context())
        slot, entrance = config.client_index, None
        record, saved = None, None
        if config.state_file is not None:
            record = stack.enter_context(StateFile(config.state_file))
        input_fd, output_fd = config.input_fd, config.output_fd
        guest = None
        if config.deployment is not None and config.deployment.first_frontend is not None:
            slot = config.start_rank // config.engine_count
            own = stack.enter_context(open_slot(bind_host))
            guest = own.addresses(bind_host)
            input_fd, output_fd = own.inputs.duplicate(), own.outputs.duplicate()
        if input_fd is None or output_fd is None:
            if record is not None and inheritance is None:
                found = stack.enter_context(open_lasting(config, record, bind_host))
                entrance, saved = found.entrance, found.saved
            else:
                entrance = stack.enter_context(_open_entrance(config, bind_host, inheritance))
            # A new process begins in the first slot, whatever earlier ones had begun there: that
            # has other ids, and engines are told to drop it.
            slot = 0 if inheritance is None else inheritance.legacy.slot
            own = entrance.slots[slot]
            input_fd, output_fd = own.inputs.duplicate(), own.outputs.duplicate()
        inputs = stack.enter_context(
            open_router(context, "", adopt_fd=input_fd, linger=ABORT_LINGER)
        )
        outputs = stack.enter_context(open_receiver(context, "", adopt_fd=output_fd))
        yield ClientSockets(
            context=context,
            entrance=entrance,
            slot=slot,
            record=record,
            saved=saved,
            guest=guest,
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
        return adopt_entrance(
            inheritance.descriptors, advertised, coordinated=inheritance.legacy.coordinated
        )
    return open_entrance(
        bind_host,
        config.handshake_port,
        advertised_host=advertised,
        local=config.all_local,
        workers=config.workers,
        coordinated=config.coordinated,
    )

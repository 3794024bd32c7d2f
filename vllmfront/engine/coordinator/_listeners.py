"""Where a coordinator is found."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import zmq

from vllmfront.engine.handshake import CoordinatorAddresses
from vllmfront.engine.transport import (
    MessagePublisher,
    MessageReceiver,
    SharedListener,
    host_of,
    ipc_address,
    listen_ipc,
    listen_tcp,
    open_publisher,
    open_receiver,
    tcp_address,
)

COORDINATOR_LISTENERS = 3


@attrs.frozen
class CoordinatorListeners:
    """They outlive whoever serves them: engines are told their addresses once in their life."""

    wake_ups: SharedListener
    """What engines subscribe to."""

    reports: SharedListener
    """Where engines say what they do."""

    frontends: SharedListener
    """What frontends subscribe to."""

    @property
    def all(self) -> Sequence[SharedListener]:
        """In the order in which a successor gets their descriptors."""
        return [self.wake_ups, self.reports, self.frontends]

    def addresses(self, advertised_host: str) -> CoordinatorAddresses:
        """Return what engines are told, where this host is known as *advertised_host*."""
        inputs, outputs, stats = (_advertised(each, advertised_host) for each in self.all)
        return CoordinatorAddresses(inputs=inputs, outputs=outputs, stats=stats)


def _advertised(listener: SharedListener, host: str) -> str:
    if not listener.address.startswith("tcp://"):
        return listener.address
    return tcp_address(host, host_of(listener.address)[1])


@contextmanager
def open_coordinator_listeners(bind_host: str, *, local: bool) -> Iterator[CoordinatorListeners]:
    """Listen for engines and frontends for the block.

    Args:
        bind_host: Numeric.
        local: All of them run on this host: use Unix sockets.

    Raises:
        ConfigurationError: An address cannot be bound, or the folder of Unix sockets has too long
            a name.
    """
    with contextlib.ExitStack() as stack:

        def listener(purpose: str) -> SharedListener:
            made = listen_ipc(ipc_address(purpose)) if local else listen_tcp(bind_host, 0)
            return stack.enter_context(made)

        yield CoordinatorListeners(listener("w"), listener("r"), listener("f"))


@contextmanager
def adopt_coordinator_listeners(descriptors: Sequence[int]) -> Iterator[CoordinatorListeners]:
    """Take over the listeners of a predecessor, in the order of ``CoordinatorListeners.all``.

    Raises:
        ConfigurationError: One of the descriptors is no listening socket.
    """
    with contextlib.ExitStack() as stack:
        adopted = [SharedListener(fd, owns_file=False) for fd in descriptors]
        wake_ups, reports, frontends = map(stack.enter_context, adopted)
        yield CoordinatorListeners(wake_ups, reports, frontends)


@attrs.frozen
class CoordinatorSockets:
    """What a coordinator holds while it serves."""

    engines: MessagePublisher
    reports: MessageReceiver
    frontends: MessagePublisher


@contextmanager
def open_coordinator_sockets(
    context: zmq.Context[zmq.Socket[bytes]], listeners: CoordinatorListeners
) -> Iterator[CoordinatorSockets]:
    """Serve *listeners* for the block."""
    engines, reports, frontends = (each.duplicate() for each in listeners.all)
    with (
        open_publisher(context, "", adopt_fd=engines, by_hand=True) as wake_ups,
        open_receiver(context, "", adopt_fd=reports) as receiver,
        open_publisher(context, "", adopt_fd=frontends) as front,
    ):
        yield CoordinatorSockets(wake_ups, receiver, front)

"""Where engines connect: the handshake, and two slots for each client, which uses one at a time.

Engines are told the addresses of all slots, once in their life, and stay connected to them. The
slot that a client does not use is the way in for the client of another process, which takes over
while this one still serves what it has begun. The first slots of all clients come first, then the
second ones, so that without such a change a client's index is its place among the clients.
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs

from vllmfront.engine.coordinator import (
    COORDINATOR_LISTENERS,
    CoordinatorListeners,
    adopt_coordinator_listeners,
    open_coordinator_listeners,
)
from vllmfront.engine.handshake import ClientAddresses, CoordinatorAddresses
from vllmfront.engine.transport import (
    SharedListener,
    host_of,
    ipc_address,
    listen_ipc,
    listen_lasting,
    listen_tcp,
    tcp_address,
)

SLOTS = 2
"""Of each client."""


def other_slot(slot: int, clients: int = 1) -> int:
    """Return the slot that a client which uses *slot* leaves free, among *clients* like it."""
    return (slot + clients) % (SLOTS * clients)


@attrs.frozen
class Slot:
    """One client's pair of addresses; its place in the entrance is the ``client_index``."""

    inputs: SharedListener
    outputs: SharedListener

    def addresses(self, advertised_host: str) -> ClientAddresses:
        """Return where engines connect that know us as *advertised_host*."""
        return ClientAddresses(
            _advertised(self.inputs, advertised_host), _advertised(self.outputs, advertised_host)
        )


@attrs.frozen(kw_only=True)
class Entrance:
    """All listening sockets for engines; they outlive the client that opened them."""

    handshake: SharedListener
    slots: Sequence[Slot]
    advertised_host: str
    """What engines are told to connect to."""

    coordinator: CoordinatorListeners | None = None
    """Where engines that step together meet, if there are such."""

    def addresses(self) -> list[ClientAddresses]:
        """Return where engines connect for requests and outputs, in order of client index."""
        return [slot.addresses(self.advertised_host) for slot in self.slots]

    def coordinator_addresses(self) -> CoordinatorAddresses | None:
        """Return where engines meet; None where they need not."""
        coordinator = self.coordinator
        return None if coordinator is None else coordinator.addresses(self.advertised_host)

    @property
    def handshake_address(self) -> str:
        """Where engines say HELLO."""
        return _advertised(self.handshake, self.advertised_host)

    @property
    def listeners(self) -> Sequence[SharedListener]:
        """All of them, in the order in which a successor gets their descriptors."""
        return [
            self.handshake,
            *(() if self.coordinator is None else self.coordinator.all),
            *(each for slot in self.slots for each in (slot.inputs, slot.outputs)),
        ]

    def files(self) -> list[str]:
        """Return the paths of Unix sockets, which the last generation removes."""
        addresses = [each.address for each in self.listeners]
        return [one.removeprefix("ipc://") for one in addresses if one.startswith("ipc://")]

    def leave_files(self, *, leave: bool) -> None:
        """Let somebody else remove the files, or do so again."""
        for each in self.listeners:
            each.owns_file = not leave


def _advertised(listener: SharedListener, host: str) -> str:
    if not listener.address.startswith("tcp://"):
        return listener.address
    return tcp_address(host, host_of(listener.address)[1])


@contextmanager
def open_slot(bind_host: str) -> Iterator[Slot]:
    """Listen at a numeric host for engines, as one client of several, for the block.

    Raises:
        ConfigurationError: An address cannot be bound.
    """
    with listen_tcp(bind_host, 0) as inputs, listen_tcp(bind_host, 0) as outputs:
        yield Slot(inputs, outputs)


@contextmanager
def open_entrance(
    bind_host: str,
    handshake_port: int,
    *,
    advertised_host: str,
    local: bool,
    clients: int = 1,
    workers: int = 0,
    coordinated: bool = False,
) -> Iterator[Entrance]:
    """Listen for engines for the block.

    Args:
        bind_host: Numeric.
        handshake_port: 0 takes any free one.
        advertised_host: What engines are told.
        local: Use Unix sockets for the slots.
        clients: How many there are, each of which gets slots.
        workers: How many other processes of this server there are; each gets one slot, which
            follow those of the clients.
        coordinated: Whether the engines step together, and meet here.

    Raises:
        ConfigurationError: An address cannot be bound, or the folder of Unix sockets has too long
            a name.
    """
    with contextlib.ExitStack() as stack:

        def slot_listener(purpose: str) -> SharedListener:
            made = listen_ipc(ipc_address(purpose)) if local else listen_tcp(bind_host, 0)
            return stack.enter_context(made)

        handshake = stack.enter_context(listen_tcp(bind_host, handshake_port))
        coordinator = None
        if coordinated:
            coordinator = stack.enter_context(open_coordinator_listeners(bind_host, local=local))
        yield Entrance(
            handshake=handshake,
            slots=[
                Slot(slot_listener("i"), slot_listener("o"))
                for _ in range(SLOTS * clients + workers)
            ],
            advertised_host=advertised_host,
            coordinator=coordinator,
        )


@contextmanager
def open_lasting_entrance(
    bind_host: str,
    handshake_port: int,
    *,
    advertised_host: str,
    ports: Sequence[tuple[int, int]] = (),
    clients: int = 1,
    coordinator_ports: Sequence[int] | None = None,
) -> Iterator[Entrance]:
    """Listen for engines for the block, over TCP, where a later process can listen again.

    Args:
        bind_host: Numeric.
        handshake_port: One that is in no other use.
        advertised_host: What engines are told.
        ports: Of each slot, for inputs and outputs, where engines were told them before; empty
            chooses.
        clients: How many there are, each of which gets slots.
        coordinator_ports: Where engines that step together met before, in the order of
            ``CoordinatorListeners.all``; zeros choose, None is for engines that do not.

    Raises:
        ConfigurationError: An address cannot be bound.
    """
    with contextlib.ExitStack() as stack:

        def listener(port: int) -> SharedListener:
            made = listen_tcp(bind_host, port) if port else listen_lasting(bind_host)
            return stack.enter_context(made)

        handshake = stack.enter_context(listen_tcp(bind_host, handshake_port))
        pairs = ports or [(0, 0)] * (SLOTS * clients)
        listeners = [listener(port) for pair in pairs for port in pair]
        coordinator = None
        if coordinator_ports is not None:
            coordinator = CoordinatorListeners(*map(listener, coordinator_ports))
        yield Entrance(
            handshake=handshake,
            slots=[Slot(*pair) for pair in zip(listeners[::2], listeners[1::2], strict=True)],
            advertised_host=advertised_host,
            coordinator=coordinator,
        )


@contextmanager
def adopt_entrance(
    descriptors: Sequence[int], advertised_host: str, *, coordinated: bool = False
) -> Iterator[Entrance]:
    """Take over the listening sockets of a predecessor, in the order of ``Entrance.listeners``.

    The files are left to whoever is alone in the end: see ``Entrance.leave_files``.

    Raises:
        ConfigurationError: One of the descriptors is no listening socket.
    """
    with contextlib.ExitStack() as stack:
        coordinator = None
        if coordinated:
            first, descriptors = descriptors[:1], descriptors[1:]
            meeting = descriptors[:COORDINATOR_LISTENERS]
            coordinator = stack.enter_context(adopt_coordinator_listeners(meeting))
            descriptors = [*first, *descriptors[COORDINATOR_LISTENERS:]]
        adopted = [SharedListener(fd, owns_file=False) for fd in descriptors]
        handshake, *others = map(stack.enter_context, adopted)
        pairs = zip(others[::2], others[1::2], strict=True)
        yield Entrance(
            handshake=handshake,
            slots=[Slot(*pair) for pair in pairs],
            advertised_host=advertised_host,
            coordinator=coordinator,
        )

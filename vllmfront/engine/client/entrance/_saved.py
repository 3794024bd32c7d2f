"""What a frontend leaves in a file for the next one on the same engines, and its form there.

Engines hear their addresses once, and register once. So whoever follows a frontend that has
stopped, or was killed, needs both from it.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import attrs
import msgspec

from vllmfront.engine.client.entrance._entrance import SLOTS
from vllmfront.engine.coordinator import COORDINATOR_LISTENERS
from vllmfront.engine.wire import Registration, decode_registration, encode_registration
from vllmfront.errors import ProtocolError, VllmFrontError

VERSION = 2
"""Of the form; a file of another one is of no use."""


class UnusableState(VllmFrontError):
    """Raised when a file is not what a frontend of this version leaves."""


@attrs.frozen(kw_only=True)
class SavedEngine:
    """An engine that serves, or that did when its connection broke."""

    registration: Registration
    connected: bool = True
    """False where its connection had broken: it may have come to an end."""

    paused_by_us: bool = False
    """Whether it is paused only because a frontend was about to drop what it was working on."""


@attrs.frozen(kw_only=True)
class SavedState:
    """Where engines connect, and who they are."""

    handshake_address: str
    ports: Sequence[tuple[int, int]]
    """Of each slot, for inputs and for outputs."""

    coordinator_ports: Sequence[int] = ()
    """Of the coordinator of engines that step together, in the order of its listeners; empty
    where they do not."""

    first_id: int
    """Where the count of request ids began."""

    engines: Mapping[int, SavedEngine] = attrs.field(factory=dict)
    control: Mapping[str, Any] | None = None
    """What whoever gives orders to the engines wants the next process to know: plain data."""


_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
_Pair = tuple[_Port, _Port]


class _EngineForm(msgspec.Struct, forbid_unknown_fields=True):
    registration: bytes
    connected: bool
    paused_by_us: bool


class _Form(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    handshake_address: str
    ports: Annotated[list[_Pair], msgspec.Meta(min_length=SLOTS)]
    coordinator_ports: Annotated[list[_Port], msgspec.Meta(max_length=COORDINATOR_LISTENERS)]
    first_id: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    engines: dict[Annotated[int, msgspec.Meta(ge=0, lt=2**16)], _EngineForm]
    control: dict[str, Any] | None


class _Version(msgspec.Struct):
    version: int


def encode_state(state: SavedState) -> bytes:
    """Return the file's content."""
    form = _Form(
        version=VERSION,
        handshake_address=state.handshake_address,
        ports=list(state.ports),
        coordinator_ports=list(state.coordinator_ports),
        first_id=state.first_id,
        engines={
            rank: _EngineForm(
                encode_registration(one.registration), one.connected, one.paused_by_us
            )
            for rank, one in state.engines.items()
        },
        control=None if state.control is None else dict(state.control),
    )
    return msgspec.json.format(msgspec.json.encode(form)) + b"\n"


def decode_state(data: bytes, handshake_address: str) -> SavedState:
    """Read a file's content.

    Args:
        data: The content.
        handshake_address: Where engines find us; those that were told another one cannot.

    Raises:
        UnusableState: It is of another version, about other engines, damaged, or something else.
    """
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            raise UnusableState(f"it is of version {version}, not {VERSION}")
        form = msgspec.json.decode(data, type=_Form)
        if form.handshake_address != handshake_address:
            raise UnusableState(f"it is about engines at {form.handshake_address}")
        ports = [port for pair in form.ports for port in pair] + form.coordinator_ports
        if len(set(ports)) < len(ports):
            raise UnusableState(f"it names one port for two purposes: {ports}")
        if len(form.coordinator_ports) not in {0, COORDINATOR_LISTENERS}:
            raise UnusableState(f"a coordinator has no {len(form.coordinator_ports)} ports")
        return SavedState(
            handshake_address=form.handshake_address,
            ports=form.ports,
            coordinator_ports=form.coordinator_ports,
            first_id=form.first_id,
            engines={
                rank: SavedEngine(
                    registration=decode_registration(one.registration),
                    connected=one.connected,
                    paused_by_us=one.paused_by_us,
                )
                for rank, one in form.engines.items()
            },
            control=form.control,
        )
    except (msgspec.DecodeError, ProtocolError, RecursionError) as error:
        raise UnusableState(f"it is damaged: {error}") from error

"""What one generation passes on to the next, and its form on the line between them.

Counters and gauges are not part of it: they begin at zero in each generation, as after a restart.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from vllmfront.control import ControlLegacy, decode_control, encode_control
from vllmfront.engine import EngineLegacy, Inheritance
from vllmfront.engine.wire import (
    decode_lora,
    decode_registration,
    encode_lora,
    encode_registration,
)
from vllmfront.errors import ProtocolError
from vllmfront.lifecycles.upgrade._channel import ChannelBroken, Message
from vllmfront.supervisor import ProcessHandle

VERSION = 2
"""Of the form below; generations that differ in it cannot follow each other."""


@attrs.frozen(kw_only=True)
class HeldListener:
    """A socket that HTTP clients connect to."""

    descriptor: int
    name: str
    unlink: tuple[str, int, int] | None = None
    """A Unix socket's path, and the device and inode that make it ours."""


@attrs.frozen(kw_only=True)
class Estate:
    """Everything that outlives a generation; descriptors are numbers in this process."""

    listeners: Sequence[HeldListener]
    engines: Inheritance
    processes: Mapping[str, ProcessHandle] = attrs.field(factory=dict)
    """Those that run managed engines, by name."""

    control: ControlLegacy = attrs.field(factory=ControlLegacy)
    """What holds generation back, and what is known of weights."""

    @property
    def descriptors(self) -> list[int]:
        """All of them: HTTP's, the engines', the process's."""
        own = [each.descriptor for each in self.listeners]
        pipes = [pipe for each in self.processes.values() for pipe in (each.control, each.reports)]
        return [*own, *self.engines.descriptors, *pipes]


def encode_estate(estate: Estate) -> Mapping[str, Any]:
    """Return the fields of the message that carries *estate*, beside its descriptors."""
    legacy = estate.engines.legacy
    return {
        "version": VERSION,
        "listeners": [{"name": each.name, "unlink": each.unlink} for each in estate.listeners],
        "slot": legacy.slot,
        "coordinated": legacy.coordinated,
        "registrations": {
            str(rank): base64.b64encode(encode_registration(registration)).decode()
            for rank, registration in legacy.registrations.items()
        },
        "lost": {str(rank): reason for rank, reason in legacy.lost.items()},
        "adapters": [encode_lora(lora) for lora in legacy.adapters],
        "last_adapter_id": legacy.last_adapter_id,
        "processes": {name: attrs.asdict(each) for name, each in estate.processes.items()},
        "control": encode_control(estate.control),
    }


def decode_estate(message: Message) -> Estate:
    """Read what another generation passes on.

    Raises:
        ChannelBroken: It is in another form.
    """
    fields = message.fields
    if fields.get("version") != VERSION:
        raise ChannelBroken(
            f"the running process passes its sockets on in form {fields.get('version')!r}, this "
            f"one takes them in form {VERSION}: restart instead"
        )
    try:
        return _decode(fields, message.descriptors)
    except (KeyError, TypeError, ValueError, AttributeError, ProtocolError) as error:
        raise ChannelBroken(
            f"the running process passes on what makes no sense: {error}"
        ) from error


def _decode(fields: Mapping[str, Any], descriptors: Sequence[int]) -> Estate:
    count = len(fields["listeners"])
    own, others = descriptors[:count], list(descriptors[count:])
    processes = {}
    for name, each in reversed(fields["processes"].items()):
        control, reports = others[-2:]
        processes[name] = ProcessHandle(**{**each, "control": control, "reports": reports})
        others = others[:-2]
    legacy = EngineLegacy(
        slot=fields["slot"],
        registrations={
            int(rank): decode_registration(base64.b64decode(data))
            for rank, data in fields["registrations"].items()
        },
        lost={int(rank): reason for rank, reason in fields["lost"].items()},
        coordinated=fields.get("coordinated") is True,
        adapters=tuple(decode_lora(lora) for lora in fields.get("adapters", ())),
        last_adapter_id=int(fields.get("last_adapter_id", 0)),
    )
    return Estate(
        listeners=[
            HeldListener(
                descriptor=fd,
                name=each["name"],
                unlink=None if each["unlink"] is None else tuple(each["unlink"]),
            )
            for fd, each in zip(own, fields["listeners"], strict=True)
        ],
        engines=Inheritance(descriptors=others, legacy=legacy),
        processes=dict(reversed(processes.items())),
        control=decode_control(fields["control"]) if "control" in fields else ControlLegacy(),
    )

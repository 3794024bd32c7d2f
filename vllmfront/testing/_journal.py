"""What has happened to engines: a line of JSON each, so that others can judge by it."""

from pathlib import Path

import attrs
import msgspec

from vllmfront.testing._fault import FaultKind
from vllmfront.testing._faulty_rim import Incident


@attrs.frozen(kw_only=True)
class JournalEntry:
    """A fault that has happened, or that an engine has become ready."""

    rank: int
    life: int
    kind: FaultKind | None
    """None: the engine has become ready."""

    wall_time: float
    """Seconds since the epoch: the same for all processes of a machine."""

    seconds: float = 0.0
    """How long it lasts, where it does."""

    request_ids: tuple[str, ...] = ()
    """The engine's ids of the requests that were tampered with."""


def journal_line(incident: Incident, wall_time: float) -> str:
    """Return the line for one incident, without its end."""
    fault = incident.fault
    entry = JournalEntry(
        rank=incident.rank,
        life=incident.life,
        kind=None if fault is None else fault.kind,
        wall_time=wall_time,
        seconds=0.0 if fault is None else fault.seconds,
        request_ids=tuple(incident.request_ids),
    )
    return msgspec.json.encode(entry).decode()


def read_journal(path: Path) -> list[JournalEntry]:
    """Return what has happened so far; nothing where there is no journal yet."""
    if not path.exists():
        return []
    whole_lines = path.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=JournalEntry) for line in whole_lines]

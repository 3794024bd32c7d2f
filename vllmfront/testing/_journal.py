"""Which faults have happened: a line of JSON for each, so that others can judge by them."""

from pathlib import Path

import attrs
import msgspec

from vllmfront.testing._fault import FaultKind
from vllmfront.testing._faulty_rim import Injected


@attrs.frozen(kw_only=True)
class JournalEntry:
    """A fault that has happened."""

    rank: int
    life: int
    kind: FaultKind
    wall_time: float
    """Seconds since the epoch: the same for all processes of a machine."""

    seconds: float = 0.0
    """How long it lasts, where it does."""

    request_ids: tuple[str, ...] = ()
    """The engine's ids of the requests that were tampered with."""


def journal_line(injected: Injected, wall_time: float) -> str:
    """Return the line for one fault, without its end."""
    entry = JournalEntry(
        rank=injected.rank,
        life=injected.life,
        kind=injected.fault.kind,
        wall_time=wall_time,
        seconds=injected.fault.seconds,
        request_ids=tuple(injected.request_ids),
    )
    return msgspec.json.encode(entry).decode()


def read_journal(path: Path) -> list[JournalEntry]:
    """Return what has happened so far; nothing where there is no journal yet."""
    if not path.exists():
        return []
    whole_lines = path.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=JournalEntry) for line in whole_lines]

"""When engines were away, and which requests were tampered with: from journals and exits."""

from collections import defaultdict
from collections.abc import Iterable

import attrs

from vllmfront.testing import DEADLY, TAMPERING, FaultKind, JournalEntry

BEFORE = 0.3
"""Seconds by which the news of an end may be late."""

AFTER = 1.5
"""Seconds that a frontend may take until it has heard that an engine is back, on a busy machine."""

PUBLIC_ID_END = 9
"""A frontend ends the engine's ids with a dash and eight digits of its own."""


@attrs.frozen
class Exit:
    """The end of a process, as it was seen from outside."""

    time: float
    life: int


@attrs.frozen
class Outage:
    """When an engine could not be relied upon, in seconds since the epoch."""

    begin: float
    end: float

    def touches(self, began: float, ended: float) -> bool:
        return self.begin - BEFORE <= ended and began <= self.end + AFTER


def outages(entries: Iterable[JournalEntry], exits: Iterable[Exit], now: float) -> list[Outage]:
    """Return the outages of one rank up to *now*.

    Args:
        entries: The rank's journal.
        exits: When its processes were seen to have ended.
        now: Where an outage ends that still goes on.
    """
    news = [(entry.wall_time, entry.kind is None) for entry in entries if _matters(entry)]
    news += [(one.time, False) for one in exits]
    found: list[Outage] = []
    down_since: float | None = 0.0
    for time, is_up in sorted(news):
        if not is_up:
            down_since = time if down_since is None else down_since
        elif down_since is not None:
            found.append(Outage(down_since, time))
            down_since = None
    if down_since is not None:
        found.append(Outage(down_since, now))
    return found


def _matters(entry: JournalEntry) -> bool:
    return entry.kind is None or entry.kind in DEADLY


def tampered(entries: Iterable[JournalEntry]) -> dict[str, frozenset[FaultKind]]:
    """Return what was done to which requests, by clients' own ids."""
    found = defaultdict[str, set[FaultKind]](set)
    for entry in entries:
        if entry.kind in TAMPERING:
            for internal_id in entry.request_ids:
                found[public_id(internal_id)].add(entry.kind)
    return {request_id: frozenset(kinds) for request_id, kinds in found.items()}


def breaks(
    entries: Iterable[JournalEntry], exits: Iterable[Exit], began: float, ended: float
) -> int:
    """Return how often a rank was lost, or said something unreadable, in a span of time."""
    first, last = began - BEFORE, ended + BEFORE
    now = [entry for entry in entries if first <= entry.wall_time <= last]
    ends = {entry.life for entry in now if entry.kind in DEADLY}
    ends |= {one.life for one in exits if first <= one.time <= last}
    return len(ends) + sum(entry.kind is FaultKind.GARBLE for entry in now)


def public_id(internal_id: str) -> str:
    """Return a client's id without what the frontend puts around it."""
    return internal_id[:-PUBLIC_ID_END].partition("-")[2]

"""Where we answer otherwise than the peer, on purpose; docs/compatibility.md gives the reasons."""

import fnmatch

import attrs


@attrs.frozen
class Deviation:
    """A set of cases whose answers differ."""

    pattern: str
    reason: str
    message_only: bool = False
    """Status, type, param and code are equal; only the error's sentence differs."""


DEVIATIONS: tuple[Deviation, ...] = ()


def deviation_of(name: str) -> Deviation | None:
    """Return the first deviation that covers the case *name*."""
    for deviation in DEVIATIONS:
        if fnmatch.fnmatchcase(name, deviation.pattern):
            return deviation
    return None

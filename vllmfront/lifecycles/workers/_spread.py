"""Which worker gets the next connection: pure.

Connections are dealt out one by one, so it does not matter whom the kernel would have woken. Each
goes to one of those that have the fewest; where several have about as few, to the one with the
least to do. So connections stay even, and the work that they bring evens out as they come.
"""

from collections.abc import Sequence

import attrs

SLACK = 0.05
"""How many connections more than the fewest, as a share, a worker may have and still get the next:
the freedom to even out the work."""

LATE_SECONDS = 1.0
"""Without a turn of its event loop for so long, a worker gets nothing while others do turn."""


@attrs.frozen(kw_only=True)
class Candidate:
    """A worker that accepts connections."""

    number: int
    connections: int
    choices: int
    """Of requests in flight."""

    silent: float = 0.0
    """Seconds since its event loop last turned."""


def choose(candidates: Sequence[Candidate]) -> int | None:
    """Return the number of the worker that gets the next connection; None: there is none."""
    if not candidates:
        return None
    awake = [one for one in candidates if one.silent < LATE_SECONDS] or candidates
    fewest = min(one.connections for one in awake)
    most = fewest + int(fewest * SLACK)
    even = [one for one in awake if one.connections <= most]
    return min(even, key=lambda one: (one.choices, one.connections, one.number)).number

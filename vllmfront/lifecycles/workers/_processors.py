"""How many processors this process may use."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_processors(cgroup: Path = _CGROUP) -> float:
    """Return the processors that we may run on, as far as affinity and quota leave them to us."""
    allowed = float(len(os.sched_getaffinity(0)))
    quota = _quota(cgroup)
    return allowed if quota is None else min(allowed, quota)


def _quota(cgroup: Path) -> float | None:
    """Read what the container's control group grants, in processors; None: no limit is known."""
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None

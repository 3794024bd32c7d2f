"""What a process holds, read from outside."""

import contextlib
from pathlib import Path

import attrs

KIB = 1024


@attrs.frozen
class Holdings:
    """What must not grow."""

    descriptors: int
    threads: int
    memory: int
    """Resident bytes."""

    children: int
    """Living processes below it."""

    zombies: int
    """Children that have ended, and that nobody has asked how."""


def holdings(pid: int) -> Holdings:
    proc = Path("/proc", str(pid))
    status = dict(
        line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
    )
    return Holdings(
        descriptors=len(list((proc / "fd").iterdir())),
        threads=int(status["Threads"]),
        memory=int(status["VmRSS"].split()[0]) * KIB,
        children=len(descendants(pid)),
        zombies=sum(not is_alive(child) for child in _children(pid)),
    )


def is_alive(pid: int) -> bool:
    """Tell whether *pid* is a process that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """List all living processes below *pid*."""
    children = list(filter(is_alive, _children(pid)))
    return children + [each for child in children for each in descendants(child)]


def _children(pid: int) -> list[int]:
    children: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += map(int, file.read_text().split())
    return children

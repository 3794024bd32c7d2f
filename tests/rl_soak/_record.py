"""What an engine hears, in its own words: a line of JSON for each request, order and start."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import msgspec

READY, ADD, CALL, EXIT = "ready", "add", "call", "exit"

PAUSES = frozenset({"pause_generation", "pause_scheduler"})
RESUME = "resume_scheduler"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that one engine has heard."""

    time: float
    """Seconds since 1970."""

    rank: int
    life: int
    event: str
    """READY, ADD or CALL; who looks from outside adds EXIT."""

    name: str = ""
    """Of the request, or of the method: for workers' methods, theirs."""


class Recorder:
    """Writes down what one life of one rank hears."""

    def __init__(self, file: TextIO, rank: int, life: int) -> None:
        self._file = file
        self._rank = rank
        self._life = life

    def note(self, event: str, name: str = "") -> None:
        record = Record(time=time.time(), rank=self._rank, life=self._life, event=event, name=name)
        self._file.write(msgspec.json.encode(record).decode() + "\n")
        self._file.flush()


class Records:
    """The file of one rank, read on as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> Iterator[Record]:
        """Yield what was written since the last time."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                yield msgspec.json.decode(line, type=Record)

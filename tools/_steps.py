"""What the set-up scripts share: numbered steps, stamps, a lock, and pip."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SIGN_OF_LIFE_SECONDS = 15.0


class SetupFailed(Exception):
    """Raised when a step cannot be done; its message says what to do about it."""


class Steps:
    """Says which step runs, and how long it took."""

    def __init__(self, title: str, count: int) -> None:
        self._title = title
        self._count = count
        self._number = 0

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        self._number += 1
        started = time.monotonic()
        print(f"[{self._title} {self._number}/{self._count}] {text}", flush=True)
        over = threading.Event()
        threading.Thread(target=_show_life, args=(over, started), daemon=True).start()
        try:
            yield
        finally:
            over.set()
        print(f"    done in {time.monotonic() - started:.0f} s", flush=True)


def _show_life(over: threading.Event, started: float) -> None:
    while not over.wait(SIGN_OF_LIFE_SECONDS):
        print(f"    still at it after {time.monotonic() - started:.0f} s", flush=True)


def run(command: Sequence[str | os.PathLike[str]]) -> None:
    """Run a command with its output shown.

    Raises:
        SetupFailed: it failed.
    """
    finished = subprocess.run(command, check=False)
    if finished.returncode:
        shown = " ".join(map(str, command))
        raise SetupFailed(f"this command ended with status {finished.returncode}: {shown}")


def pip(python: Path, *arguments: str) -> None:
    """Run pip in the environment of *python*.

    Raises:
        SetupFailed: pip failed.
    """
    quiet = () if sys.stdout.isatty() else ("-qq",)
    run(
        [python, "-m", "pip", *arguments[:1], "--disable-pip-version-check", *quiet, *arguments[1:]]
    )


def is_stamped(stamp: Path, recipe: dict[str, str]) -> bool:
    """Tell whether what *stamp* stands for was finished by the same *recipe*."""
    try:
        found: object = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return found == recipe


def write_stamp(stamp: Path, recipe: dict[str, str]) -> None:
    """Mark as finished; an interruption leaves the old mark or the new one."""
    partial = stamp.with_name(stamp.name + ".partial")
    partial.write_text(json.dumps(recipe, indent=2) + "\n", encoding="utf-8")
    partial.replace(stamp)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one set-up at a time work in *folder*; others wait, and then find the work done."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another set-up in {folder}", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def remove(path: Path) -> None:
    """Remove a file or a folder, if there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

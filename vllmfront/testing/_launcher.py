"""Runs a command, and lets it fail as its plan says: the program behind ``FlakyProgram``.

Run as ``python -I -S _launcher.py FOLDER WORD...``, standard library only, so that it starts at
once. A life without a fault becomes the command itself. With one the command is a child, that
SIGTERM reaches; should the launcher be killed from outside, only the end of its process group
ends the child.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import types


def _begin_life(folder: pathlib.Path) -> int:
    """Write down our process id; return how many there were before."""
    with (folder / "lives").open("a+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        life = len(file.read().split())
        file.write(f"{os.getpid()}\n")
    return life


def _run_for(command: list[str], seconds: float) -> int | None:
    """Run *command* for so long; return its status if it ended before, else None."""
    child = subprocess.Popen(command)  # noqa: S603  # what the test asks for

    def forward(number: int, _frame: types.FrameType | None) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        child.kill()
        child.wait()


def _main() -> None:
    folder = pathlib.Path(sys.argv[1])
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    life = _begin_life(folder)
    command = [word.replace("{life}", str(life)) for word in plan["command"]] + sys.argv[2:]
    kind, status, seconds = plan["faults"].get(str(life), (None, 0, 0.0))
    if kind is None:
        os.execvp(command[0], command)  # noqa: S606  # what the test asks for
    if kind == "die_at_start":
        print(f"life {life} ends at its start", file=sys.stderr)  # noqa: T201  # its last line
        sys.exit(status)
    ended = _run_for(command, seconds)
    if ended is None and kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(status if ended is None else ended)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        _main()

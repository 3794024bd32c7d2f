"""Faults of child processes: programs that fail when they are started, and signals."""

import contextlib
import enum
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import msgspec
from attrs import validators

_LAUNCHER = Path(__file__).with_name("_launcher.py")

_PYTHON = """\
#!/bin/sh
if [ "$1" = "-c" ]; then exit 0; fi
while [ $# -gt 0 ]; do
    case "$1" in
        --data-parallel-address) host="$2" ;;
        --data-parallel-rpc-port) port="$2" ;;
        --data-parallel-size) size="$2" ;;
        --data-parallel-size-local) ranks="$2" ;;
        --data-parallel-start-rank) start="$2" ;;
    esac
    shift
done
exec "{program}" --handshake "tcp://$host:$port" --ranks "${{ranks:-$size}}" \\
    ${{start:+--start-rank "$start"}}
"""


class ProcessFaultKind(enum.Enum):
    """What a program does in place of running until it is told to stop."""

    DIE_AT_START = "die_at_start"
    """Prints a line and ends with the status, before it has done anything."""

    EXIT = "exit"
    """Works for some seconds, then ends with the status; 0 looks as if all were well."""

    KILL = "kill"
    """Works for some seconds, then is killed by SIGKILL, with nothing to say."""


@attrs.frozen(kw_only=True)
class ProcessFault:
    """What one life of a program has in store."""

    kind: ProcessFaultKind
    life: int = attrs.field(default=0, validator=validators.ge(0))
    """Which start of the program, counted from 0."""

    status: int = attrs.field(default=0, validator=[validators.ge(0), validators.lt(256)])
    seconds: float = attrs.field(default=0.0, validator=validators.ge(0))


class FlakyProgram:
    """A file to be run in the place of a command: it runs the command, with faults.

    It counts its lives in a folder, so that whoever starts it again gets the next one's fault.
    ``{life}`` in a word of the command becomes that number. What the file is called with follows
    the command's own words.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "program"
        """What to run."""

    def __repr__(self) -> str:
        return f"<FlakyProgram {self.path} lives={len(self.pids())}>"

    def pids(self) -> list[int]:
        """Return the process of each life so far."""
        try:
            return [int(line) for line in (self._folder / "lives").read_text().split()]
        except FileNotFoundError:
            return []


def write_program(
    folder: Path, command: Sequence[str], faults: Sequence[ProcessFault] = ()
) -> FlakyProgram:
    """Write a program that runs *command* with *faults*; lives without one are healthy.

    Args:
        folder: Where it keeps its files: existing, and nobody else's.
        command: The program and its words.
        faults: At most one a life.
    """
    plan = {
        "command": list(command),
        "faults": {
            str(fault.life): [fault.kind.value, fault.status, fault.seconds] for fault in faults
        },
    }
    (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
    program = FlakyProgram(folder)
    program.path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {_LAUNCHER} "{folder}" "$@"\n')
    program.path.chmod(0o755)
    return program


def write_python(folder: Path, program: FlakyProgram) -> Path:
    """Write what can stand for ``--python`` of ``vllmfront serve``: no vLLM, but *program*.

    When it is asked to run an engine, *program* gets ``--handshake ADDRESS --ranks N`` after its
    own words, and ``--start-rank N`` where it runs some of the engines, as ``vllmfront simulate``
    takes them.
    """
    path = folder / "python"
    path.write_text(_PYTHON.format(program=program.path))
    path.chmod(0o755)
    return path


def kill(pid: int) -> bool:
    """Send SIGKILL to a process; False where it has ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Keep a process from running for the block: alive to everybody who looks, and silent."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

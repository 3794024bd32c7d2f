"""What a child process is, how it ended, and how another generation finds it: plain values."""

import signal
from collections.abc import Mapping, Sequence

import attrs

_REPORT_LINES = 20
"""Output lines that an error message repeats."""


@attrs.frozen(kw_only=True)
class ProcessSpec:
    """What to run; its input is empty, its output goes to our stderr line by line."""

    argv: Sequence[str]
    prefix: str = ""
    """Stands before each line of output, a blank included."""

    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Added to what we inherited ourselves, but for what a service manager told us."""

    leftovers: Sequence[str] = ()
    """Files of ours that are removed when we are killed while the process runs."""

    stop_budget: float = attrs.field(default=5.0, validator=attrs.validators.ge(0))
    """Seconds from SIGTERM to SIGKILL."""


@attrs.frozen(kw_only=True)
class ProcessExit:
    """How a process ended."""

    status: int
    """Its exit status, or minus the signal that killed it."""

    tail: Sequence[str] = ()
    """Its last lines of output, oldest first."""

    def describe(self) -> str:
        """Say how it ended, as the end of a sentence."""
        if self.status >= 0:
            return f"ended with status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = "an unknown signal"
        return f"was killed by {name} ({-self.status})"

    def report(self) -> str:
        """Say how it ended, and repeat its last lines of output."""
        return self.describe() + self.last_lines()

    def last_lines(self) -> str:
        """Repeat the last lines of output, below what was said before."""
        if not self.tail:
            return " and had printed nothing"
        lines = "\n".join(f"  | {line}" for line in self.tail[-_REPORT_LINES:])
        return f"\nits last lines were:\n{lines}"


@attrs.frozen(kw_only=True)
class ProcessHandle:
    """A running process, for another generation of this program; plain values, fit for JSON.

    The descriptors are numbers in the process that made the handle. A child that was given them
    (``pass_fds``) has them under the same numbers.
    """

    pid: int
    reaper: int
    """The process id of the one that supervises it."""

    control: int
    reports: int
    unread: str = ""
    """What was read of a report that had not come whole."""

    token: str
    """Marks the processes of its tree."""

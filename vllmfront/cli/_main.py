"""The command: picks a subcommand, and turns what went wrong into an exit status."""

import atexit
import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Sequence

from vllmfront import __version__
from vllmfront.cli._errors import UsageError
from vllmfront.errors import VllmFrontError

_COMMANDS = {
    "serve": "Serve a model: start a vLLM engine, or wait for one, and answer for it",
    "frontend": "Answer for engines that vLLM's own supervisor runs; it starts this",
    "reload": "Replace a serving process by a new one, unnoticed by clients",
    "status": "Show how a server does, once or live",
    "simulate": "Stand in for an engine, without a model",
}
"""Subcommands; each has a module ``_NAME`` here with ``run(words) -> int``."""

_NOT_FOR_PEOPLE = ("worker",)
"""Subcommands that the program starts by itself."""

_HELP = "For more information, try '--help'."


def main() -> None:
    """Run the command line and exit."""
    ending = _Ending()
    atexit.register(ending.leave)
    ending.status = run(sys.argv[1:])
    sys.exit(ending.status)


class _Ending:
    """The last thing that the interpreter does, after all else that is due at its exit.

    Worker threads that were abandoned, in the middle of a tokenizer's code, would be unwound when
    the interpreter is taken down, which ends the process by SIGABRT. So it is not taken down.
    """

    def __init__(self) -> None:
        self.status = 1

    def leave(self) -> None:
        """End the process with the status, once what was logged and printed is out."""
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # nobody reads it, or it is closed
                stream.flush()
        os._exit(self.status)


def run(words: Sequence[str]) -> int:
    """Run one command line; return its exit status: 0 well, 1 failed, 2 not understood."""
    try:
        return _dispatch(words)
    except UsageError as exc:
        usage = f"\n\nUsage: {exc.usage}" if exc.usage else ""
        print(f"error: {exc}{usage}\n\n{_HELP}", file=sys.stderr)
        return 2
    except VllmFrontError as exc:
        print(f"error: {failure_text(exc)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # Before the lifecycle reads signals there is nothing to stop.
        return 130


def _dispatch(words: Sequence[str]) -> int:
    if not words:
        print(_overview(), file=sys.stderr)
        return 2
    match words[0]:
        case "-h" | "--help" | "help":
            print(_overview())
        case "-V" | "--version":
            print(f"vllmfront {__version__}")
        case name if name in _COMMANDS or name in _NOT_FOR_PEOPLE:
            status: int = importlib.import_module(f"vllmfront.cli._{name}").run(words[1:])
            return status
        case name:
            raise UsageError(f"unrecognized subcommand '{name}'", "vllmfront COMMAND [options]")
    return 0


def failure_text(error: BaseException) -> str:
    """Write an error with what caused it, the nearest cause first."""
    causes: list[str] = []
    cause = error.__cause__
    while cause is not None:
        causes.append(_sentence(cause))
        cause = cause.__cause__
    text = _sentence(error)
    if len(causes) == 1:
        return f"{text}\n\nCaused by:\n  {causes[0]}"
    if causes:
        lines = "\n".join(f"  {number}: {line}" for number, line in enumerate(causes, 1))
        return f"{text}\n\nCaused by these errors (recent errors listed first):\n{lines}"
    return text


def _sentence(error: BaseException) -> str:
    notes = getattr(error, "__notes__", ())
    return "; ".join([str(error) or type(error).__name__, *notes])


def _overview() -> str:
    commands = "\n".join(f"  {name:<10}{summary}" for name, summary in _COMMANDS.items())
    return (
        "A serving frontend for vLLM engines.\n\n"
        "Usage: vllmfront COMMAND [options]\n\n"
        f"Commands:\n{commands}\n\n"
        "Options:\n  -h, --help     Print help; COMMAND --help for one command\n"
        "  -V, --version  Print the version"
    )

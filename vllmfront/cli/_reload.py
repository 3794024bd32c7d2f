"""``vllmfront reload``: a new process in place of the one that serves, unnoticed by clients."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import trio

from vllmfront.cli._values import positive_seconds

_PATIENCE = 900.0
"""Seconds; fetching and loading a model's files may take minutes."""

DESCRIPTION = """\
Replace the frontend that serves with PIDFILE (serve --pid-file) by a new process of what is
installed by now, with the same arguments. Engines are not restarted, no connection is refused and
no stream cut: the old process serves what it has begun, and ends. Should the new one not come up,
the old one goes on.

Status 0: the new one serves. Status 1: the old one goes on, or none serves.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vllmfront reload",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("pid_file", type=Path, metavar="PIDFILE", help="what serve was given")
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=_PATIENCE,
        metavar="SECONDS",
        help="how long to wait for the outcome (default: %(default)g)",
    )
    return parser


def run(words: Sequence[str]) -> int:
    """Ask for the upgrade and wait for its outcome; return the exit status.

    Raises:
        ConfigurationError: Nobody can be asked.
        UpgradeFailed: The old process goes on.
    """
    options = _parser().parse_args(words)
    from vllmfront.lifecycles.upgrade import ask_upgrade

    print(trio.run(ask_upgrade, options.pid_file.absolute(), print, options.timeout))
    return 0

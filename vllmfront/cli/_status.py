"""``vllmfront status``: how a server does, once or live, for a person."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import attrs

from vllmfront.cli._status_client import StatusClient, Unreachable
from vllmfront.cli._status_page import Painter, clean, page, unreachable_page

READY, NOT_READY, UNREACHABLE = range(3)
"""Exit statuses."""

INTERVAL = 1.0
"""Seconds between two looks."""

DESCRIPTION = """\
Show whether a server serves, what it runs below itself, and how often that had to be restarted.
Ends with status 0 when the server is ready, 1 when it is not, 2 when nobody answers.
"""

_ENTER_SCREEN, _LEAVE_SCREEN = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\033[H", "\033[K", "\033[J"
_NO_WRAP, _WRAP = "\033[?7l", "\033[?7h"


@attrs.frozen
class Look:
    """What one question has brought."""

    lines: Sequence[str]
    summary: str
    """State and reason, which change rarely."""

    exit_status: int


def run(words: Sequence[str]) -> int:
    """Show the state of a server; return the exit status.

    Raises:
        UsageError: The address is none.
    """
    options = _parser().parse_args(words)
    client = StatusClient.at(options.url, options.api_key or os.environ.get("VLLM_API_KEY") or None)
    terminal = sys.stdout.isatty()
    paint = Painter(terminal and not os.environ.get("NO_COLOR"))
    if not options.watch:
        return _show_once(client, options.url, paint)
    return _watch(client, options.url, paint, live=terminal)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vllmfront status", description=DESCRIPTION, allow_abbrev=False
    )
    parser.add_argument(
        "--url",
        default="http://127.0.0.1:8000",
        help="the server: http://HOST:PORT, https://HOST:PORT or unix:PATH (default: %(default)s)",
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="the server's --admin-api-key, or its --api-key where it has no other "
        "(env: VLLM_API_KEY)",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="look again every second until interrupted; where the output is no terminal, "
        "a line for each change",
    )
    return parser


def _look(client: StatusClient, url: str, paint: Painter) -> Look:
    try:
        status = client.ask()
    except Unreachable as error:
        lines = unreachable_page(url, str(error), paint)
        return Look(lines, f"unreachable: {clean(str(error))}", UNREACHABLE)
    health = status.health
    return Look(
        page(url, status, paint),
        f"{health.state}: {clean(health.reason)}",
        READY if health.ready else NOT_READY,
    )


def _show_once(client: StatusClient, url: str, paint: Painter) -> int:
    look = _look(client, url, paint)
    print("\n".join(look.lines), file=sys.stderr if look.exit_status == UNREACHABLE else sys.stdout)
    return look.exit_status


def _watch(client: StatusClient, url: str, paint: Painter, *, live: bool) -> int:
    last: Look | None = None
    try:
        with _screen() if live else nullcontext():
            while True:
                look = _look(client, url, paint)
                if live:
                    _draw(look.lines)
                elif last is None or look.summary != last.summary:
                    print(time.strftime("%H:%M:%S"), look.summary, flush=True)
                last = look
                time.sleep(INTERVAL)
    except KeyboardInterrupt:
        return UNREACHABLE if last is None else last.exit_status


@contextmanager
def _screen() -> Iterator[None]:
    """Have a terminal's second screen for the block, and give the first one back as it was."""
    sys.stdout.write(_ENTER_SCREEN + _NO_WRAP)
    try:
        yield
    finally:
        sys.stdout.write(_WRAP + _LEAVE_SCREEN)
        sys.stdout.flush()


def _draw(lines: Sequence[str]) -> None:
    """Write over what the screen shows, without a flicker; what does not fit is left out."""
    height = shutil.get_terminal_size().lines - 1
    shown = "".join(f"{line}{_END_OF_LINE}\n" for line in lines[:height])
    sys.stdout.write(f"{_HOME}{shown}{_END_OF_SCREEN}")
    sys.stdout.flush()

"""How long a request may take: what clients ask for, and how what comes before its ADD obeys."""

import math
import re
from collections.abc import Awaitable
from typing import TypeVar

import trio

from vllmfront.errors import RequestRejected, RequestTimedOut

T = TypeVar("T")

HEADER = b"x-request-timeout"
MOST_SECONDS = 86_400.0
"""A day. More is no limit but a mistake: milliseconds, or a point in time."""

_NUMBER = re.compile(rb"[0-9]{1,9}(\.[0-9]{0,9})?")


def seconds_of_header(value: bytes) -> float:
    """Read ``X-Request-Timeout``: seconds, as a decimal number.

    Raises:
        RequestRejected: It is something else.
    """
    text = value.strip(b" \t")
    if not _NUMBER.fullmatch(text):
        raise _refusal("X-Request-Timeout", repr(text.decode("latin-1")))
    return _checked(float(text), "X-Request-Timeout")


def seconds_of_field(value: float) -> float:
    """Check the body's ``timeout``, in seconds.

    Raises:
        RequestRejected: It is not positive, or more than a day.
    """
    return _checked(value, "timeout")


def _checked(seconds: float, param: str) -> float:
    if not (math.isfinite(seconds) and 0 < seconds <= MOST_SECONDS):
        raise _refusal(param, f"{seconds:g}")
    return seconds


def _refusal(param: str, given: str) -> RequestRejected:
    return RequestRejected(
        f"{param} must be a number of seconds above 0 and up to {MOST_SECONDS:.0f}, got {given}.",
        param=param,
    )


async def in_time(deadline: float | None, work: Awaitable[T]) -> T:
    """Return what *work* returns; for work that may be long.

    Raises:
        RequestTimedOut: *deadline* passes before.
    """
    if deadline is None:
        return await work
    with trio.move_on_at(deadline):
        return await work
    raise RequestTimedOut("The request's time limit passed before it could be sent to an engine.")

"""Settings that come from environment variables alone."""

from collections.abc import Mapping

from vllmfront.errors import ConfigurationError

_MAX_DIGITS = 18
"""What a number is cut to: more makes no difference, and Python reads no number of thousands."""


def whole_number(environ: Mapping[str, str], name: str, default: int, *, low: int = 0) -> int:
    """Read a number of at least *low*; an empty variable counts as unset.

    Raises:
        ConfigurationError: The value is something else.
    """
    text = environ.get(name)
    if not text:
        return default
    digits = text[:_MAX_DIGITS]
    if not text.isascii() or not text.isdecimal() or int(digits) < low:
        raise ConfigurationError(f"{name} must be a whole number of at least {low}, not {text!r}")
    return int(digits)


def positive_number(environ: Mapping[str, str], name: str, default: float) -> float:
    """Read a positive, finite number; an empty variable counts as unset.

    Raises:
        ConfigurationError: The value is something else.
    """
    text = environ.get(name)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise ConfigurationError(f"{name} must be a positive number, not {text!r}")
    return number


def nonzero(environ: Mapping[str, str], name: str) -> bool:
    """Read whether a switch is on that the reference reads as a number: any but 0."""
    try:
        return int(environ.get(name, "")) != 0
    except ValueError:
        return False


def switch(environ: Mapping[str, str], name: str) -> bool:
    """Read whether a switch is on: ``1`` or ``true``."""
    return environ.get(name, "").lower() in {"1", "true"}

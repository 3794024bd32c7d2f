"""Failures as texts, and which of them are bugs."""

from collections.abc import Iterator

from vllmfront.errors import VllmFrontError


def failure_text(error: Exception) -> str:
    """Write what happened in one text, never empty; groups are written as what is in them.

    Errors raised on purpose speak for themselves, others need their type beside them.
    """
    return "; ".join(dict.fromkeys(_text(each) for each in _leaves(error)))


def is_bug(error: Exception) -> bool:
    """Tell whether anything in *error* was not raised on purpose."""
    return not all(isinstance(each, VllmFrontError) for each in _leaves(error))


def _text(error: Exception) -> str:
    text, kind = str(error), type(error).__name__
    if isinstance(error, VllmFrontError):
        return text or kind
    return f"{kind}: {text}" if text else kind


def _leaves(error: Exception) -> Iterator[Exception]:
    if not isinstance(error, ExceptionGroup):
        yield error
        return
    for each in error.exceptions:
        yield from _leaves(each)

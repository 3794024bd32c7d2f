"""From the groups that nurseries raise to the one error behind them."""

from collections.abc import Iterator
from contextlib import contextmanager

from vllmfront.errors import VllmFrontError


@contextmanager
def one_error() -> Iterator[None]:
    """Turn a group of errors raised on purpose into the first of them; bugs pass unchanged.

    Each nursery on the way has added a layer around what is one error, as a rule. Where there
    are several, the others become notes of the first.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        on_purpose, others = group.split(VllmFrontError)
        if on_purpose is None or others is not None:
            raise
        first, *besides = _leaves(on_purpose)
        for error in besides:
            first.add_note(f"besides: {error}")
    else:
        return
    raise first


def _leaves(group: BaseExceptionGroup[VllmFrontError]) -> list[VllmFrontError]:
    found: list[VllmFrontError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found

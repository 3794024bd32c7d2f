"""From the groups that nurseries raise to the one error behind them."""

from collections.abc import Iterator
from contextlib import contextmanager

from vllmfront.errors import StartupFailed, VllmFrontError


@contextmanager
def one_error() -> Iterator[None]:
    """Turn a group of errors raised on purpose into one of them; bugs pass unchanged.

    Each nursery on the way has added a layer around what is one error, as a rule.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        on_purpose, others = group.split(VllmFrontError)
        if on_purpose is None or others is not None:
            raise
        errors = _leaves(on_purpose)
        if len(errors) > 1:
            raise StartupFailed("; ".join(map(str, errors))) from group
        (error,) = errors
    else:
        return
    raise error


def _leaves(group: BaseExceptionGroup[VllmFrontError]) -> list[VllmFrontError]:
    found: list[VllmFrontError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found

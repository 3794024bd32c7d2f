"""How a choice ends."""

from vllmfront.engine import FinishReason

FINISH_NAMES = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.REPETITION: "repetition",
}
"""The reasons that are no error, as clients read them."""


def visible_ids(token_ids: list[int], reason: FinishReason, *, include_stop: bool) -> list[int]:
    """Return the last ids of a choice without the one that is no text.

    Args:
        token_ids: Of the update that ends it.
        reason: Why it ends.
        include_stop: Whether the token that stopped the engine is text all the same.
    """
    if reason is FinishReason.STOP and not include_stop:
        return token_ids[:-1]
    return token_ids

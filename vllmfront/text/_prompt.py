"""Prompt ids: cut to length, and checked against vocabulary and context."""

from collections.abc import Sequence

from vllmfront.engine.guard import are_token_ids
from vllmfront.errors import RequestRejected
from vllmfront.text._request import SamplingRequest, Surface
from vllmfront.text._tokenizer import as_list


def fit_prompt(
    token_ids: Sequence[int],
    request: SamplingRequest,
    *,
    max_model_len: int,
    vocab_size: int,
    known: bool = False,
) -> list[int]:
    """Return a prompt's ids, cut as the request wants and checked, unless they are all *known*.

    ``truncate_prompt_tokens`` keeps the last ids, or the first ones with ``truncation_side`` right;
    -1 stands for all that leaves room for one token of answer.

    Raises:
        RequestRejected: An id is not in the vocabulary, or the prompt leaves no room for an answer.
    """
    token_ids = _truncated(token_ids, request, max_model_len)
    length = len(token_ids)
    # Of a prompt that does not fit a part is looked at: it may hold millions of ids.
    looked_at = token_ids if length < max_model_len else token_ids[:_LOOKED_AT]
    fitting = as_list(looked_at)
    if not known:
        check_ids("prompt", fitting, vocab_size)
    if length < max_model_len:
        return fitting
    problem = (
        f"contains {length} input tokens, which exceeds this limit even without any output tokens"
        if length > max_model_len
        else f"fills it with {length} input tokens, leaving no room for output tokens"
    )
    raise RequestRejected(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt"
        f" {problem}. Please reduce the length of the input prompt.",
        param="input_tokens",
    )


def _truncated(
    token_ids: Sequence[int], request: SamplingRequest, max_model_len: int
) -> Sequence[int]:
    keep = request.truncate_prompt_tokens
    if keep is None:
        return token_ids
    if keep > max_model_len:
        raise RequestRejected(
            f"truncate_prompt_tokens={keep} cannot be greater than max_model_len ="
            f" {max_model_len}. Please request a smaller truncation size."
        )
    if keep == -1:
        keep = max_model_len - 1
    if len(token_ids) <= keep:
        return token_ids
    return token_ids[:keep] if request.truncation_side == "right" else token_ids[-keep:][:keep]


def reject_empty_prompt(surface: Surface, request_id: str, *, given_as_ids: bool) -> None:
    """Refuse a prompt without ids in the peer's words.

    Args:
        surface: Where the prompt came from.
        request_id: The public id.
        given_as_ids: Whether the client sent an empty list of ids.

    Raises:
        RequestRejected: Always.
    """
    if surface is Surface.CHAT or given_as_ids:
        raise RequestRejected(
            f"text request `{request_id}` must contain at least one prompt token ID"
        )
    raise RequestRejected(f"generate request `{request_id}` has an empty prompt_token_ids")


def check_ids(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Refuse ids that the engine does not know.

    Raises:
        RequestRejected: All of them are named.
    """
    if are_token_ids(token_ids, vocab_size):
        return
    unknown = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
    shown = ", ".join(map(str, unknown[:_SHOWN])) + (", ..." if len(unknown) > _SHOWN else "")
    raise RequestRejected(
        f"token_id(s) [{shown}] in {field} are out of vocabulary. Vocabulary size: {vocab_size}"
    )


_LOOKED_AT = 1 << 16
"""Ids checked, in about a millisecond, before a prompt is called too long."""

_SHOWN = 1000
"""Ids named in one message: enough to find the fault, and no megabytes of it."""

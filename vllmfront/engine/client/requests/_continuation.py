"""Going on with a request elsewhere: what is safe, and what is asked of the next engine.

A request that has delivered tokens goes on as a new one, whose prompt is the old one with those
tokens. That is the same request only where the engine keeps no account of what it has generated:
penalties of presence and frequency, bad words, repetitions and a budget for thinking are about
output tokens alone, and so is a seed, whose draws start anew. The repetition penalty counts
prompt tokens as well, so it survives.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from vllmfront.engine._output import EngineOutput
from vllmfront.engine._request import GREEDY_BELOW, EngineRequest, SamplingParams

_NO_SEED = -1


def may_continue(request: EngineRequest) -> bool:
    """Tell whether *request* can go on elsewhere, as far as its sampling does not decide it."""
    return (
        request.prompt_embeds is None
        and request.mm_features is None
        and request.kv_hints is None
        and not request.resumable
    )


def may_continue_sampling(sampling: SamplingParams | None) -> bool:
    """Tell whether a request with *sampling* can go on elsewhere, as far as it decides that."""
    if sampling is None:
        return False
    seeded = sampling.seed is not None and sampling.seed != _NO_SEED
    return not (
        (seeded and sampling.temperature >= GREEDY_BELOW)
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.bad_words_token_ids
        or sampling.structured_outputs is not None
        or sampling.thinking_token_budget is not None
        or sampling.repetition_detection is not None
        or sampling.trace_decode_token_ids is not None
        or hands_over_kv(sampling)
    )


def may_send_again(request: EngineRequest) -> bool:
    """Tell whether *request* may be sent a second time, if nothing has come of the first."""
    # Handles to blocks in another engine's cache are good for one use.
    return not request.resumable and (
        request.sampling is None or not hands_over_kv(request.sampling)
    )


def hands_over_kv(sampling: SamplingParams) -> bool:
    """Tell whether a KV connector takes part."""
    extra = sampling.extra_args
    return extra is not None and ("kv_transfer_params" in extra or "ec_transfer_params" in extra)


def continued(
    request: EngineRequest, token_ids: Sequence[int], max_model_len: int | None
) -> EngineRequest | None:
    """Return what goes on with *request* after the output *token_ids*; None: it is complete."""
    sampling = request.sampling
    assert sampling is not None
    left = sampling.max_tokens - len(token_ids)
    prompt = [*request.prompt_token_ids, *token_ids]
    if left <= 0 or len(prompt) == max_model_len:
        return None
    return replace(
        request,
        prompt_token_ids=prompt,
        sampling=replace(
            sampling,
            max_tokens=left,
            min_tokens=max(0, sampling.min_tokens - len(token_ids)),
            # They came with the first token.
            prompt_logprobs=None,
            prompt_logprob_token_ids=None,
            prompt_logprob_start=None,
        ),
    )


def without_prompt(output: EngineOutput) -> EngineOutput:
    """Return *output* of a request that goes on, without what was said about its prompt before."""
    if output.prefill_stats is None:
        return output
    return replace(output, prefill_stats=None)

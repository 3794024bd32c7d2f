"""The request fields that chat and text completions share, and the ranges of their numbers."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from vllmfront.errors import MalformedRequest, RequestRejected

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
NonZeroU32 = Annotated[int, Meta(ge=1, le=2**32 - 1)]
I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
JsonObject = dict[str, Any]

_MOST_TOP_K = 2**32 - 1


class StreamOptions(Struct, kw_only=True, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class RepetitionFields(Struct, kw_only=True, frozen=True):
    max_pattern_size: U32
    min_count: U32
    min_pattern_size: U32 | None = None


# A struct of msgspec's own: it decodes into one seven times as fast as into another class.
class GenerationFields(Struct, kw_only=True, frozen=True):
    """Null stands for absent everywhere; unknown members are ignored."""

    model: str | None = None
    user: str | None = None

    max_tokens: U32 | None = None
    min_tokens: U32 | None = None
    truncate_prompt_tokens: I64 | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None
    echo: bool | None = None

    n: U32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: I64 | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    length_penalty: float | None = None
    use_beam_search: bool | None = None
    seed: I64 | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[U32] | None = None
    repetition_detection: RepetitionFields | None = None
    watermarking: bool | None = None
    thinking_token_budget: I64 | None = None

    stop: str | list[str] | None = None
    stop_token_ids: list[U32] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None

    prompt_logprobs: I32 | None = None
    logprob_token_ids: list[U32] | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    return_weight_versions: bool | None = None

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: NonZeroU32 | None = None

    response_format: JsonObject | None = None
    structured_outputs: JsonObject | None = None

    timeout: float | None = None
    priority: I32 | None = None
    request_id: str | None = None
    session_id: str | None = None
    cache_salt: str | None = None
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None
    vllm_xargs: JsonObject | None = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        """Whether every chunk carries usage; asked for alone it has no effect."""
        return self.wants_usage and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )


def check_form(request: GenerationFields) -> None:
    """Refuse values that no client may send and that the class cannot rule out.

    Raises:
        MalformedRequest: ``top_k`` is out of range.
    """
    top_k = request.top_k
    if top_k is None or -1 <= top_k <= _MOST_TOP_K:
        return
    what = "out of range integral type conversion attempted"
    if top_k < -1:
        what = f"top_k must be -1, 0, or a positive integer, got {top_k}"
    raise MalformedRequest.misfit(what, "top_k")


def complaints_about(request: GenerationFields) -> tuple[str, ...]:
    """Return what is wrong with the fields that have nothing to do with sampling."""
    if request.cache_salt != "":
        return ()
    return ('cache_salt: Validation error: length [{"min": Number(1), "value": String("")}]',)


def refuse_unsupported(request: GenerationFields, names: Iterable[str] = ()) -> None:
    """Refuse the fields that neither we nor the peer serve; *names* are more of them."""
    for name, given in (
        ("use_beam_search", request.use_beam_search),
        ("length_penalty", request.length_penalty not in {None, 1.0}),
        ("spaces_between_special_tokens", request.spaces_between_special_tokens is False),
        *((name, True) for name in names),
    ):
        if given:
            raise RequestRejected(f"{name} is not supported.", param=name)

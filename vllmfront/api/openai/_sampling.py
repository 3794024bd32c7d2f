"""Request bodies to the text layer's sampling requests."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import attrs

from vllmfront.api.openai._fields import GenerationFields
from vllmfront.engine import RepetitionDetection, SamplingParams
from vllmfront.text import SamplingRequest, Surface

_SHARED = frozenset(
    {
        "max_tokens",
        "min_tokens",
        "truncate_prompt_tokens",
        "truncation_side",
        "n",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "logit_bias",
        "allowed_token_ids",
        "watermarking",
        "thinking_token_budget",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "skip_special_tokens",
        "logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "structured_outputs",
        "response_format",
        "vllm_xargs",
        "kv_transfer_params",
        "ec_transfer_params",
    }
)
_OTHERS = frozenset({"stream", "echo", "stream_interval", "repetition_detection"})
_CHECKED = frozenset(
    {
        "model",
        "stream_options",
        "length_penalty",
        "use_beam_search",
        "spaces_between_special_tokens",
    }
)
"""What else decides whether a request is served."""

_CHECKED_IN_CHATS = frozenset(
    {"tool_choice", "media_io_kwargs", "mm_processor_kwargs", "return_prompt_text"}
)
_CHECKED_IN_COMPLETIONS = frozenset({"prompt_embeds", "suffix"})
_CHAT = _SHARED | {"max_completion_tokens", "bad_words", "top_logprobs"}


_MAX_REMEMBERED = 1024
"""Ways of sampling that are kept; clients of one service use a handful."""

_MAX_STOP = 1024
"""Characters of a stop string that is kept along."""

_MAX_LENGTHS = 64
"""Lowered forms kept for each, which differ in ``max_tokens`` alone."""


@attrs.define(eq=False)
class PreparedSampling:
    """What a body asks of sampling, and the engine's form of it once it was checked and lowered."""

    request: SamplingRequest
    keep: Callable[["PreparedSampling"], None] | None = None
    """Keeps it for other requests; called once it has passed its checks."""

    checked: bool = False
    """Whether there is nothing against a request like this, whatever its prompt and names."""

    compiled: bool = False
    """Whether ``text.GrammarChecker`` has passed its constraint."""

    lowered: dict[int, SamplingParams] = attrs.field(factory=dict, init=False)
    """By ``max_tokens``, which is all that depends on a request's prompt."""

    @property
    def takes_time(self) -> bool:
        """Whether to lower it may take long: text has to be encoded, or a grammar compiled."""
        asked = self.request
        return bool(asked.bad_words or asked.structured_outputs or asked.response_format)

    def passed(self) -> None:
        """Take note that all checks but those of prompt and names have nothing against it."""
        self.checked = True
        if self.keep is not None:
            self.keep(self)
            self.keep = None

    def remember(self, params: SamplingParams) -> None:
        if len(self.lowered) >= _MAX_LENGTHS:
            self.lowered.clear()
        self.lowered[params.max_tokens] = params


class SamplingMemo:
    """Prepares sampling once for all requests of a surface that ask for the same.

    Requests with lists, maps or long texts among their sampling fields are prepared each by
    itself, and what is refused is not kept.
    """

    def __init__(self, surface: Surface, default_interval: int) -> None:
        """Prepare for *surface*; *default_interval* is the server's ``stream_interval``."""
        self._surface = surface
        self._names = _CHAT if surface is Surface.CHAT else _SHARED
        self._default_interval = default_interval
        own = _CHECKED_IN_CHATS if surface is Surface.CHAT else _CHECKED_IN_COMPLETIONS
        self._key = attrgetter(*sorted(self._names | _OTHERS | _CHECKED | own))
        self._known: dict[tuple[Any, ...], PreparedSampling] = {}

    def prepare(self, body: GenerationFields) -> PreparedSampling:
        """Return what *body* asks of sampling; its values may be unchecked yet."""
        if type(body.stop) is str and len(body.stop) > _MAX_STOP:
            return PreparedSampling(self._request(body))
        key = self._key(body)
        try:
            prepared = self._known.get(key)
        except TypeError:  # not hashable
            return PreparedSampling(self._request(body))
        return prepared or PreparedSampling(self._request(body), partial(self._keep, key))

    def _keep(self, key: tuple[Any, ...], prepared: PreparedSampling) -> None:
        if len(self._known) >= _MAX_REMEMBERED:
            self._known.clear()
        self._known[key] = prepared

    def _request(self, body: GenerationFields) -> SamplingRequest:
        return _sampling(body, self._surface, self._names, self._default_interval)


def _sampling(
    body: GenerationFields, surface: Surface, names: frozenset[str], default_interval: int
) -> SamplingRequest:
    given: dict[str, Any] = {
        name: value for name in names if (value := getattr(body, name)) is not None
    }
    repetition = body.repetition_detection
    if repetition is not None:
        given["repetition_detection"] = RepetitionDetection(
            max_pattern_size=repetition.max_pattern_size,
            min_pattern_size=repetition.min_pattern_size or 0,
            min_count=repetition.min_count,
        )
    interval = body.stream_interval
    if interval is None and default_interval > 1:
        interval = default_interval
    return SamplingRequest(
        surface=surface,
        stream=bool(body.stream),
        echo=bool(body.echo),
        stream_interval=interval,
        **given,
    )

"""What an engine says about one request, and who is told."""

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs
from msgspec import Struct

from vllmfront.errors import VllmFrontError


class FinishReason(enum.IntEnum):
    """Why a request ended, in the engine's numbers; unknown numbers count as ERROR."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4


QUEUED, SCHEDULED, PREEMPTED = 1, 2, 3
"""Types of an engine's events about a request."""


@attrs.frozen
class Logprobs:
    """Log probabilities of some positions.

    Column 0 of each row is the sampled token (or the prompt's own token), columns 1 to k are
    the most likely ones, in order, with ranks 1 to k; the sampled one may appear again.
    """

    token_ids: Sequence[Sequence[int]]
    """``[n_positions][k + 1]``"""

    logprobs: Sequence[Sequence[float]]
    """``[n_positions][k + 1]``, in nats; may hold -inf or NaN."""

    ranks: Sequence[int]
    """``[n_positions]``, the rank of column 0, from 1."""


@attrs.frozen
class EngineError:
    """Why an engine refused or broke off a request."""

    code: str
    message: str
    retryable: bool = False


@attrs.frozen
class PrefillStats:
    """How the prompt was computed; comes once, with the first output."""

    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_local_cached_tokens: int = 0
    num_external_cached_tokens: int = 0
    num_cache_creation_tokens: int = 0


class EngineOutput(Struct, kw_only=True, frozen=True):
    """One update of one request, fully decoded. Plain tokens travel without it."""

    new_token_ids: list[int]
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    events: Sequence[tuple[int, float]] = ()
    """``(type, engine timestamp)``: 1 queued, 2 scheduled, 3 preempted."""

    kv_transfer_params: Mapping[str, Any] | None = None
    ec_transfer_params: Mapping[str, Any] | None = None
    trace_headers: Mapping[str, str] | None = None
    prefill_stats: PrefillStats | None = None
    pooling_output: Any = None
    routed_experts: Any = None
    num_nans_in_logits: int = 0
    mm_cache_miss_hashes: Sequence[str] | None = None
    sampling_mask: Any = None
    spec_decode_metrics: Mapping[str, Any] | None = None
    prompt_token_id_logprobs: Any = None
    error: EngineError | None = None
    weight_version: str | None = None


class OutputSink(Protocol):
    """The near end of one request's stream: a pipeline that outputs are pushed through.

    Called synchronously by the engine link's reader, in order, so it must not block. What it
    raises ends that request alone. After a True, a final output or an error nothing more comes.

    One that has a method ``on_weights(version)`` is told when what follows was made by other
    weights than what came before; what made the first tokens stands in the first output.
    """

    def on_tokens(self, token_ids: list[int]) -> bool:
        """Take new tokens and nothing else: the hot path.

        Ids of several engine updates that were waiting together arrive merged. The list belongs
        to the sink.

        Returns:
            True when the request is complete as far as the sink is concerned (a stop string
            was found): the engine is told to abort it.
        """

    def on_output(self, output: EngineOutput) -> bool:
        """Take an update that carries more than tokens: first, last, logprobs, ...

        Returns:
            As ``on_tokens``. After a ``finish_reason`` the return value is ignored.
        """

    def on_error(self, error: VllmFrontError) -> None:
        """Take the end of a request that the engine will not finish."""

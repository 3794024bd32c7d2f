"""What a core says of requests and calls that end otherwise than by their own result."""

from collections.abc import Sequence

from vllmfront.engine import EngineError, EngineOutput, FinishReason
from vllmfront.engine.wire import Add, Tensor, Utility
from vllmfront.simulator._messages import Answer, StepOutput

PAUSED = EngineError(
    "engine_paused", "Generation is paused. Please retry after it resumes.", retryable=True
)
"""Since 0.33, to requests that come in a user's pause."""


def ended(
    request_ids: Sequence[str],
    client: int,
    now: float,
    reason: FinishReason,
    error: EngineError | None = None,
) -> StepOutput:
    """Say that requests ended by the engine's own doing; such a message names them twice."""
    output = EngineOutput(new_token_ids=[], finish_reason=reason, error=error)
    rows = [(request_id, output) for request_id in request_ids]
    return StepOutput(client=client, timestamp=now, rows=rows, finished=request_ids)


def pooled(add: Add, vector: Tensor, now: float) -> StepOutput:
    """Answer a request for an embedding."""
    output = EngineOutput(new_token_ids=[], finish_reason=FinishReason.STOP, pooling_output=vector)
    return StepOutput(client=add.client_index, timestamp=now, rows=[(add.internal_id, output)])


def finished_ids(rows: Sequence[tuple[str, list[int] | EngineOutput]]) -> list[str] | None:
    """Return the requests that end with *rows*, as engines with a coordinator name them."""
    ids = [
        request_id
        for request_id, row in rows
        if not isinstance(row, list) and row.finish_reason is not None
    ]
    return ids or None


def failure(call: Utility, error: Exception, now: float) -> Answer:
    """Say that a call has failed."""
    text = f"Call to {call.method} method failed: {error}"
    return Answer(client=call.client_index, timestamp=now, call_id=call.call_id, failure=text)

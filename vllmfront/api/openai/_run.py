"""An admitted request, from ADD to its one end."""

import logging
from collections.abc import Sequence

import trio
from msgspec import Struct

from vllmfront.api.http import HttpRequest
from vllmfront.api.openai._edge import close_cause, shutting_down
from vllmfront.api.openai._marks import RequestMarks
from vllmfront.api.openai._service import ModelService
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.api.openai._usage import RequestTimes, metrics_json
from vllmfront.engine import EngineRequest, OutputSink, RequestStream
from vllmfront.engine.metrics import TerminalCause
from vllmfront.errors import VllmFrontError

_LOGGER = logging.getLogger(__name__)

Sinks = Sequence[Sequence[OutputSink]]
"""One for each choice of each prompt."""


class Admitted(Struct, kw_only=True, frozen=True):
    """A request that is ready to be sent: everything that can be refused was."""

    service: ModelService
    http: HttpRequest
    marks: RequestMarks
    requests: Sequence[EngineRequest]
    """One a prompt."""


async def run_streamed(admitted: Admitted, answer: StreamedAnswer, sinks: Sinks) -> None:
    """Send a request and stream its answer.

    The response head goes out as soon as the request is sent: what fails later is an event.

    Raises:
        VllmFrontError: It could not be sent; there is no response yet.
    """
    stream = await admitted.service.engine.prepare_all(admitted.requests, sinks)
    if admitted.service.options.per_request_metrics:
        answer.metrics = lambda: metrics_json(
            times_of(stream), stream.num_generated_tokens, omit_unknown=True
        )
    stream.on_begun = answer.start
    try:
        async with stream:
            try:
                await _wait(admitted, stream)
            except VllmFrontError as error:
                answer.fail(error)  # does nothing where a choice has said so already
            except trio.Cancelled:
                if close_cause(admitted.http) is TerminalCause.SHUTDOWN:
                    answer.fail(shutting_down())
                raise
    except VllmFrontError as error:
        if not stream.begun:
            raise
        answer.fail(error)  # the engines left between its first choice and its last


async def run_whole(admitted: Admitted, sinks: Sinks) -> bytes:
    """Send a request and return once all choices have ended well.

    Returns:
        The ``metrics`` member of the answer.

    Raises:
        VllmFrontError: It could not be sent, or a choice ended with this; the others are aborted.
    """
    stream = await admitted.service.engine.prepare_all(admitted.requests, sinks)
    async with stream:
        await _wait(admitted, stream)
    if not admitted.service.options.per_request_metrics:
        return b"null"
    return metrics_json(times_of(stream), stream.num_generated_tokens, omit_unknown=False)


def times_of(stream: RequestStream) -> RequestTimes:
    """Return the marks of a stream's first choice on the engine's clock."""
    record = stream.children[0].record
    return RequestTimes(
        queued_at=record.queued_at,
        scheduled_at=record.scheduled_at,
        first_token_at=record.first_token_at,
        last_token_at=record.last_token_at,
    )


async def _wait(admitted: Admitted, stream: RequestStream) -> None:
    """Wait for the end of *stream*, see to its cause, and log it where somebody cares."""
    cause: TerminalCause | None = None
    try:
        await stream.wait_finished()
    except trio.Cancelled:
        cause = stream.leave_cause = close_cause(admitted.http)
        raise
    finally:
        _log_end(admitted, stream, cause or stream.cause)


def _log_end(admitted: Admitted, stream: RequestStream, cause: TerminalCause | None) -> None:
    if cause is not None and cause.ended_well and not admitted.service.options.log_requests:
        return
    expected = cause is not None and (cause.ended_well or cause is TerminalCause.CLIENT_GONE)
    _LOGGER.log(
        logging.INFO if expected else logging.WARNING,
        "Request ended: cause=%s model=%s prompt_tokens=%d output_tokens=%d request_id=%s"
        " engine_request_ids=%s",
        cause.value if cause is not None else "unknown",
        admitted.service.model,
        sum(len(request.prompt_token_ids) for request in admitted.requests),
        stream.num_generated_tokens,
        admitted.marks.id,
        ",".join(child.internal_id for child in stream.children),
    )

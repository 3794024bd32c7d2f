"""An admitted request, from ADD to its one end."""

from collections.abc import Sequence
from functools import partial

import trio

from vllmfront.api.http import ResponseWriter
from vllmfront.api.openai._call import Admitted, InferenceCall
from vllmfront.api.openai._closing import close_cause, shutting_down
from vllmfront.api.openai._exchange import StreamExchange
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.api.openai._usage import RequestTimes, metrics_json
from vllmfront.engine import OutputSink, RequestStream
from vllmfront.engine.metrics import TerminalCause
from vllmfront.errors import VllmFrontError

Sinks = Sequence[Sequence[OutputSink]]
"""One for each choice of each prompt."""


def begin_streamed(
    call: InferenceCall,
    admitted: Admitted,
    answer: StreamedAnswer,
    response: ResponseWriter,
    sink: OutputSink,
) -> StreamExchange:
    """Send a request of one choice, whose answer goes on by itself.

    Raises:
        VllmFrontError: It could not be sent; there is no response yet.
    """
    call.admitted = admitted
    [request] = admitted.requests
    stream = admitted.service.engine.submit_one(request, sink)
    call.stream = stream
    call.gate.queue(call)
    _show_metrics(admitted, answer, stream)
    exchange = StreamExchange(call, answer, response, stream)
    exchange.begin()
    return exchange


async def run_streamed(
    call: InferenceCall, admitted: Admitted, answer: StreamedAnswer, sinks: Sinks
) -> None:
    """Send a request and stream its answer.

    The response head goes out as soon as the request is sent: what fails later is an event.

    Raises:
        VllmFrontError: It could not be sent; there is no response yet.
    """
    stream = await _prepare(call, admitted, sinks)
    _show_metrics(admitted, answer, stream)
    stream.on_begun = answer.start
    stream.on_waiting = answer.keep_alive
    try:
        async with stream:
            await _wait(call, stream)
    except trio.Cancelled:
        if stream.begun and close_cause(call.http) is TerminalCause.SHUTDOWN:
            answer.fail(shutting_down())
        raise
    except VllmFrontError as error:
        if not stream.begun:
            raise
        answer.fail(error)  # does nothing where a choice has said so already
    except Exception as error:
        if stream.begun:
            answer.fail(error)
        raise
    finally:
        answer.abandon()


async def run_whole(call: InferenceCall, admitted: Admitted, sinks: Sinks) -> bytes:
    """Send a request and return once all choices have ended well.

    Returns:
        The ``metrics`` member of the answer.

    Raises:
        VllmFrontError: It could not be sent, or a choice ended with this; the others are aborted.
    """
    stream = await _prepare(call, admitted, sinks)
    async with stream:
        await _wait(call, stream)
    if not admitted.service.options.per_request_metrics:
        return b"null"
    return metrics_json(times_of(stream), stream.num_generated_tokens, omit_unknown=False)


async def _prepare(call: InferenceCall, admitted: Admitted, sinks: Sinks) -> RequestStream:
    """Make the stream of a request, unless there are too many others.

    Raises:
        VllmFrontError: It cannot be sent.
    """
    call.admitted = admitted
    stream = await admitted.service.engine.prepare_all(admitted.requests, sinks)
    stream.why_cancelled = partial(close_cause, call.http)
    call.stream = stream
    call.gate.queue(call)
    return stream


def _show_metrics(admitted: Admitted, answer: StreamedAnswer, stream: RequestStream) -> None:
    if admitted.service.options.per_request_metrics:
        answer.metrics = lambda: metrics_json(
            times_of(stream), stream.num_generated_tokens, omit_unknown=True
        )


def times_of(stream: RequestStream) -> RequestTimes:
    """Return the marks of a stream's first choice on the engine's clock."""
    record = stream.children[0].record
    return RequestTimes(
        queued_at=record.queued_at,
        scheduled_at=record.scheduled_at,
        first_token_at=record.first_token_at,
        last_token_at=record.last_token_at,
    )


async def _wait(call: InferenceCall, stream: RequestStream) -> None:
    """Wait for the end of *stream*, and see to its cause."""
    try:
        await stream.wait_finished()
    except trio.Cancelled:
        stream.leave_cause = close_cause(call.http)
        raise

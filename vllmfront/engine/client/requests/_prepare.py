"""From requests to the children of a stream: checked, fanned out, named and encoded."""

import time
from array import array
from collections.abc import Iterator, Sequence

from vllmfront.engine._fan_out import fan_out
from vllmfront.engine._output import OutputSink
from vllmfront.engine._request import EngineRequest
from vllmfront.engine.client.membership import Membership
from vllmfront.engine.client.requests._buffer import OutputBuffer
from vllmfront.engine.client.requests._child import Child
from vllmfront.engine.client.requests._continuation import may_continue, may_continue_sampling
from vllmfront.engine.client.requests._dispatch import Dispatch
from vllmfront.engine.client.requests._known import KnownForm
from vllmfront.engine.client.requests._request_checks import RequestChecks
from vllmfront.engine.client.requests._stream import CHOICES_A_TURN, RequestStream
from vllmfront.engine.guard import adapt_request
from vllmfront.engine.metrics import EngineMetrics, RequestRecord, TerminalCause
from vllmfront.errors import RequestRejected

Sinks = Sequence[Sequence[OutputSink]]
"""One for each choice of each request."""


class Preparation:
    """Makes the children of streams, and counts what is refused at that."""

    def __init__(
        self,
        checks: RequestChecks,
        dispatch: Dispatch,
        membership: Membership,
        metrics: EngineMetrics,
        *,
        continuation: bool,
    ) -> None:
        self._checks = checks
        self._dispatch = dispatch
        self._membership = membership
        self._metrics = metrics
        self._continuation = continuation

    def prepare(
        self,
        stream: RequestStream,
        requests: Sequence[EngineRequest],
        sinks: Sinks | None,
        buffer: OutputBuffer | None,
    ) -> Iterator[None]:
        """Add a child for each choice; yield where other tasks should get a turn.

        Raises:
            RequestRejected: An engine could not survive it.
        """
        try:
            yield from self._add_children(stream, requests, sinks, buffer)
        except RequestRejected:
            self._metrics.count_cause(TerminalCause.REFUSED)
            raise

    def prepare_one(self, stream: RequestStream, request: EngineRequest, sink: OutputSink) -> None:
        """Add the only child of *stream*, as ``prepare`` does, for a request of one choice.

        Raises:
            RequestRejected: An engine could not survive it.
        """
        try:
            known = self._checks.check(request, self._checks.limits)
            if known is None:
                request = adapt_request(request, self._membership.info.vllm_version)
            child = _child(stream, 0, request.request_id, request, sink)
            if known is not None:
                child.encoded_sampling = known.encoded
            self._dispatch.prepare(child, ())
        except RequestRejected:
            self._metrics.count_cause(TerminalCause.REFUSED)
            raise
        stream.children.append(child)
        self._keep_tokens(child, known)

    def _add_children(
        self,
        stream: RequestStream,
        requests: Sequence[EngineRequest],
        sinks: Sinks | None,
        buffer: OutputBuffer | None,
    ) -> Iterator[None]:
        taken = set[str]()
        children = stream.children
        limits = self._checks.limits
        version = self._membership.info.vllm_version
        for number, request in enumerate(requests):
            known = self._checks.check(request, limits)
            choices = fan_out(adapt_request(request, version), limits.max_choices)
            own = None if sinks is None else _fitting(sinks[number], request)
            for place, choice in enumerate(choices):
                index = len(children)
                if own is not None:
                    sink = own[place]
                else:
                    assert buffer is not None
                    sink = buffer.sink(index)
                child = _child(stream, index, request.request_id, choice, sink)
                if known is not None and choice.sampling is request.sampling:
                    child.encoded_sampling = known.encoded
                self._dispatch.prepare(child, taken)
                taken.add(child.internal_id)
                children.append(child)
                if index % CHOICES_A_TURN == CHOICES_A_TURN - 1:
                    yield
        if len(children) == 1:
            self._keep_tokens(children[0], known)

    def _keep_tokens(self, child: Child, known: KnownForm | None) -> None:
        """Have the tokens of *child* kept, where it can go on with them on another engine."""
        if not self._continuation:
            return
        request = child.request
        safe = may_continue_sampling(request.sampling) if known is None else known.continuable
        if safe and may_continue(request):
            child.kept = array("I")


def _fitting(sinks: Sequence[OutputSink], request: EngineRequest) -> Sequence[OutputSink]:
    choices = 1 if request.sampling is None else request.sampling.n
    if len(sinks) != choices:
        raise ValueError(f"{choices} choices need as many sinks, not {len(sinks)}")
    return sinks


def _child(
    stream: RequestStream, index: int, public_id: str, request: EngineRequest, sink: OutputSink
) -> Child:
    arrival = request.arrival_time
    waited = max(0.0, time.time() - arrival) if arrival else 0.0
    record = RequestRecord(
        arrival=time.monotonic() - waited,
        prompt_tokens=len(request.prompt_token_ids),
        max_tokens=None if request.sampling is None else request.sampling.max_tokens,
    )
    return Child(
        stream=stream,
        index=index,
        request=request,
        public_id=public_id,
        sink=sink,
        on_tokens=sink.on_tokens,
        on_output=sink.on_output,
        record=record,
    )

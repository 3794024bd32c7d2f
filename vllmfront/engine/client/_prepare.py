"""From requests to the children of a stream: checked, fanned out, named and encoded."""

import time
from array import array
from collections.abc import Iterator, Sequence

from vllmfront.engine._fan_out import fan_out
from vllmfront.engine._output import OutputSink
from vllmfront.engine._request import EngineRequest
from vllmfront.engine.client._buffer import OutputBuffer
from vllmfront.engine.client._child import Child
from vllmfront.engine.client._continuation import may_continue, may_continue_sampling
from vllmfront.engine.client._dispatch import Dispatch
from vllmfront.engine.client._membership import Membership
from vllmfront.engine.client._request_checks import RequestChecks
from vllmfront.engine.client._stream import CHOICES_A_TURN, RequestStream
from vllmfront.engine.guard import adapt_request
from vllmfront.engine.metrics import RequestRecord

Sinks = Sequence[Sequence[OutputSink]]
"""One for each choice of each request."""


class Preparation:
    """Makes the children of streams."""

    def __init__(
        self,
        checks: RequestChecks,
        dispatch: Dispatch,
        membership: Membership,
        *,
        continuation: bool,
    ) -> None:
        self._checks = checks
        self._dispatch = dispatch
        self._membership = membership
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
                children.append(child)
                if index % CHOICES_A_TURN == CHOICES_A_TURN - 1:
                    yield
        if len(children) == 1 and self._continuation:
            [child] = children
            sampling = child.request.sampling
            safe = may_continue_sampling(sampling) if known is None else known.continuable
            if safe and may_continue(child.request):
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
    return Child(stream, index, request=request, public_id=public_id, sink=sink, record=record)

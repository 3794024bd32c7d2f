"""The books of client requests: each ends once, with a cause, in a counter and in the log."""

import logging

import attrs
import trio

from vllmfront.api.metrics import InferenceMetrics
from vllmfront.api.openai._call import InferenceCall
from vllmfront.engine.metrics import TerminalCause
from vllmfront.errors import (
    EngineDied,
    FeatureNotServed,
    Overloaded,
    Reason,
    RequestRejected,
    RequestTimedOut,
    ServiceUnavailable,
    VllmFrontError,
)

_LOGGER = logging.getLogger(__name__)

QUIET_SECONDS = 5.0
"""Between two lines about refusals for the same reason: thousands a second may be refused."""

_EXPECTED = {TerminalCause.CLIENT_GONE, TerminalCause.ADMIN_ABORTED}
"""Ends that are no success, and that somebody wanted."""


@attrs.define
class _Unlogged:
    """Refusals for one reason since the last line about them."""

    count: int = 0
    quiet_until: float = 0.0


class RequestEnds:
    """Takes down how requests end. Those that engines never saw are told together, by reason."""

    def __init__(self, metrics: InferenceMetrics) -> None:
        self._metrics = metrics
        self._unlogged: dict[Reason, _Unlogged] = {}

    def note(
        self,
        call: InferenceCall,
        cause: TerminalCause | None = None,
        error: VllmFrontError | None = None,
    ) -> None:
        """Take down the one end of *call*.

        Args:
            call: What ended.
            cause: Why, where it is not for its stream or for *error* to say.
            error: What its route raised.
        """
        cause = cause or cause_of(call, error)
        self._metrics.ends[cause] += 1
        if cause is not TerminalCause.REFUSED:
            _log(call, cause, error)
        elif isinstance(error, ServiceUnavailable):
            self.note_refusal(error)

    def note_refusal(self, error: ServiceUnavailable) -> None:
        """Take down that somebody was told to come again, before anything was done for them."""
        refusals = self._metrics.refusals
        refusals[error.reason] = refusals.get(error.reason, 0) + 1
        unlogged = self._unlogged.setdefault(error.reason, _Unlogged())
        unlogged.count += 1
        now = trio.current_time()
        if now < unlogged.quiet_until:
            return
        measured = ""
        if isinstance(error, Overloaded):
            measured = f" limit={error.limit:g} current={error.current:g}"
        _LOGGER.log(
            logging.WARNING if measured else logging.INFO,
            "Refused %d requests with 503: reason=%s%s: %s",
            unlogged.count,
            error.reason.value,
            measured,
            error,
        )
        self._unlogged[error.reason] = _Unlogged(quiet_until=now + QUIET_SECONDS)


def cause_of(call: InferenceCall, error: VllmFrontError | None) -> TerminalCause:
    """Return why *call* ended, whose route has raised *error*, or returned."""
    if call.stream is not None and call.stream.cause is not None:
        return call.stream.cause
    if isinstance(error, RequestTimedOut):
        return TerminalCause.TIMED_OUT
    if isinstance(error, EngineDied):
        return TerminalCause.ENGINE_DIED
    if isinstance(error, ServiceUnavailable | RequestRejected | FeatureNotServed):
        return TerminalCause.REFUSED
    return TerminalCause.INTERNAL_ERROR


def _log(call: InferenceCall, cause: TerminalCause, error: VllmFrontError | None) -> None:
    admitted, stream = call.admitted, call.stream
    if cause.ended_well and admitted is not None and not admitted.service.options.log_requests:
        return
    if error is None and stream is not None:
        error = stream.error
    expected = cause.ended_well or cause in _EXPECTED
    _LOGGER.log(
        logging.INFO if expected else logging.WARNING,
        "Request ended: cause=%s model=%s prompt_tokens=%d output_tokens=%d request_id=%s"
        " engine_request_ids=%s%s",
        cause.value,
        "-" if admitted is None else admitted.model,
        0 if admitted is None else sum(len(each.prompt_token_ids) for each in admitted.requests),
        0 if stream is None else stream.num_generated_tokens,
        "-" if admitted is None else admitted.marks.id,
        "-" if stream is None else ",".join(child.internal_id for child in stream.children),
        "" if error is None else f": {error}",
    )

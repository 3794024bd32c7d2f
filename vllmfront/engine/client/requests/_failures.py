"""From an engine's words about a failed request to an error that says who is to blame."""

from vllmfront.engine._output import EngineOutput
from vllmfront.engine._request import EngineRequest
from vllmfront.engine.client.requests._child import Child
from vllmfront.errors import (
    EngineRequestFailed,
    EngineUnavailable,
    Reason,
    RequestRejected,
    VllmFrontError,
)

_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def failure_of(output: EngineOutput, child: Child) -> VllmFrontError:
    """Return what an end with finish reason ERROR means for the client."""
    error = output.error
    constraint = _constraint(child.request)
    param = None if constraint is None else "structured_outputs"
    if error is not None:
        if error.code == "validation_error":
            return RequestRejected(error.message, param=param)
        if error.retryable:
            reason = Reason.PAUSED if error.code == "engine_paused" else Reason.REFUSED
            return EngineUnavailable(error.message, reason=reason)
        return EngineRequestFailed(error.message)
    if output.mm_cache_miss_hashes:
        return EngineRequestFailed("The engine has forgotten the media of this request; try again")
    if constraint is not None and child.record.num_tokens == 0:
        # Engines before 0.33 give no reason; a constraint they cannot compile is the usual one.
        return RequestRejected(
            f"The engine could not apply the structured output constraint {constraint!r}",
            param=param,
        )
    return EngineRequestFailed("The engine ended the request with an error")


def _constraint(request: EngineRequest) -> str | None:
    sampling = request.sampling
    if sampling is None or sampling.structured_outputs is None:
        return None
    structured = sampling.structured_outputs
    return next((name for name in _CONSTRAINTS if getattr(structured, name) is not None), None)

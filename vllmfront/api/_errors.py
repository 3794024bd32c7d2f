"""The one table that turns errors into HTTP statuses."""

import math
from collections.abc import Mapping
from typing import Any

import attrs

from vllmfront.api._error_json import INTERNAL_MESSAGE, error_json
from vllmfront.api.http import Headers, ResponseWriter
from vllmfront.errors import (
    ControlCallFailed,
    ControlCallTimeout,
    EngineRequestFailed,
    FeatureNotServed,
    GenerationHeld,
    MalformedRequest,
    ModelNotFound,
    Reason,
    RequestRejected,
    RequestTimedOut,
    ServiceUnavailable,
    StateConflict,
    UtilityCallTimeout,
    VllmFrontError,
)


@attrs.frozen
class ErrorAnswer:
    """How one error looks to a client; ``code`` in its JSON is the status."""

    status: int
    type: str
    message: str
    param: str | None = None
    retry_after: int | None = None
    """Whole seconds until another try may succeed; becomes a header."""

    reason: Reason | None = None
    """Why a later try may succeed; only those answers have it in their JSON."""

    details: Mapping[str, Any] = attrs.field(factory=dict)
    """What else programs may want to know; stands in the JSON as well."""

    def json(self) -> bytes:
        """Return ``{"error": {...}}``, as a body and as the data of a stream event."""
        return error_json(
            self.status, self.type, self.message, self.param, self.reason, details=self.details
        )


_TABLE: tuple[tuple[type[Exception], int, str], ...] = (
    (MalformedRequest, 400, "Bad Request"),
    (ModelNotFound, 404, "NotFoundError"),
    (RequestRejected, 400, "BadRequestError"),
    (FeatureNotServed, 501, "NotImplementedError"),
    (StateConflict, 409, "Conflict"),
    (ServiceUnavailable, 503, "ServiceUnavailableError"),
    (RequestTimedOut, 504, "GatewayTimeoutError"),
    (UtilityCallTimeout, 504, "GatewayTimeoutError"),
    (ControlCallTimeout, 504, "GatewayTimeoutError"),
    (VllmFrontError, 500, "InternalServerError"),
)
"""First match wins; what is not in here is a bug and answered with a bare 500."""


def answer_to(error: Exception) -> ErrorAnswer:
    """Return what a client is told about *error*."""
    row = next((row for row in _TABLE if isinstance(error, row[0])), None)
    message = str(error)
    if row is None or isinstance(error, EngineRequestFailed) or not message:
        message = INTERNAL_MESSAGE
    _, status, kind = row or _TABLE[-1]
    param = error.param if isinstance(error, RequestRejected) else None
    retry_after = reason = None
    if isinstance(error, ServiceUnavailable):
        retry_after = max(1, math.ceil(error.retry_after))
        reason = error.reason
    elif isinstance(error, RequestTimedOut):
        reason = error.reason
    return ErrorAnswer(status, kind, message, param, retry_after, reason, _details(error))


def _details(error: Exception) -> Mapping[str, Any]:
    if isinstance(error, GenerationHeld):
        return {"mode": error.mode, "since": error.since}
    if isinstance(error, StateConflict):
        return {"state": error.state, "holder": error.holder, "since": error.since}
    if isinstance(error, ControlCallFailed):
        ranks = {str(rank): text for rank, text in error.failures.items()}
        return {"phase": error.phase, "engines": ranks}
    return {}


def respond_with_error(response: ResponseWriter, error: Exception) -> ErrorAnswer:
    """Answer a request that has no response yet with *error*."""
    answer = answer_to(error)
    headers: Headers = ()
    if answer.retry_after is not None:
        headers = ((b"retry-after", str(answer.retry_after).encode()),)
    response.respond(answer.status, answer.json(), headers=headers)
    return answer

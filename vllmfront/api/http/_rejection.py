"""Requests that the server refuses by itself, before any handler sees them."""

from vllmfront.api._error_json import INTERNAL_MESSAGE, error_json
from vllmfront.errors import VllmFrontError


class Rejection(VllmFrontError):
    """Raised when a request cannot be read; its connection ends after the answer.

    The body is empty for a broken head, as the peer answers it, and an error object where only
    the body is at fault. ``reason`` is for logs; ``advice`` says what an operator can do about
    it, where there is something.
    """

    def __init__(self, status: int, reason: str, body: bytes = b"", *, advice: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.body = body
        self.advice = advice


def malformed(reason: str) -> Rejection:
    return Rejection(400, reason)


def headers_too_large(reason: str) -> Rejection:
    return Rejection(431, reason)


def body_broken(reason: str) -> Rejection:
    return Rejection(400, reason, _error_body("error reading a body from connection"))


def body_too_large(limit: int) -> Rejection:
    return Rejection(
        400,
        f"the body is larger than {limit} bytes",
        _error_body("length limit exceeded"),
        advice="VLLM_HTTP_MAX_REQUEST_BODY_SIZE raises the limit",
    )


INTERNAL_ERROR = error_json(500, "InternalServerError", INTERNAL_MESSAGE)
"""The body of a 500 where a handler failed to answer by itself."""


def _error_body(cause: str) -> bytes:
    return error_json(400, "Bad Request", f"Failed to buffer the request body: {cause}")

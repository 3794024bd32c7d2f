"""The JSON shape of all errors that clients see. Imports nothing, so the server uses it as well."""

from collections.abc import Mapping
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode

INTERNAL_MESSAGE = "Internal server error"
"""What clients learn of our own bugs, and of engine failures without an explanation."""


def error_json(
    status: int,
    kind: str,
    message: str,
    param: str | None = None,
    reason: str | None = None,
    *,
    details: Mapping[str, Any] | None = None,
) -> bytes:
    """Return ``{"error": {...}}``; ``reason`` and *details* stand in it where there are any."""
    fields: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": status}
    if reason is not None:
        fields["reason"] = reason
    if details:
        fields |= details
    return _encode({"error": fields})

"""What a request to a developer route says: its query, and the object in its body."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec
import trio

from vllmfront.api.http import HttpRequest
from vllmfront.errors import MalformedRequest, RequestRejected

Choice = TypeVar("Choice", bound=StrEnum)

_TRUE, _FALSE = {"true", "1", "yes", "on", "t", "y"}, {"false", "0", "no", "off", "f", "n"}
"""The spellings that vLLM's Python server takes, in lower case."""

_IN_THREAD = 1 << 20
"""Bytes of JSON from which on decoding would hold the event loop for too long."""


class Query:
    """The query of a request; of a parameter that comes twice the last one counts."""

    def __init__(self, request: HttpRequest) -> None:
        try:
            text = request.query.decode()
            self._values = parse_qs(text, keep_blank_values=True, errors="strict")
        except UnicodeDecodeError as error:
            raise RequestRejected("The query is no UTF-8") from error

    def text(self, name: str) -> str | None:
        """Return a parameter; None where it is not there, or empty."""
        return self._values.get(name, [""])[-1] or None

    def texts(self, name: str) -> list[str]:
        """Return all values of a parameter that may come more than once."""
        return self._values.get(name, [])

    def flag(self, name: str, default: bool) -> bool:
        """Return a switch.

        Raises:
            RequestRejected: It is neither true nor false.
        """
        value = self._values.get(name, [None])[-1]
        if value is None:
            return default
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        raise RequestRejected(f"{name} must be true or false, got {value!r}", param=name)

    def choice(self, name: str, choices: type[Choice], default: Choice) -> Choice:
        """Return a member of the enumeration *choices*.

        Raises:
            RequestRejected: It has no such member.
        """
        value = self._values.get(name, [None])[-1]
        if value is None:
            return default
        if value not in {each.value for each in choices}:
            named = ", ".join(choices)
            raise RequestRejected(f"{name} must be one of {named}, got {value!r}", param=name)
        return choices(value)


def seconds_of(text: str, param: str) -> float:
    """Read a positive number of seconds.

    Raises:
        RequestRejected: It is something else.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise RequestRejected(
            f"{param} must be a number of seconds above 0, got {text!r}", param=param
        )
    return seconds


async def body_of(request: HttpRequest, *, required: bool = True) -> Mapping[str, Any]:
    """Return the JSON object in the body; an empty one where it may be left out, and is.

    Raises:
        MalformedRequest: It is something else.
    """
    if not request.body and not required:
        return {}
    decode = msgspec.json.decode
    try:
        if len(request.body) < _IN_THREAD:
            value = decode(request.body)
        else:
            value = await trio.to_thread.run_sync(decode, request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRequest(f"Failed to parse the request body as JSON: {error}") from error
    if value is None and not required:
        return {}
    if not isinstance(value, dict):
        raise MalformedRequest.misfit("the body must be an object")
    return value


def member(body: Mapping[str, Any], name: str, kinds: type | tuple[type, ...], *, what: str) -> Any:
    """Return a member that must be there.

    Raises:
        MalformedRequest: It is not, or no *what*.
    """
    if name not in body:
        raise MalformedRequest.misfit(f"missing field `{name}`")
    return optional(body, name, kinds, what=what, nullable=False)


def optional(
    body: Mapping[str, Any],
    name: str,
    kinds: type | tuple[type, ...],
    *,
    what: str,
    nullable: bool = True,
) -> Any:
    """Return a member that may be left out; None then.

    Raises:
        MalformedRequest: It is there, and no *what*.
    """
    value = body.get(name)
    if (value is None and nullable) or (
        isinstance(value, kinds) and not (isinstance(value, bool) and kinds is not bool)
    ):
        return value
    raise MalformedRequest.misfit(f"`{name}` must be {what}", name)

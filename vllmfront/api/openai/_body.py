"""JSON bodies into request classes, and faults into the words that clients of the peer know."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, TypeGuard, TypeVar, get_args, get_origin

import msgspec

from vllmfront.api.http import HttpRequest
from vllmfront.api.openai._fields import I32, I64, U32, NonZeroU32
from vllmfront.chat import describe_value
from vllmfront.errors import MalformedRequest

T = TypeVar("T")

_JSON_TYPE = re.compile(rb"\s*application/(?:[\w.+-]+\+)?json\s*(?:;|$)", re.IGNORECASE)
_SYNTAX = "Failed to parse the request body as JSON: "
_NUMBERS = {U32: "u32", NonZeroU32: "a nonzero u32", I32: "i32", I64: "i64"}
_UNTAGGED = {"stop": "StringOrArray", "prompt": "Prompt"}
_WORDS = {"Input data was truncated": "EOF while parsing a value"}
_PLAIN = {float: "f32", str: "a string", bool: "a boolean", list: "a sequence", dict: "a map"}


class Body(Generic[T]):
    """Decodes the bodies of one route into a struct, strictly.

    Wrong types are refused, unknown members ignored, of a member that comes twice the last one
    counts.
    """

    def __init__(self, target: type[T]) -> None:
        self._target = target
        self._decode = msgspec.json.Decoder(target).decode

    def decode(self, request: HttpRequest) -> T:
        """Return the request in the body.

        Raises:
            MalformedRequest: It is no JSON, or does not fit.
        """
        content_type = request.header(b"content-type")
        if content_type is None or not _JSON_TYPE.match(content_type):
            raise MalformedRequest("Expected request with `Content-Type: application/json`")
        try:
            try:
                return self._decode(request.body)
            except msgspec.ValidationError as error:
                fault = self._misfit(request.body, str(error))
                raise MalformedRequest.misfit(fault) from error
        except RecursionError as error:
            raise MalformedRequest(f"{_SYNTAX}recursion limit exceeded") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            problem = str(error).removeprefix("JSON is malformed: ")
            raise MalformedRequest(_SYNTAX + _WORDS.get(problem, problem)) from error

    def _misfit(self, body: bytes, message: str) -> str:
        """Say again, in the peer's way, where *body* does not fit and how.

        Raises:
            msgspec.DecodeError: It is no JSON either, further on.
            RecursionError: It is nested too deeply.
        """
        if missing := re.match(
            r"Object missing required field (`[^`]*`)(?: - at `\$\.?(.*)`)?", message
        ):
            owner = f"{missing[2]}: " if missing[2] else ""
            return f"{owner}missing field {missing[1]}"
        what, _, where = message.partition(" - at `$")
        path = where.rstrip("`").removeprefix(".")
        if not path:
            found = describe_value(msgspec.json.decode(body))
            return f"invalid type: {found}, expected struct {self._target.__name__}"
        if name := _UNTAGGED.get(path.partition("[")[0]):
            return (
                f"{path.partition('[')[0]}: data did not match any variant of untagged enum {name}"
            )
        if "..." in path:  # some value of a mapping
            return f"{path}: {what}"
        value, target = _look_up(self._target, msgspec.json.decode(body), path)
        if isinstance(value, str) and get_origin(target) is Literal:
            return f"{path}: unknown variant `{value}`, expected {_one_of(get_args(target))}"
        expected = _name_of(target)
        if expected is None:
            return f"{path}: {what}"
        if isinstance(value, int) and "int" in what and "got" not in what:
            return f"{path}: invalid value: integer `{value}`, expected {expected}"
        return f"{path}: invalid type: {describe_value(value)}, expected {expected}"


def _look_up(target: Any, value: Any, path: str) -> tuple[Any, Any]:
    """Follow *path* and return the value there, and the type that it should have had."""
    for step in re.findall(r"[^.\[\]]+", path):
        target = _strip_optional(target)
        if isinstance(value, Mapping):
            value = value.get(step)
            fields = msgspec.structs.fields(target) if _is_struct(target) else ()
            target = next((field.type for field in fields if field.name == step), None)
        else:
            value = value[int(step)]
            target = (get_args(target) or (None,))[0]
    return value, _strip_optional(target)


def _is_struct(target: Any) -> TypeGuard[type[msgspec.Struct]]:
    return isinstance(target, type) and issubclass(target, msgspec.Struct)


def _strip_optional(target: Any) -> Any:
    """Return the one member of an optional type, and every other type as it is."""
    if get_origin(target) is Annotated:
        return target
    members = [member for member in get_args(target) if member is not type(None)]
    return members[0] if type(None) in get_args(target) and len(members) == 1 else target


def _one_of(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " or ".join(quoted) if len(quoted) < 3 else f"one of {', '.join(quoted)}"  # noqa: PLR2004


def _name_of(target: Any) -> str | None:
    if target in _NUMBERS:
        return _NUMBERS[target]
    if _is_struct(target):
        return f"struct {target.__name__}"
    return _PLAIN.get(get_origin(target) or target)

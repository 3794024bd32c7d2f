"""What an engine sends on its output socket: one message a step, rows left raw."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from msgspec import Struct

from vllmfront.engine.wire import _check as check
from vllmfront.engine.wire._msgpack import unpack
from vllmfront.errors import ProtocolError

DEAD_FRAME = b"ENGINE_CORE_DEAD"
"""The only frame that is not MessagePack: the engine core has failed, nothing more will come."""


@attrs.frozen
class EngineDead:
    """The engine's last words."""


@attrs.frozen
class UtilityAnswer:
    """The answer to a utility call, or a push that nobody asked for (negative call ids)."""

    call_id: int
    failure: str | None
    """Why the call failed; text may be missing after its colon."""

    result: Any
    """Plain data, without the wrapper that may name its Python types."""


class Batch(Struct, frozen=True):
    """One message of an engine. Rows stay as they came: see ``is_plain``, ``decode_output``."""

    engine_index: int
    rows: list[Any]
    scheduler_stats: Mapping[str, Any] | None
    """Raw; ``decode_stats`` makes a value of it."""

    timestamp: float
    """The engine's monotonic clock, in seconds; 0.0 when it sent none."""

    utility: UtilityAnswer | None
    finished_requests: list[str] | None
    """Ids freed since the last message, those whose row carries a finish reason included."""

    wave_complete: int | None
    start_wave: int | None
    weight_version: str | None


_DEFAULTS: list[Any] = [0, [], None, 0.0, None, None, None, None, None]
_LENGTH = len(_DEFAULTS)


def decode_batch(frames: Sequence[bytes | memoryview]) -> Batch | EngineDead:
    """Read one message of the output socket.

    Raises:
        ProtocolError: The message as a whole is unusable. A bad row does not show here.
    """
    if not frames:
        raise ProtocolError("an output message has no frame")
    first = frames[0]
    if len(first) == len(DEAD_FRAME) and bytes(first) == DEAD_FRAME:
        return EngineDead()
    message = unpack(first)
    if type(message) is not list:
        raise check.wrong("output message", "an array", message)
    if len(message) != _LENGTH:
        message = check.padded(message, _DEFAULTS, 0, "output message")
    index, rows, stats, timestamp, utility, finished, complete, start, version = message
    if type(index) is not int or type(rows) is not list:
        check.integer(index, "engine_index")
        check.array(rows, "outputs")
    if type(timestamp) is not float:
        timestamp = check.number(timestamp, "timestamp")
    if stats is not None:
        check.text_map(stats, "scheduler_stats")
    if version is not None:
        check.text(version, "weight_version")
    if utility is not None:
        utility = _decode_utility(utility)
    if finished is not None:
        check.texts(finished, "finished_requests")
    if complete is not None:
        check.integer(complete, "wave_complete")
    if start is not None:
        check.integer(start, "start_wave")
    return Batch(index, rows, stats, timestamp, utility, finished, complete, start, version)


def _decode_utility(value: object) -> UtilityAnswer:
    call_id, failure, wrapped = check.padded(value, [None] * 3, 2, "utility_output")
    check.integer(call_id, "call_id")
    if failure is not None:
        return UtilityAnswer(call_id, check.text(failure, "failure_message"), None)
    if wrapped is None:
        return UtilityAnswer(call_id, None, None)
    # Element 0 may describe the Python types of element 1, which is the same plain data anyway.
    _types, result = check.padded(wrapped, [None] * 2, 2, "utility result")
    return UtilityAnswer(call_id, None, result)


_ROW_LENGTH = 19
# Elements 2 to 18 of a row that says nothing but its new tokens, by the row's length.
_FULL_TAIL: list[Any] = [None] * 11 + [0] + [None] * 5
_TAILS = {length: _FULL_TAIL[: length - 2] for length in range(2, _ROW_LENGTH + 1)}
_tail_for = _TAILS.get


def is_plain(row: object) -> bool:
    """Tell whether *row* is well formed and holds an id, new tokens and nothing else.

    ``row[0]`` and ``row[1]`` are then all there is to read. Anything else, malformed rows
    included, goes to ``decode_output``.
    """
    return (
        type(row) is list
        and row[2:_ROW_LENGTH] == _tail_for(len(row), _FULL_TAIL)
        and type(row[1]) is list
    )


def row_id(row: object) -> str | None:
    """Return the internal id of a row, None where there is none to read."""
    if type(row) is list and row and type(row[0]) is str:
        return row[0]
    return None

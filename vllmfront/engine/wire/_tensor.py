"""Arrays on the wire: ``[dtype, shape, data]``, data inline or in an auxiliary frame."""

import math
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.msgpack import Ext

from vllmfront.errors import ProtocolError

RAW_VIEW = 3
"""The extension type whose payload is the bytes of an array, in C order."""

# What one element is: its size in bytes, its letter for memoryview or struct, and whether its
# bytes come in little-endian order ("<"), big-endian order (">") or have none ("|").
_ELEMENTS: Mapping[str, tuple[int, str, str]] = {
    "bool": (1, "?", "|"),
    "int8": (1, "b", "|"),
    "int16": (2, "h", "<"),
    "int32": (4, "i", "<"),
    "int64": (8, "q", "<"),
    "uint8": (1, "B", "|"),
    "uint16": (2, "H", "<"),
    "uint32": (4, "I", "<"),
    "uint64": (8, "Q", "<"),
    "float16": (2, "e", "<"),
    "bfloat16": (2, "bfloat16", "<"),
    "float32": (4, "f", "<"),
    "float64": (8, "d", "<"),
}
_FLOATING = frozenset({"e", "bfloat16", "f", "d"})
_NUMPY_LETTERS = {
    "b1": "bool",
    **{f"i{size}": f"int{8 * size}" for size in (1, 2, 4, 8)},
    **{f"u{size}": f"uint{8 * size}" for size in (1, 2, 4, 8)},
    **{f"f{size}": f"float{8 * size}" for size in (2, 4, 8)},
}
_TORCH_ALIASES = {
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
}


def _known_dtypes() -> dict[str, tuple[int, str, str]]:
    known = dict(_ELEMENTS)
    known |= {alias: _ELEMENTS[name] for alias, name in _TORCH_ALIASES.items()}
    for letter, name in _NUMPY_LETTERS.items():
        size, code, _ = _ELEMENTS[name]
        orders = "<>" if size > 1 else "|<>"
        known |= {order + letter: (size, code, order) for order in orders}
        # "=" is the sender's own order, and every engine that exists is little-endian.
        known["=" + letter] = (size, code, "<")
    return known


_DTYPES = _known_dtypes()

# A real array has at most five axes or so; the bound keeps nested lists shallow.
_MAX_AXES = 16
# An array without elements may still ask for this many empty rows, not for billions.
_MAX_EMPTY_ROWS = 1 << 16


class Tensor:
    """An array as it travels; its bytes stay where they are until somebody asks for numbers.

    Not an attrs class, because the packer would take one for a map instead of asking us.
    """

    __slots__ = ("data", "dtype", "shape")

    dtype: str
    """NumPy's notation (``<i4``) or torch's (``bfloat16``)."""

    shape: tuple[int, ...]
    data: bytes | memoryview
    """C order; exactly as many bytes as ``dtype`` and ``shape`` need."""

    def __init__(self, dtype: str, shape: tuple[int, ...], data: bytes | memoryview) -> None:
        self.dtype = dtype
        self.shape = shape
        self.data = data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        return (self.dtype, self.shape, self.data) == (other.dtype, other.shape, other.data)

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape, bytes(self.data)))

    def __repr__(self) -> str:
        return f"<Tensor {self.dtype} {list(self.shape)}>"

    @classmethod
    def from_values(cls, dtype: str, values: Sequence[float]) -> "Tensor":
        """Return a vector; *dtype* is neither a half float nor a boolean."""
        return cls(dtype, (len(values),), _packed(dtype, values))

    @classmethod
    def from_rows(cls, dtype: str, rows: Sequence[Sequence[float]]) -> "Tensor":
        """Return a matrix of equally long rows; *dtype* as for ``from_values``."""
        width = len(rows[0]) if rows else 0
        values = [value for row in rows for value in row]
        return cls(dtype, (len(rows), width), _packed(dtype, values))

    @property
    def floating(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return _DTYPES[self.dtype][1] in _FLOATING

    def triple(self) -> list[Any]:
        """Return the wire form with the data inline."""
        return [self.dtype, list(self.shape), Ext(RAW_VIEW, self.data)]

    def tolist(self) -> Any:
        """Return the elements as nested lists of ``shape``; a bare number for shape ``()``."""
        if 0 in self.shape:
            return _empty_rows(self.shape)
        size, code, order = _DTYPES[self.dtype]
        # Any: memoryview's stub wants literal format letters.
        data: Any = memoryview(self.data).cast("B")
        if size > 1 and (order == ">") != (sys.byteorder == "big"):
            data = _swapped(data, size)
        if code == "bfloat16":
            # A bfloat16 is the upper half of a float32.
            widened = array("I", (half << 16 for half in data.cast("H")))
            data, code = memoryview(widened).cast("B"), "f"
        elif code == "e":
            # memoryview reads no half floats.
            halves = struct.unpack(f"={len(data) // 2}e", data)
            data, code = memoryview(array("d", halves)).cast("B"), "d"
        if not self.shape:
            return data.cast(code)[0]
        if len(self.shape) == 1:
            return data.cast(code).tolist()
        return data.cast(code, self.shape).tolist()


def _packed(dtype: str, values: Sequence[float]) -> bytes:
    _, code, order = _DTYPES[dtype]
    return struct.pack(f"{order.replace('|', '=')}{len(values)}{code}", *values)


def _swapped(data: memoryview, size: int) -> memoryview:
    code = {2: "H", 4: "I", 8: "Q"}[size]
    swapped = array(code, data.tobytes())
    swapped.byteswap()
    return memoryview(swapped).cast("B")


def _empty_rows(shape: tuple[int, ...]) -> list[Any]:
    if shape[0] == 0:
        return []
    return [_empty_rows(shape[1:]) for _ in range(shape[0])]


def decode_tensor(value: object, frames: Sequence[bytes | memoryview]) -> Tensor:
    """Read a triple; *frames* is the whole message, so that 1 means the first auxiliary frame.

    Raises:
        ProtocolError: It is no such triple, its dtype is unknown, its frame is missing, or the
            number of bytes does not fit.
    """
    if not isinstance(value, list) or len(value) != 3:  # noqa: PLR2004 -- dtype, shape, data
        raise ProtocolError("an array must be [dtype, shape, data]")
    dtype, shape, data = value
    element = _DTYPES.get(dtype) if type(dtype) is str else None
    if element is None:
        raise ProtocolError(f"array has unknown dtype {dtype!r:.40}")
    if not isinstance(shape, list) or len(shape) > _MAX_AXES:
        raise ProtocolError("array shape must be a short list")
    for length in shape:
        if type(length) is not int or length < 0:
            raise ProtocolError(f"array shape has a bad length {length!r:.40}")
    content = _content(data, frames)
    if math.prod(shape) * element[0] != len(content):
        raise ProtocolError(f"array of {dtype} {shape} cannot have {len(content)} bytes")
    if 0 in shape and math.prod(length for length in shape if length) > _MAX_EMPTY_ROWS:
        raise ProtocolError(f"array of shape {shape} has too many empty rows")
    return Tensor(dtype, tuple(shape), content)


def _content(data: object, frames: Sequence[bytes | memoryview]) -> bytes | memoryview:
    if isinstance(data, Ext):
        if data.code != RAW_VIEW:
            raise ProtocolError(f"array data has extension type {data.code}")
        content = data.data
    elif type(data) is not int:
        raise ProtocolError("array data must be a raw view or a frame number")
    elif not 1 <= data < len(frames):
        raise ProtocolError(f"array data is in frame {data}, of {len(frames)}")
    else:
        content = frames[data]
    # A view of bytes, so that its length counts them; nothing is copied.
    return content if isinstance(content, bytes) else memoryview(content).cast("B")


# Deeper than any feature that exists, far from Python's own limit.
_MAX_DEPTH = 32


def resolve_tensors(
    value: object, frames: Sequence[bytes | memoryview], depth: int = _MAX_DEPTH
) -> Any:
    """Return *value* with every triple inside its lists and maps turned into a ``Tensor``."""
    if isinstance(value, Ext):
        raise ProtocolError("raw bytes outside an array")
    if not isinstance(value, (list, dict)):
        return value
    if depth == 0:
        raise ProtocolError(f"value nests more than {_MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {key: resolve_tensors(item, frames, depth - 1) for key, item in value.items()}
    if (
        len(value) == 3  # noqa: PLR2004 -- dtype, shape, data
        and type(value[0]) is str
        and isinstance(value[1], list)
        and (type(value[2]) is int or isinstance(value[2], Ext))
    ):
        return decode_tensor(value, frames)
    return [resolve_tensors(item, frames, depth - 1) for item in value]

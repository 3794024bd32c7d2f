"""MessagePack as the boundary uses it: errors of one kind, and no foreign objects."""

from collections.abc import Callable
from typing import Any

import msgpack

from vllmfront.engine.wire._tensor import Tensor
from vllmfront.errors import ProtocolError, RequestRejected

# Extension types with which an engine in insecure mode ships Python objects. Loading one would
# run code of the sender's choice.
_PICKLE, _CLOUDPICKLE = 1, 2


def _take_extension(code: int, data: bytes) -> msgpack.ExtType:
    if code in (_PICKLE, _CLOUDPICKLE):
        raise ProtocolError(f"extension type {code} (pickled object) is not accepted")
    return msgpack.ExtType(code, data)


def unpack(frame: bytes | memoryview) -> Any:
    """Decode one frame that holds exactly one value.

    Arrays become lists, ``bin`` becomes bytes, raw views become ``ExtType`` of code 3.

    Raises:
        ProtocolError: The frame is not MessagePack, is cut short, has a tail, nests too deeply,
            holds text that is not UTF-8, a map key that cannot be one, or a pickled object.
    """
    try:
        return msgpack.unpackb(frame, strict_map_key=False, ext_hook=_take_extension)
    except ProtocolError:
        raise
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        # The unpacker has no error base of its own; these four are all that it raises.
        raise ProtocolError(f"frame is not valid MessagePack: {error or type(error)}") from error


def _inline(value: object) -> Any:
    if isinstance(value, Tensor):
        return value.triple()
    raise TypeError(f"values of type {type(value).__name__} cannot be sent")


def pack(value: object, *, default: Callable[[object], Any] = _inline) -> bytes:
    """Encode *value*; tensors anywhere inside it become triples with their data inline.

    Raises:
        RequestRejected: It holds what MessagePack cannot carry: an integer of more than 64 bits,
            text with lone surrogates, nesting beyond 500 levels, a foreign object.
    """
    try:
        packed: bytes = msgpack.packb(value, default=default)
    except (ValueError, TypeError, OverflowError) as error:
        raise RequestRejected(f"The request cannot be encoded for the engine: {error}") from error
    return packed

"""MessagePack as the boundary uses it: errors of one kind, and no foreign objects.

Two libraries, each where it is better. ``msgpack`` unpacks: it is as fast, and bounds lengths and
depth by the frame itself, so that hostile bytes cost no memory. ``msgspec`` packs: four times as
fast, which shows in long prompts.
"""

from collections.abc import Callable
from typing import Any

import msgpack
import msgspec

from vllmfront.engine.wire._tensor import Tensor
from vllmfront.errors import ProtocolError, RequestRejected

# Extension types with which an engine in insecure mode ships Python objects. Loading one would
# run code of the sender's choice.
_PICKLE, _CLOUDPICKLE = 1, 2


def _take_extension(code: int, data: bytes) -> msgspec.msgpack.Ext:
    if code in (_PICKLE, _CLOUDPICKLE):
        raise ProtocolError(f"extension type {code} (pickled object) is not accepted")
    return msgspec.msgpack.Ext(code, data)


def unpack(frame: bytes | memoryview) -> Any:
    """Decode one frame that holds exactly one value.

    Arrays become lists, ``bin`` becomes bytes, raw views become ``Ext`` of code 3.

    Raises:
        ProtocolError: The frame is not MessagePack, is cut short, has a tail, nests too deeply,
            holds text that is not UTF-8, a map key that cannot be one, or a pickled object.
    """
    try:
        return msgpack.unpackb(frame, strict_map_key=False, ext_hook=_take_extension)
    except ProtocolError:
        raise
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        # The unpacker has no error base of its own; these are all that it raises.
        raise ProtocolError(f"frame is not valid MessagePack: {error or type(error)}") from error


def _inline(value: object) -> Any:
    if isinstance(value, Tensor):
        return value.triple()
    raise TypeError(f"values of type {type(value).__name__} cannot be sent")


_encode = msgspec.msgpack.Encoder(enc_hook=_inline).encode


def pack(value: object, encode: Callable[[object], bytes] = _encode) -> bytes:
    """Encode *value*; tensors anywhere inside it become triples with their data inline.

    Raises:
        RequestRejected: It holds what MessagePack cannot carry: an integer of more than 64 bits,
            text with lone surrogates, nesting without end, a foreign object.
    """
    try:
        return encode(value)
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise RequestRejected(f"The request cannot be encoded for the engine: {error}") from error

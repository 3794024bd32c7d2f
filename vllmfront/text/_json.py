"""Text and numbers as JSON fragments, byte for byte as the peer writes them."""

import struct

import msgspec

_FLOAT32 = struct.Struct("f")
_encode = msgspec.json.encode


def json_escape(text: str) -> bytes:
    """Return *text* as the inside of a JSON string: UTF-8, without the quotes.

    Only the quotation mark, the backslash and control characters below U+0020 are escaped.
    """
    return _encode(text)[1:-1]


def f32(value: float) -> float:
    """Round to the nearest 32-bit float; overflow gives an infinity."""
    try:
        return _FLOAT32.unpack(_FLOAT32.pack(value))[0]  # type: ignore[no-any-return] # struct
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def f32_shortest(value: float) -> float:
    """Return the float whose shortest decimal form is that of *value* as a 32-bit float.

    ``-0.0051768300123512745`` (a widened 32-bit float) becomes ``-0.00517683``, which JSON
    encoders then print as the peer does. Infinities and NaN come back as they are.
    """
    packed = _pack(value)
    # Seven significant digits are right for most values; nine are enough for all.
    short = float(f"{value:.7g}")
    if _pack(short) == packed:
        shorter = float(f"{value:.6g}")
        return shorter if _pack(shorter) == packed else short
    longer = float(f"{value:.8g}")
    return longer if _pack(longer) == packed else float(f"{value:.9g}")


_pack = _FLOAT32.pack

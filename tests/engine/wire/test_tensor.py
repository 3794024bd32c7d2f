import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from vllmfront.engine.wire import Tensor, decode_tensor
from vllmfront.errors import ProtocolError

FORMATS = {
    "|b1": "?",
    "|i1": "b",
    "|u1": "B",
    "<i2": "h",
    "<u2": "H",
    "<i4": "i",
    "<u4": "I",
    "<i8": "q",
    "<u8": "Q",
    "<f2": "e",
    "<f4": "f",
    "<f8": "d",
    "bool": "?",
    "uint8": "B",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "long": "q",
    "half": "e",
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "double": "d",
}


@pytest.mark.parametrize(("dtype", "code"), FORMATS.items())
def test_elements_of_every_type_are_read(dtype: str, code: str) -> None:
    values = [0, 1, 1, 0, 1, 0]

    tensor = Tensor(dtype, (2, 3), struct.pack(f"<6{code}", *values))

    assert tensor.tolist() == [[0, 1, 1], [0, 1, 0]]


@pytest.mark.parametrize("dtype", [">i2", ">i4", ">i8", ">f2", ">f4", ">f8"])
def test_big_endian_elements_are_swapped(dtype: str) -> None:
    code = FORMATS["<" + dtype[1:]]

    assert Tensor(dtype, (2,), struct.pack(f">2{code}", 1, 2)).tolist() == [1, 2]


def test_bfloat16_is_the_upper_half_of_a_float() -> None:
    floats = [1.0, -2.5, math.inf, 0.0]
    halves = b"".join(struct.pack("<f", value)[2:] for value in floats)

    assert Tensor("bfloat16", (4,), halves).tolist() == floats


def test_a_scalar_is_a_number() -> None:
    assert Tensor("<f8", (), struct.pack("<d", 0.5)).tolist() == 0.5


def test_more_axes_nest_more_lists() -> None:
    assert Tensor("|u1", (2, 1, 2), bytes([1, 2, 3, 4])).tolist() == [[[1, 2]], [[3, 4]]]


@pytest.mark.parametrize(
    ("shape", "rows"), [((0,), []), ((0, 5), []), ((2, 0), [[], []]), ((1, 2, 0), [[[], []]])]
)
def test_empty_arrays_keep_their_rows(shape: tuple[int, ...], rows: list[Any]) -> None:
    assert Tensor("<i4", shape, b"").tolist() == rows


def test_tensors_are_equal_by_content() -> None:
    assert Tensor("<i4", (1,), b"1234") == Tensor("<i4", (1,), memoryview(b"1234"))
    assert hash(Tensor("<i4", (1,), b"1234")) == hash(Tensor("<i4", (1,), memoryview(b"1234")))
    assert Tensor("<i4", (1,), b"1234") != Tensor("<u4", (1,), b"1234")
    assert Tensor("<i4", (1,), b"1234") != ["<i4", [1], b"1234"]
    assert repr(Tensor("<i4", (1,), b"1234")) == "<Tensor <i4 [1]>"


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3)))
@settings(deadline=None)
def test_rows_come_back(rows: list[list[int]]) -> None:
    tensor = Tensor.from_rows("<i8", rows)

    assert decode_tensor(tensor.triple(), []).tolist() == rows


@given(st.lists(st.floats(width=32, allow_nan=False)))
@settings(deadline=None)
def test_values_come_back(values: list[float]) -> None:
    tensor = Tensor.from_values("float32", values)

    assert decode_tensor(["float32", [len(values)], 1], [b"", tensor.data]).tolist() == values


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "must be"),
        (["<i4", [1]], "must be"),
        (["<x4", [1], Ext(3, b"1234")], "unknown dtype"),
        (["object", [1], Ext(3, b"1234")], "unknown dtype"),
        ([7, [1], Ext(3, b"1234")], "unknown dtype"),
        ([["<i4"], [1], Ext(3, b"1234")], "unknown dtype"),
        (["<i4", 1, Ext(3, b"1234")], "shape must be a short list"),
        (["<i4", [1] * 17, Ext(3, b"1234")], "shape must be a short list"),
        (["<i4", [True], Ext(3, b"1234")], "bad length"),
        (["<i4", [-1, -1], Ext(3, b"1234")], "bad length"),
        (["<i4", [2], Ext(3, b"1234")], "cannot have 4 bytes"),
        (["<i4", [2**62, 2**62], Ext(3, b"1234")], "cannot have 4 bytes"),
        (["<i4", [2**62, 0], Ext(3, b"")], "too many empty rows"),
        (["<i4", [1], Ext(7, b"1234")], "extension type 7"),
        (["<i4", [1], b"1234"], "raw view or a frame number"),
        (["<i4", [1], True], "raw view or a frame number"),
        (["<i4", [1], 0], "frame 0, of 2"),
        (["<i4", [1], 2], "frame 2, of 2"),
        (["<i4", [1], -1], "frame -1, of 2"),
        (["<i4", [1], 1], "cannot have 2 bytes"),
    ],
)
def test_what_is_no_array_is_said(value: object, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        decode_tensor(value, [b"", b"12"])

import json
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmfront.text import f32, f32_shortest, json_escape

F32 = st.floats(width=32, allow_nan=False)


def test_only_what_json_forbids_is_escaped() -> None:
    assert json_escape('"\\/\b\f\n\r\t\x00\x1f\x7fé🙂\u2028') == (
        b'\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f' + "é🙂\u2028".encode()
    )


@settings(deadline=None)
@given(st.text())
def test_escaped_text_reads_back(text: str) -> None:
    assert json.loads(b'"' + json_escape(text) + b'"') == text


@pytest.mark.parametrize(
    ("value", "shortest"),
    [
        (-0.0051768300123512745, -0.00517683),
        (-7.505177021026611, -7.505177),
        (-0.10000000149011612, -0.1),
        (-1.1920928955078125e-07, -1.1920929e-07),
        (-9999.0, -9999.0),
        (0.0, 0.0),
        (16777216.0, 16777216.0),
        (3.4028234663852886e38, 3.4028235e38),
        (-math.inf, -math.inf),
    ],
)
def test_shortest_form_of_a_32_bit_float(value: float, shortest: float) -> None:
    assert f32_shortest(value) == shortest


@settings(deadline=None)
@given(F32)
def test_the_shortest_form_is_the_same_32_bit_float(value: float) -> None:
    short = f32_shortest(value)

    assert struct.pack("f", short) == struct.pack("f", value)
    assert float(f"{short:.9g}") == short


def test_nan_stays_nan() -> None:
    assert math.isnan(f32_shortest(math.nan))


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.7, 0.699999988079071), (1e39, math.inf), (-1e39, -math.inf), (2, 2.0)],
)
def test_rounding_to_32_bits(value: float, rounded: float) -> None:
    assert f32(value) == rounded

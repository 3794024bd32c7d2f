import math

import pytest

from vllmfront.text._debug import (
    debug_float,
    debug_string,
    debug_strings,
    debug_value,
    display_f32,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3.0, "3"),
        (-0.1, "-0.1"),
        (0.699999988079071, "0.7"),
        (1e10, "10000000000"),
        (1e-7, "0.0000001"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "NaN"),
    ],
)
def test_32_bit_floats(value: float, shown: str) -> None:
    assert display_f32(value) == shown


def test_64_bit_floats() -> None:
    assert [debug_float(value) for value in (2, -0.10000000149011612, 1e39)] == [
        "2.0",
        "-0.10000000149011612",
        "1e39",
    ]


def test_strings() -> None:
    assert debug_string("a\"\\\n\t'é\x7f\u200b") == '"a\\"\\\\\\n\\t\'é\\u{7f}\\u{200b}"'
    assert debug_value(None) == "Null"


def test_of_enormous_values_the_beginning_is_shown() -> None:
    one = debug_value("a" * 10_000_000)
    many = debug_value(["a"] * 1_000_000)

    assert one == 'String("' + "a" * 8192 + '...")'
    assert many.startswith('Array [String("a"), ')
    assert many.endswith('String("a"), String(...)]')
    assert len(many) < 100_000
    assert debug_strings(["x"] * 1_000_000).endswith(', "x", ...]')

"""Whatever bytes come in, what goes out is a value or a ``ProtocolError``."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.wire.golden import BATCHES, ENTRIES, HANDSHAKES, REGISTRATIONS, REQUESTS
from vllmfront.engine.wire import (
    Batch,
    decode_batch,
    decode_frontend_notice,
    decode_handshake,
    decode_init,
    decode_load_report,
    decode_output,
    decode_registration,
    decode_request,
    decode_stats,
    is_plain,
    row_id,
)
from vllmfront.errors import ProtocolError

# Slow machines are no failures.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def read_output_message(frames: Sequence[bytes]) -> None:
    """Do with a message what the reader does."""
    batch = decode_batch(frames)
    if not isinstance(batch, Batch):
        return
    decode_stats(batch.scheduler_stats)
    for row in batch.rows:
        row_id(row)
        with contextlib.suppress(ProtocolError):
            output = decode_output(row, frames)
            for field in (output.pooling_output, output.routed_experts):
                if field is not None:
                    field.tolist()
            continue
        assert not is_plain(row) or not set(map(type, row[1])) <= {int}


PAYLOAD_READERS: list[Callable[[bytes], object]] = [
    decode_handshake,
    decode_init,
    decode_registration,
    decode_load_report,
    decode_frontend_notice,
]


def read_everywhere(frames: Sequence[bytes]) -> None:
    with contextlib.suppress(ProtocolError):
        read_output_message(frames)
    for type_byte in (b"\0", b"\1", b"\2", b"\3"):
        with contextlib.suppress(ProtocolError):
            decode_request([type_byte, *frames])
    for read in PAYLOAD_READERS:
        with contextlib.suppress(ProtocolError):
            read(frames[0])


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3))
@settings(PATIENT)
def test_arbitrary_bytes(frames: list[bytes]) -> None:
    read_everywhere(frames)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.builds(msgpack.ExtType, st.sampled_from([0, 1, 2, 3, 7]), st.binary(max_size=16)),
    st.sampled_from(["<i4", "<f4", "float32", "bfloat16", "bool", "|u1"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.one_of(st.text(max_size=8), st.integers(-9, 9)), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(st.lists(values, max_size=10), st.binary(max_size=20))
@settings(PATIENT)
def test_arbitrary_values(message: list[Any], aux: bytes) -> None:
    read_everywhere([msgpack.packb(message), aux])


@given(st.lists(st.lists(values, max_size=20), max_size=3), st.binary(max_size=20))
@settings(PATIENT)
def test_arbitrary_rows(rows: list[Any], aux: bytes) -> None:
    read_everywhere([msgpack.packb([0, rows]), aux])


@given(st.data())
@settings(PATIENT, max_examples=150)
def test_golden_frames_with_a_value_exchanged(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(BATCHES + REQUESTS + HANDSHAKES + REGISTRATIONS))
    message = entry.raw()

    exchange_somewhere(message, data)

    read_everywhere([msgpack.packb(message), *entry.frames[1:]])


def exchange_somewhere(value: Any, data: st.DataObject) -> None:
    """Put an arbitrary value in a random place of a nested message."""
    while isinstance(value, (list, dict)) and value:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = data.draw(st.sampled_from(keys))
        inner = value[key]
        if not isinstance(inner, (list, dict)) or not inner or data.draw(st.booleans()):
            value[key] = data.draw(values)
            return
        value = inner


@given(st.data())
@settings(PATIENT, max_examples=150)
def test_golden_frames_with_bytes_exchanged(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(ENTRIES))
    frames = [bytearray(frame) for frame in entry.frames]

    for _ in range(data.draw(st.integers(1, 4))):
        frame = frames[data.draw(st.integers(0, len(frames) - 1))]
        if frame:
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))

    read_everywhere([bytes(frames[0])[: len(frames[0]) - cut], *map(bytes, frames[1:])])


@pytest.mark.parametrize("depth", [100, 1_000, 100_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1k"])
def test_deep_nesting(depth: int, opening: bytes) -> None:
    read_everywhere([opening * depth + b"\x90"])
    read_everywhere([b"\x92\x00\x91\x93\xa1r\x90" + opening * depth + b"\x90"])
    read_everywhere([b"\x99\xa1r\x91\x01" + opening * depth + b"\x90" + b"\xc0" * 6])


@pytest.mark.parametrize("head", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"])
def test_lengths_that_lie(head: bytes) -> None:
    read_everywhere([head + b"\xff\xff\xff\xff"])
    read_everywhere([b"\x92\x00" + head + b"\xff\xff\xff\xff" + b"\x03"])

"""Who waits, in which order, and how long."""

import math
from typing import cast

from tests.engine._helpers import RecordingSink, request
from vllmfront.engine import RequestStream
from vllmfront.engine.client.requests._child import Child
from vllmfront.engine.client.requests._waiting_room import WaitingRoom
from vllmfront.engine.metrics import RequestRecord


class Stream:
    """Stands for a stream: only its identity matters here."""


def child(stream: Stream | None = None, pin: int | None = None) -> Child:
    sink = RecordingSink()
    return Child(
        stream=cast("RequestStream", stream or Stream()),
        index=0,
        request=request(data_parallel_rank=pin),
        public_id="r",
        sink=sink,
        on_tokens=sink.on_tokens,
        on_output=sink.on_output,
        record=RequestRecord(arrival=0.0, prompt_tokens=3, max_tokens=1),
    )


def test_who_comes_first_is_first_and_each_rank_has_a_queue() -> None:
    room = WaitingRoom(30.0)
    a, b, pinned = child(), child(), child(pin=1)
    for number, one in enumerate((a, pinned, b)):
        room.enter(one, float(number))

    assert room.first(None) is a
    assert room.first(1) is pinned
    assert room.first(2) is None
    assert room.pins == [None, 1]
    assert list(room) == [a, b, pinned]
    assert len(room) == 3


def test_time_is_up_in_the_order_of_coming() -> None:
    room = WaitingRoom(30.0)
    a, b, pinned = child(), child(), child(pin=1)
    room.enter(pinned, 5.0)
    room.enter(a, 7.0)
    room.enter(b, 9.0)

    assert room.next_expiry() == 35.0
    assert room.expired(34.9) == []
    assert set(room.expired(37.0)) == {pinned, a}
    for one in (pinned, a, b):
        room.leave(one)
    assert room.next_expiry() == math.inf
    assert room.pins == []


def test_a_stream_with_several_choices_counts_once() -> None:
    room, stream = WaitingRoom(30.0), Stream()
    first, second, other = child(stream), child(stream), child()
    for one in (first, second, other):
        room.enter(one, 0.0)
    assert room.num_streams == 2

    room.leave(first)
    assert room.num_streams == 2
    room.leave(second)
    room.leave(other)
    assert room.num_streams == 0


def test_who_enters_the_empty_room_is_noticed() -> None:
    room, seen = WaitingRoom(30.0), list[int]()
    room.on_first(lambda: seen.append(len(room)))
    a, b = child(), child(pin=1)
    room.enter(a, 0.0)
    room.enter(b, 0.0)
    room.leave(a)
    room.leave(b)
    room.enter(a, 0.0)

    assert seen == [1, 1]

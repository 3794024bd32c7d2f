import pytest

from tests.api.openai._harness import CHAT
from vllmfront.api.http import HttpRequest
from vllmfront.api.openai import GateLimits
from vllmfront.api.openai._call import InferenceCall
from vllmfront.api.openai._gate import Gate
from vllmfront.api.openai._loop_lag import LATE_TICKS
from vllmfront.errors import Overloaded, Reason


def call_at(gate: Gate) -> InferenceCall:
    request = HttpRequest(method="POST", path=CHAT, raw_path=b"", query=b"", headers=(), body=b"{}")
    return InferenceCall(request, gate)


def enter(gate: Gate, choices: int = 1) -> InferenceCall:
    call = call_at(gate)
    gate.enter(call)
    gate.widen(call, choices)
    return call


def test_without_limits_everything_comes_in() -> None:
    gate = Gate()
    calls = [enter(gate, choices=100) for _ in range(1000)]

    assert gate.statistics().in_flight == 100_000

    for call in calls:
        gate.leave(call)

    assert gate.statistics().in_flight == 0


def test_places_are_taken_on_arrival_and_given_back() -> None:
    gate = Gate(GateLimits(max_in_flight=2))
    first, second = enter(gate), enter(gate)
    with pytest.raises(Overloaded) as caught:
        enter(gate)
    gate.leave(first)
    enter(gate)
    gate.leave(second)

    assert (caught.value.reason, caught.value.limit, caught.value.current) == (
        Reason.QUEUE_FULL,
        2,
        2,
    )
    assert gate.statistics().in_flight == 1


def test_a_request_with_several_choices_takes_as_many_places() -> None:
    gate = Gate(GateLimits(max_in_flight=10))
    enter(gate, choices=7)
    big = call_at(gate)
    gate.enter(big)
    with pytest.raises(Overloaded, match=r"7 of at most 10 .* this one needs 4 places"):
        gate.widen(big, 4)
    gate.leave(big)
    enter(gate, choices=3)

    assert gate.statistics().in_flight == 10


def test_none_may_be_let_in_at_all() -> None:
    with pytest.raises(Overloaded):
        enter(Gate(GateLimits(max_in_flight=0)))
    with pytest.raises(Overloaded):
        enter(Gate(GateLimits(max_queued_tokens=0)))


def test_who_was_refused_or_has_left_holds_no_place() -> None:
    gate = Gate(GateLimits(max_in_flight=1, max_queued_tokens=0))
    call = call_at(gate)
    with pytest.raises(Overloaded):
        gate.enter(call)
    gate.leave(call)
    gate.leave(call)

    assert gate.statistics().in_flight == 0


def test_the_number_is_looked_at_before_the_tokens() -> None:
    gate = Gate(GateLimits(max_in_flight=0, max_queued_tokens=0))
    with pytest.raises(Overloaded) as caught:
        enter(gate)

    assert caught.value.reason is Reason.QUEUE_FULL


def test_nothing_comes_in_while_the_loop_is_late() -> None:
    gate = Gate(GateLimits(max_loop_lag=1.0))
    for _ in range(LATE_TICKS):
        gate.lag.note(2.5)
    with pytest.raises(Overloaded) as caught:
        enter(gate)

    assert (caught.value.reason, caught.value.limit, caught.value.current) == (
        Reason.OVERLOADED,
        1.0,
        2.5,
    )
    assert gate.statistics().in_flight == 0


class Counts:
    """What another process of the server has let in, beside ours."""

    def __init__(self, choices: int = 0, tokens: int = 0) -> None:
        self.others, self.other_tokens = choices, tokens
        self.choices = self.tokens = 0

    def publish_choices(self, own: int) -> int:
        self.choices = own
        return own + self.others

    def publish_tokens(self, own: int) -> int:
        self.tokens = own
        return own + self.other_tokens


def test_what_other_processes_let_in_counts() -> None:
    counts = Counts(choices=2)
    gate = Gate(GateLimits(max_in_flight=4), counts)
    first = enter(gate)
    with pytest.raises(Overloaded) as caught:
        enter(gate, choices=2)
    assert counts.choices == 2  # its first choice is in, until it leaves

    gate.leave(first)

    assert (caught.value.limit, caught.value.current) == (4, 3)
    assert counts.choices == gate.statistics().in_flight == 1

    counts.others = 4
    with pytest.raises(Overloaded):
        enter(gate)
    assert counts.choices == 1


def test_tokens_that_wait_at_other_processes_count() -> None:
    class Waiting(InferenceCall):
        queued_tokens = 10

    counts = Counts(tokens=15)
    gate = Gate(GateLimits(max_queued_tokens=20), counts)
    call = Waiting(call_at(gate).http, gate)
    gate.enter(call)
    gate.queue(call)
    assert counts.tokens == 10

    with pytest.raises(Overloaded, match="25 prompt tokens wait"):
        gate.enter(call_at(gate))
    counts.other_tokens = 0
    gate.enter(call_at(gate))
    gate.leave(call)

    assert gate.statistics().queued_tokens == counts.tokens == 0

import pytest
import trio
from trio.testing import MockClock

from vllmfront.api.openai._time_limit import (
    MOST_SECONDS,
    in_time,
    seconds_of_field,
    seconds_of_header,
)
from vllmfront.errors import RequestRejected, RequestTimedOut


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"30", 30), (b" 1.5\t", 1.5), (b"0.001", 0.001), (b"86400", 86400), (b"2.", 2)],
)
def test_a_header_is_a_decimal_number_of_seconds(text: bytes, seconds: float) -> None:
    assert seconds_of_header(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"0",
        b"0.0",
        b"-1",
        b"1e3",
        b"30s",
        b"0x10",
        b"nan",
        b"inf",
        b"86400.1",
        b"1_0",
        b"\xff",
    ],
)
def test_other_headers_are_refused_by_name(text: bytes) -> None:
    with pytest.raises(RequestRejected, match="number of seconds") as caught:
        seconds_of_header(text)

    assert caught.value.param == "X-Request-Timeout"


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), MOST_SECONDS + 1, -0.0])
def test_other_fields_are_refused_by_name(value: float) -> None:
    with pytest.raises(RequestRejected, match="timeout must be a number of seconds") as caught:
        seconds_of_field(value)

    assert caught.value.param == "timeout"


async def test_long_work_is_given_up_at_the_deadline(
    autojump_clock: MockClock,  # noqa: ARG001 (asked for because of its effect)
) -> None:
    async def work() -> None:
        await trio.sleep(10)

    started = trio.current_time()
    with pytest.raises(RequestTimedOut):
        await in_time(started + 3, work())

    assert trio.current_time() == started + 3


@pytest.mark.parametrize("limit", [None, 3.0])
async def test_work_in_time_has_its_result(
    autojump_clock: MockClock,  # noqa: ARG001 (asked for because of its effect)
    limit: float | None,
) -> None:
    async def work() -> str:
        await trio.sleep(2)
        return "done"

    deadline = None if limit is None else trio.current_time() + limit

    assert await in_time(deadline, work()) == "done"

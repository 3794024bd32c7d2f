import json

import pytest

from tests.api.openai._harness import PaperWriter
from vllmfront.api._errors import answer_to, respond_with_error
from vllmfront.errors import (
    EngineDied,
    EngineUnavailable,
    Overloaded,
    Reason,
    RequestInterrupted,
    RequestRejected,
    RequestTimedOut,
    VllmFrontError,
)


@pytest.mark.parametrize(
    ("error", "status", "kind", "reason"),
    [
        (EngineUnavailable("x", reason=Reason.RECOVERING), 503, "Service", "recovering"),
        (
            Overloaded("x", reason=Reason.QUEUE_FULL, limit=1, current=1),
            503,
            "Service",
            "queue_full",
        ),
        (RequestInterrupted("x"), 503, "Service", "interrupted"),
        (RequestTimedOut("x"), 504, "GatewayTimeout", "timed_out"),
    ],
)
def test_what_may_be_tried_again_says_why_for_programs(
    error: VllmFrontError, status: int, kind: str, reason: str
) -> None:
    answer = answer_to(error)

    assert answer.status == status
    assert answer.type.startswith(kind)
    assert json.loads(answer.json())["error"]["reason"] == reason


@pytest.mark.parametrize("error", [EngineDied("x"), RequestRejected("x", param="y")])
def test_other_errors_have_no_more_than_the_references_keys(error: VllmFrontError) -> None:
    body = json.loads(answer_to(error).json())

    assert sorted(body["error"]) == ["code", "message", "param", "type"]


@pytest.mark.parametrize(("seconds", "header"), [(0.0, b"1"), (2.1, b"3"), (30, b"30")])
def test_the_hint_when_to_come_again_is_a_whole_number_of_seconds(
    seconds: float, header: bytes
) -> None:
    writer = PaperWriter()
    error = EngineUnavailable("x", reason=Reason.LOADING, retry_after=seconds)
    respond_with_error(writer, error)

    assert writer.headers[b"retry-after"] == header


def test_there_is_no_use_in_coming_again_after_a_deadline_of_ones_own() -> None:
    writer = PaperWriter()
    respond_with_error(writer, RequestTimedOut("x"))

    assert writer.status == 504
    assert b"retry-after" not in writer.headers

"""What is told of the ends of requests: to clients, and in the log."""

from typing import Any

import pytest

from tests.api.openai._harness import (
    CHAT,
    Api,
    PaperWriter,
    chat,
)
from vllmfront.engine import FinishReason
from vllmfront.engine.metrics import TerminalCause

DONE = "data: [DONE]"


async def serve_alike(api: Api, **fields: Any) -> None:
    """Serve a request, so that those which ask for the same are known."""
    call = api.post(CHAT, chat(**fields))
    api.say(await api.next_add(), [500], FinishReason.LENGTH)
    assert (await call.finished()).status == 200
    api.metrics.ends.clear()
    api.metrics.ends.update(dict.fromkeys(TerminalCause, 0))


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Return the lines about ends, with their levels."""
    found = [(each.levelno, each.getMessage()) for each in caplog.records]
    return [(level, text) for level, text in found if text.startswith("Request ended")]


def only_line(caplog: pytest.LogCaptureFixture, cause: str) -> tuple[int, str]:
    [(level, text)] = lines(caplog)
    assert f"cause={cause} " in text
    return level, text


def error_of(writer: PaperWriter, *, stream: bool) -> dict[str, Any]:
    """Return the error that ended an answer, which must be whole."""
    assert writer.finished
    if not stream:
        found = writer.json["error"]
    else:
        assert writer.status == 200
        assert writer.events[-1] == DONE
        found = writer.events[-2]["error"]
    assert isinstance(found, dict)
    return found

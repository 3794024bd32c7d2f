"""What a worker passes on to main, and what becomes of what does not fit on the line."""

import pytest
import trio

from tests.api.openai._harness import PaperConnection, PaperWriter
from vllmfront.api.http import HttpRequest, Router
from vllmfront.interprocess import Handlers, Line, _line, line_pair
from vllmfront.interprocess._frames import RESERVED_BYTES
from vllmfront.lifecycles.workers._forwarding import Answering, Forwarding
from vllmfront.lifecycles.workers._messages import Forwarded

ROOM = 1000


async def ask(path: str, body: bytes = b"", *, times: int = 1) -> list[PaperWriter]:
    """Have a worker answer, *times* in one turn of the event loop; its main has no routes."""
    ours, theirs = line_pair()
    there = Handlers()
    there.answer(Forwarded, Answering().answer)
    writers = [PaperWriter() for _ in range(times)]
    with trio.fail_after(5), Line(ours, Handlers()) as line, Line(theirs, there) as main:
        forwarding = Forwarding(Router(), line)
        async with trio.open_nursery() as nursery:
            await nursery.start(line.serve)
            await nursery.start(main.serve)
            async with trio.open_nursery() as asking:
                for writer in writers:
                    request = HttpRequest(
                        method="POST",
                        path=path,
                        raw_path=path.encode(),
                        query=b"",
                        headers=(),
                        body=body,
                        connection=PaperConnection(),
                    )
                    asking.start_soon(forwarding, request, writer)
            assert not line.gone.is_set()
            nursery.cancel_scope.cancel()
    return writers


async def test_main_is_not_asked_for_paths_that_it_does_not_have() -> None:
    [writer] = await ask("/nowhere")
    assert writer.status == 404


async def test_what_does_not_fit_is_refused_and_costs_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_line, "MOST_BYTES", RESERVED_BYTES + ROOM)
    [too_long] = await ask("/update_weights", b"x" * ROOM)
    answers = await ask("/update_weights", b"x" * (ROOM * 6 // 10), times=3)
    first, *others = sorted(answers, key=lambda answer: answer.status)

    assert too_long.status == 413
    assert first.status == 500  # from main
    assert [(one.status, one.headers[b"retry-after"]) for one in others] == [(503, b"1")] * 2

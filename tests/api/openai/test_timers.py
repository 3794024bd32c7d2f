from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.api.openai._harness import PaperWriter
from vllmfront.api.openai import OpenAiRoutes, ServiceSlot
from vllmfront.api.openai._held_heads import HOLD_SECONDS, HeldHeads
from vllmfront.api.openai._keep_alive import WAITING_SECONDS, KeepAlives, serve_waiting
from vllmfront.api.openai._service import WaitingStream
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.api.openai._usage import Usage

COMMENT = b": keep-alive\n\n"


def open_answer() -> tuple[StreamedAnswer, PaperWriter]:
    writer = PaperWriter()
    answer = StreamedAnswer(writer, b"", Usage(), choices=1)
    answer.start()
    return answer, writer


class Waiting:
    """A stream that has lost its engine."""

    def __init__(self, *, begun: bool = True) -> None:
        answer, self.writer = open_answer()
        self.begun = begun
        self.on_waiting = answer.keep_alive


class WaitingSlot(ServiceSlot):
    """A slot whose service has these streams without an engine."""

    streams: Sequence[Waiting] = ()

    @property
    def waiting_streams(self) -> Sequence[WaitingStream]:
        return self.streams


async def test_a_silent_stream_gets_a_comment_each_interval(
    autojump_clock: MockClock,  # noqa: ARG001 (asked for because of its effect)
    nursery: trio.Nursery,
) -> None:
    keep_alives = KeepAlives(10.0)
    nursery.start_soon(keep_alives.serve)
    answer, writer = open_answer()
    await trio.sleep(3)
    keep_alives.watch(answer)
    await trio.sleep(25)

    assert writer.pieces == [COMMENT] * 2


async def test_silence_is_counted_from_the_last_event(
    autojump_clock: MockClock,  # noqa: ARG001 (asked for because of its effect)
    nursery: trio.Nursery,
) -> None:
    keep_alives = KeepAlives(10.0)
    nursery.start_soon(keep_alives.serve)
    answer, writer = open_answer()
    keep_alives.watch(answer)
    for _ in range(3):
        await trio.sleep(7)
        answer.write(b"x")
    await trio.sleep(9.9)
    before = list(writer.pieces)
    await trio.sleep(0.2)

    assert before == [b"x"] * 3
    assert writer.pieces == [b"x"] * 3 + [COMMENT]


async def test_one_timer_serves_all_streams(
    autojump_clock: MockClock,  # noqa: ARG001 (asked for because of its effect)
    nursery: trio.Nursery,
) -> None:
    keep_alives = KeepAlives(10.0)
    nursery.start_soon(keep_alives.serve)
    pairs = []
    for _ in range(5):
        pairs.append(open_answer())
        keep_alives.watch(pairs[-1][0])
        await trio.sleep(1)
    await trio.sleep(10)

    assert [writer.pieces for _, writer in pairs] == [[COMMENT]] * 5


async def test_closed_and_congested_streams_get_nothing(
    autojump_clock: MockClock,  # noqa: ARG001 (asked for because of its effect)
    nursery: trio.Nursery,
) -> None:
    keep_alives = KeepAlives(10.0)
    nursery.start_soon(keep_alives.serve)
    closed, closed_writer = open_answer()
    stalled, stalled_writer = open_answer()
    keep_alives.watch(closed)
    keep_alives.watch(stalled)
    closed.fail(RuntimeError())
    stalled_writer.reading = False
    await trio.sleep(35)

    assert COMMENT not in closed_writer.pieces
    assert stalled_writer.pieces == []


async def test_heads_wait_for_the_first_event_but_not_for_long(
    autojump_clock: MockClock,  # noqa: ARG001 (asked for because of its effect)
    nursery: trio.Nursery,
) -> None:
    heads = HeldHeads()
    await nursery.start(heads.serve)
    writers = [PaperWriter(), PaperWriter()]
    for writer in writers:
        StreamedAnswer(writer, b"", Usage(), choices=1, heads=heads).start()
    writers[0].write(b"x")
    before = [writer.held for writer in writers]
    await trio.sleep(HOLD_SECONDS * 1.5)

    assert before == [False, True]
    assert [writer.held for writer in writers] == [False, False]


async def test_heads_are_not_held_while_nobody_flushes_them(nursery: trio.Nursery) -> None:
    heads, writers = HeldHeads(), [PaperWriter(), PaperWriter()]
    StreamedAnswer(writers[0], b"", Usage(), choices=1, heads=heads).start()
    await nursery.start(heads.serve)
    StreamedAnswer(writers[1], b"", Usage(), choices=1, heads=heads).start()
    nursery.cancel_scope.cancel(reason="the server stops")
    with trio.move_on_after(5, shield=True):
        await wait_all_tasks_blocked()

    assert [writer.held for writer in writers] == [False, False]


@pytest.mark.parametrize("interval", [0.0, 10.0])
async def test_the_timers_of_all_routes_run_together(
    autojump_clock: MockClock,  # noqa: ARG001 (asked for because of its effect)
    nursery: trio.Nursery,
    interval: float,
) -> None:
    routes = OpenAiRoutes(ServiceSlot(), keep_alive_interval=interval)
    await nursery.start(routes.serve_timers)
    await wait_all_tasks_blocked()
    nursery.cancel_scope.cancel(reason="the test is over")


async def test_a_stream_that_waits_for_an_engine_gets_comments(
    autojump_clock: MockClock,  # noqa: ARG001 (asked for because of its effect)
    nursery: trio.Nursery,
) -> None:
    lost, other, unbegun = Waiting(), Waiting(), Waiting(begun=False)
    slot = WaitingSlot()
    await nursery.start(serve_waiting, slot)
    await trio.sleep(WAITING_SECONDS * 1.5)
    slot.streams = [lost, unbegun]
    await trio.sleep(WAITING_SECONDS * 2)
    slot.streams = [other]
    await trio.sleep(WAITING_SECONDS)

    assert [stream.writer.pieces for stream in (lost, other, unbegun)] == [
        [COMMENT] * 2,
        [COMMENT],
        [],
    ]

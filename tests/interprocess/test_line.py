"""Messages and calls between two processes."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio

from vllmfront.errors import EngineUnavailable, Reason
from vllmfront.interprocess import (
    CallFailed,
    Handlers,
    Line,
    LineBroken,
    LineFull,
    Lines,
    _line,
    line_pair,
)
from vllmfront.interprocess._frames import RESERVED_BYTES


class Add(msgspec.Struct):
    left: int
    right: int


class Sum(msgspec.Struct):
    value: int


class News(msgspec.Struct):
    text: str


@asynccontextmanager
async def lines(there: Handlers) -> AsyncGenerator[tuple[Line, Line]]:
    """Open both ends of a line; what is said here is taken by *there*."""
    ours, theirs = line_pair()
    with trio.fail_after(10), Line(ours, Handlers()) as here, Line(theirs, there) as far:
        async with trio.open_nursery() as nursery:
            await nursery.start(here.serve)
            await nursery.start(far.serve)
            yield here, far
            nursery.cancel_scope.cancel()


async def add(request: Add) -> Sum:
    return Sum(request.left + request.right)


async def test_calls_are_answered_each_with_its_own_answer() -> None:
    gate = trio.Event()

    async def late(request: Add) -> Sum:
        if request.left == 1:
            await gate.wait()
        return await add(request)

    there = Handlers()
    there.answer(Add, late)
    found: list[int] = []
    async with lines(there) as (here, _), trio.open_nursery() as nursery:

        async def ask(left: int) -> None:
            found.append((await here.call(Add(left, 1), Sum)).value)

        nursery.start_soon(ask, 1)
        await trio.testing.wait_all_tasks_blocked()
        await ask(40)
        gate.set()

    assert found == [41, 2]


async def test_messages_arrive_in_order_long_ones_too() -> None:
    there, heard = Handlers(), list[str]()
    done = trio.Event()

    def hear(news: News) -> None:
        heard.append(news.text)
        if news.text == "last":
            done.set()

    there.hear(News, hear)
    async with lines(there) as (here, _):
        for text in ("first", "x" * 1_000_000, "last"):
            here.tell(News(text))
        await done.wait()

    assert [len(text) for text in heard] == [5, 1_000_000, 4]


async def test_what_the_other_process_refuses_is_told_in_its_words() -> None:
    there = Handlers()

    async def refuse(_: Add) -> Sum:
        raise EngineUnavailable("the engine is away", reason=Reason.LOADING)

    there.answer(Add, refuse)
    async with lines(there) as (here, _):
        with pytest.raises(CallFailed, match="the engine is away"):
            await here.call(Add(1, 2), Sum)
        with pytest.raises(CallFailed, match="nobody answers a call 'News'"):
            await here.call(News("?"), Sum)


async def test_a_bug_in_an_answer_costs_that_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    there = Handlers()

    async def fail(request: Add) -> Sum:
        return Sum(request.left // request.right)

    there.answer(Add, fail)
    async with lines(there) as (here, _):
        with pytest.raises(CallFailed, match="ZeroDivisionError"):
            await here.call(Add(1, 0), Sum)
        value = await here.call(Add(6, 3), Sum)

    assert value == Sum(2)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.usefixtures("autojump_clock")
async def test_a_call_that_is_not_answered_in_time_fails() -> None:
    there = Handlers()

    async def forget(_: Add) -> Sum:
        await trio.sleep_forever()
        raise AssertionError

    there.answer(Add, forget)
    ours, theirs = line_pair()
    with Line(ours, Handlers()) as here, Line(theirs, there) as far:
        async with trio.open_nursery() as nursery:
            await nursery.start(here.serve)
            await nursery.start(far.serve)

            with pytest.raises(CallFailed, match="no answer to Add within 3 s"):
                await here.call(Add(1, 2), Sum, seconds=3)

            nursery.cancel_scope.cancel()


async def test_what_nobody_waits_for_any_more_is_cancelled_at_the_other_end() -> None:
    begun, cancelled = trio.Event(), trio.Event()

    async def take_long(_: Add) -> Sum:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError

    there = Handlers()
    there.answer(Add, take_long)
    async with lines(there) as (here, _), trio.open_nursery() as nursery:
        nursery.start_soon(here.call, Add(1, 2), Sum)
        await begun.wait()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(5):
            await cancelled.wait()


async def test_the_end_of_one_end_is_known_at_the_other() -> None:
    there = Handlers()

    async def leave(_: Add) -> Sum:
        far.close()
        return Sum(0)

    there.answer(Add, leave)
    async with lines(there) as (here, far):
        with pytest.raises(LineBroken):
            await here.call(Add(1, 2), Sum)
        await here.gone.wait()
        with pytest.raises(LineBroken):
            await here.call(Add(1, 2), Sum)
        here.tell(News("nobody hears it"))


async def test_what_does_not_fit_costs_that_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_line, "MOST_BYTES", RESERVED_BYTES + 1000)

    async def thrice(news: News) -> News:
        return News(news.text * 3)

    there = Handlers()
    there.answer(News, thrice)
    failures: list[CallFailed] = []
    async with lines(there) as (here, _):

        async def ask(length: int) -> None:
            try:
                assert (await here.call(News("x" * length), News)).text == "x" * length * 3
            except CallFailed as error:
                failures.append(error)

        for length in (1000, 400):
            await ask(length)
        async with trio.open_nursery() as nursery:
            for _ in range(4):  # in one turn: nothing is sent meanwhile
                nursery.start_soon(ask, 300)
        await ask(300)
        assert not here.gone.is_set()

    too_long, answer, *crowded = failures
    assert isinstance(too_long, LineFull)
    assert too_long.too_long
    assert "the answer: 12" in str(answer)
    call, *answers = crowded
    assert isinstance(call, LineFull)
    assert not call.too_long
    assert [str(one).startswith("the answer: 9") for one in answers] == [True, True]


async def test_nonsense_ends_the_line() -> None:
    ours, theirs = line_pair()
    with trio.fail_after(10), theirs, Line(ours, Handlers()) as here:
        theirs.sendall(b"\0\0\0\2no")

        with pytest.RaisesGroup(pytest.RaisesExc(LineBroken, match="makes no sense")):
            await here.serve()

        assert here.gone.is_set()


async def test_all_who_are_up_are_asked_at_once() -> None:
    there, elsewhere = Handlers(), Handlers()
    there.answer(Add, add)
    up = Lines()
    async with lines(there) as (first, _), lines(elsewhere) as (second, _):
        with up.including(1, first), up.including(2, second):
            found = await up.call_all(Add(2, 3), Sum)

        assert found[1] == Sum(5)
        assert isinstance(found[2], CallFailed)
        assert not up.up

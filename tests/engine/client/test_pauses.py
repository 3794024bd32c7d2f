"""Pause windows: what the engines are told, what becomes of requests, who may have one."""

import attrs
import pytest
import trio

from tests.engine._helpers import (
    CONFIG,
    RecordingSink,
    engine_for,
    open_engines,
    rank_state,
    request,
    settle,
    state_of,
    wait_joined,
    wait_lost,
)
from vllmfront.engine import EngineClient, EngineState, FinishReason, RankState
from vllmfront.engine.pause import PauseMode, PausePhase, PauseWindow
from vllmfront.engine.wire import Utility
from vllmfront.errors import ControlCallFailed, GenerationHeld, StateConflict
from vllmfront.testing import FakeEngine

RECOVERING = attrs.evolve(CONFIG, recovery_wait=5)


def said(call: Utility) -> tuple[str, list[object]]:
    return call.method, list(call.args)


async def take(client: EngineClient, engine: FakeEngine, mode: str = "keep") -> PauseWindow:
    """Open a window that has no scope, and let the engine take it."""
    window = client.pauses.open(PauseMode(mode), owner="trainer")
    engine.answer(await engine.receive_utility())
    await window.wait_paused()
    return window


async def lift(client: EngineClient, engine: FakeEngine) -> None:
    window = client.pauses.end(force=True)
    assert window is not None
    engine.answer(await engine.receive_utility())
    await window.wait(lambda phase: phase is PausePhase.CLOSED)


async def test_a_window_stops_the_engines_and_lets_them_go_on() -> None:
    async with open_engines() as (client, [engine]), trio.open_nursery() as nursery:
        told: list[tuple[str, list[object]]] = []

        async def answer() -> None:
            for _ in range(2):
                call = await engine.receive_utility()
                told.append(said(call))
                engine.answer(call)

        nursery.start_soon(answer)
        async with client.pause("keep", clear_cache=False) as window:
            assert (window.phase, client.gate.closed) == (PausePhase.PAUSED, True)
        assert (window.phase, client.gate.closed) == (PausePhase.CLOSED, False)

    assert told == [("pause_generation", ["keep", False]), ("resume_scheduler", [])]


@pytest.mark.parametrize("mode", ["abort", "wait"])
async def test_new_requests_are_refused_and_nothing_slips_through(mode: str) -> None:
    async with open_engines() as (client, [engine]):
        await take(client, engine, mode)

        with pytest.raises(GenerationHeld, match="paused by trainer 0 seconds ago") as caught:
            async with client.submit(request()):
                pass

        assert (caught.value.reason, caught.value.mode) == ("paused", mode)
        assert await engine.hears_nothing_more()
        await lift(client, engine)
        async with client.submit(request()):
            assert (await engine.receive_add()).request.request_id == "r"


async def test_a_request_that_was_posted_before_reaches_the_engine_before_the_pause() -> None:
    async with open_engines() as (client, [engine]), client.submit(request()):
        client.pauses.open(PauseMode.WAIT)

        assert (await engine.receive_add()).request.request_id == "r"
        assert said(await engine.receive_utility()) == ("pause_generation", ["wait", True])


async def test_requests_queue_in_order_and_no_time_limit_of_recovery_counts() -> None:
    config = attrs.evolve(CONFIG, recovery_wait=0.01)
    async with open_engines(config=config) as (client, [engine]), trio.open_nursery() as nursery:
        await take(client, engine)

        async def ask(name: str) -> None:
            async with client.submit(request(name)):
                await trio.sleep_forever()

        for name in ("a", "b", "c"):
            nursery.start_soon(ask, name)
            await settle()
        assert (client.num_waiting, engine.heard_nothing()) == (3, True)

        await lift(client, engine)
        order = [(await engine.receive_add()).request.request_id for _ in range(3)]
        nursery.cancel_scope.cancel()

    assert order == ["a", "b", "c"]


async def test_an_engine_that_forgets_a_request_does_not_make_its_client_wait() -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink()
        async with client.submit(request(), [sink]) as stream:
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [7, 8])
            await settle()
            await take(client, engine, "abort")
            await stream.wait_finished()

    assert sink.tokens == [7, 8]
    assert sink.outputs[-1].finish_reason is FinishReason.ABORT


async def test_all_ranks_are_told_before_any_is_waited_for() -> None:
    async with open_engines(2) as (client, engines), trio.open_nursery() as nursery:
        window = client.pauses.open(PauseMode.KEEP)
        nursery.start_soon(window.wait_paused)
        calls = [await engine.receive_utility() for engine in engines]
        engines[0].answer(calls[0])
        await settle()
        assert window.phase is PausePhase.PAUSING

        engines[1].answer(calls[1])


async def test_an_engine_that_refuses_undoes_the_pause_and_is_named() -> None:
    async with open_engines(2) as (client, engines):
        window = client.pauses.open(PauseMode.KEEP)
        calls = [await engine.receive_utility() for engine in engines]
        engines[0].answer(calls[0])
        engines[1].answer(calls[1], failure="Call to pause_generation method failed: no")
        for engine in engines:
            engine.answer(await engine.receive_utility())

        with pytest.raises(ControlCallFailed, match=r"pause failed on engine 1: .* no") as got:
            await window.wait_paused()

        assert list(got.value.failures) == [1]
        assert not client.gate.closed


async def test_a_refused_resume_leaves_the_window_to_be_tried_again() -> None:
    async with open_engines() as (client, [engine]):
        window = await take(client, engine)
        client.pauses.end(force=True)
        engine.answer(await engine.receive_utility(), failure="Call failed: pause in flight")
        await window.wait(lambda phase: phase is PausePhase.PAUSED)
        assert window.error is not None
        assert client.gate.closed

        await lift(client, engine)
        assert not client.gate.closed


async def test_a_resume_that_an_engine_does_not_answer_is_one_that_it_refused() -> None:
    async with open_engines() as (client, [engine]):
        client.pauses.resume_seconds = 0.05
        window = await take(client, engine)
        client.pauses.end(force=True)
        await engine.receive_utility()
        await window.wait(lambda phase: phase is not PausePhase.RESUMING)

        assert (window.phase, client.gate.closed) == (PausePhase.PAUSED, True)
        assert "resume timed out: engine 0 gave no answer" in str(window.error)
        await lift(client, engine)
        assert not client.gate.closed


async def test_a_restarted_engine_is_paused_before_it_serves() -> None:
    async with open_engines(config=RECOVERING) as (client, [old]):
        await take(client, old, "wait")
        old.close()
        await wait_lost(client)
        with engine_for(client) as new:
            await new.join()
            call = await new.receive_utility()
            assert said(call) == ("pause_generation", ["wait", True])
            assert (rank_state(client), state_of(client)) == (
                RankState.PREPARING,
                EngineState.RECOVERING,
            )
            new.answer(call)
            await wait_joined(client)
            assert client.gate.closed

            await lift(client, new)


async def test_an_engine_that_dies_while_it_is_being_paused_leaves_a_window() -> None:
    async with open_engines(config=RECOVERING) as (client, [engine]):
        window = client.pauses.open(PauseMode.KEEP)
        await engine.receive_utility()
        engine.close()
        await window.wait_paused()

        assert (window.phase, client.gate.closed) == (PausePhase.PAUSED, True)


@pytest.mark.parametrize(("mode", "ends"), [("abort", True), ("keep", False)])
async def test_what_an_engine_leaves_behind_ends_or_freezes(mode: str, ends: bool) -> None:
    async with open_engines(config=RECOVERING) as (client, [engine]):
        sink = RecordingSink()
        async with client.submit(request(), [sink]) as stream:
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [7, 8])
            await settle()
            client.pauses.open(PauseMode(mode))
            await engine.receive_utility()
            engine.close()
            await wait_lost(client)
            with engine_for(client) as new:
                await new.join()
                new.answer(await new.receive_utility())
                await wait_joined(client)
                if not ends:
                    assert stream.num_parked == 1
                    await lift(client, new)
                    assert (await new.receive_add()).request.prompt_token_ids == [1, 2, 3, 7, 8]
                    return
                await stream.wait_finished()

    assert sink.tokens == [7, 8]
    assert sink.outputs[-1].finish_reason is FinishReason.ABORT


async def test_somebody_else_is_told_who_has_it() -> None:
    async with open_engines() as (client, [engine]):
        await take(client, engine)
        for owner in (None, "other"):
            with pytest.raises(StateConflict, match="by trainer") as caught:
                client.pauses.open(PauseMode.ABORT, owner=owner)
            assert (caught.value.holder, caught.value.state) == ("trainer", "paused")
        with pytest.raises(StateConflict):
            client.pauses.end("other")


async def test_two_who_give_no_name_are_not_the_same() -> None:
    async with open_engines() as (client, _):
        client.pauses.open(PauseMode.KEEP)
        with pytest.raises(StateConflict, match="someone who gave no name"):
            client.pauses.open(PauseMode.KEEP)


async def test_its_owner_may_widen_the_mode_and_not_narrow_it() -> None:
    async with open_engines() as (client, [engine]):
        window = await take(client, engine, "keep")
        assert client.pauses.open(PauseMode.ABORT, owner="trainer") is window
        assert window.phase is PausePhase.PAUSING
        call = await engine.receive_utility()
        assert said(call) == ("pause_generation", ["abort", True])
        engine.answer(call)
        await window.wait_paused()

        with pytest.raises(StateConflict, match="may only widen"):
            client.pauses.open(PauseMode.WAIT, owner="trainer")


async def test_widening_ends_those_that_queue() -> None:
    async with open_engines() as (client, [engine]), trio.open_nursery() as nursery:
        await take(client, engine, "keep")
        sink = RecordingSink()

        async def ask() -> None:
            async with client.submit(request(), [sink]) as stream:
                await stream.wait_finished()

        nursery.start_soon(ask)
        await settle()
        client.pauses.open(PauseMode.ABORT, owner="trainer")
        await settle()

        assert [output.finish_reason for output in sink.outputs] == [FinishReason.ABORT]


async def test_a_block_inside_another_of_the_same_owner_leaves_the_end_to_that_one() -> None:
    async with open_engines() as (client, [engine]), trio.open_nursery() as nursery:

        async def answer() -> None:
            while True:
                engine.answer(await engine.receive_utility())

        nursery.start_soon(answer)
        async with client.pause("keep", owner="a") as outer:
            async with client.pause("keep", owner="a") as inner:
                assert inner is outer
            held = client.gate.closed
        assert (held, client.gate.closed) == (True, False)
        nursery.cancel_scope.cancel()


async def test_a_block_that_is_cancelled_before_it_begins_lets_the_engines_go_on() -> None:
    async with open_engines() as (client, [engine]), trio.open_nursery() as nursery:
        cancelled = trio.CancelScope()

        async def pause() -> None:
            with cancelled:
                async with client.pause("wait"):
                    raise AssertionError("the engine did not answer")

        nursery.start_soon(pause)
        await engine.receive_utility()
        cancelled.cancel()
        call = await engine.receive_utility()
        assert said(call) == ("resume_scheduler", [])
        engine.answer(call)
        await settle()

        assert not client.gate.closed

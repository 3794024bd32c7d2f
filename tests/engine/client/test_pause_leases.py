"""Leases of pause windows, by a clock of the test's own and engines that answer at once."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from vllmfront.engine.client.membership._membership import Membership
from vllmfront.engine.client.membership._state import EngineState, StateLevel
from vllmfront.engine.client.orders._pauses import Pauses
from vllmfront.engine.client.orders._utility import Outcome, UtilityCalls
from vllmfront.engine.client.requests._books import Books
from vllmfront.engine.client.requests._dispatch import Dispatch
from vllmfront.engine.client.requests._waiting_room import WaitingRoom
from vllmfront.engine.pause import HoldGate, LeaseAction, PauseMode, PausePhase
from vllmfront.errors import StateConflict


@attrs.define
class NoEngines:
    """What a window needs of all others, where there is no engine to wait for."""

    ranks: dict[int, Any] = attrs.field(factory=dict)
    setups: list[Any] = attrs.field(factory=list)
    children: dict[str, Any] = attrs.field(factory=dict)
    room: WaitingRoom = attrs.field(factory=lambda: WaitingRoom(5.0))
    state: StateLevel = attrs.field(factory=StateLevel)
    posted: int = 0
    hangs: bool = False

    def send_posted(self) -> None:
        self.posted += 1

    async def call_ranks_each(self, *_: object, **__: object) -> list[Outcome]:
        if self.hangs:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return []


@asynccontextmanager
async def opened(action: LeaseAction) -> AsyncGenerator[tuple[Pauses, HoldGate]]:
    engines, gate = NoEngines(), HoldGate()
    engines.state.set(EngineState.RECOVERING)
    pauses = Pauses(
        gate,
        cast("UtilityCalls", engines),
        cast("Membership", engines),
        cast("Books", engines),
        cast("Dispatch", engines),
        lease_action=action,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pauses.serve)  # noqa: ASYNC113 (windows wait for it)
        yield pauses, gate
        nursery.cancel_scope.cancel(reason="the test is over")


async def test_a_window_ends_when_its_lease_does_and_not_before(
    mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    mock_clock.autojump_threshold = 0
    async with opened(LeaseAction.RESUME) as (pauses, gate):
        window = pauses.open(PauseMode.KEEP, owner="trainer", lease=30)
        await trio.sleep(29.9)
        assert gate.closed
        with caplog.at_level(logging.ERROR):
            await trio.sleep(0.2)

        assert (gate.closed, window.phase) == (False, PausePhase.CLOSED)
        assert "by trainer" in caplog.text
        assert "its lease was not renewed: generation goes on" in caplog.text


async def test_each_renewal_counts_anew(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    async with opened(LeaseAction.RESUME) as (pauses, gate):
        pauses.open(PauseMode.KEEP, owner="a", lease=30)
        for _ in range(5):
            await trio.sleep(25)
            pauses.renew("a")
        pauses.renew("a", 100)
        await trio.sleep(99)
        assert gate.closed
        await trio.sleep(2)
        assert not gate.closed


async def test_pausing_again_as_the_same_owner_renews(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    async with opened(LeaseAction.RESUME) as (pauses, gate):
        window = pauses.open(PauseMode.KEEP, owner="a", lease=30)
        await trio.sleep(20)
        assert pauses.open(PauseMode.KEEP, owner="a", lease=30) is window
        await trio.sleep(20)
        assert gate.closed


async def test_others_cannot_renew_it_and_nobody_can_once_it_has_ended(
    mock_clock: MockClock,
) -> None:
    mock_clock.autojump_threshold = 0
    async with opened(LeaseAction.RESUME) as (pauses, _):
        pauses.open(PauseMode.KEEP, owner="a", lease=1)
        with pytest.raises(StateConflict, match="by a"):
            pauses.renew("b")
        await trio.sleep(2)
        with pytest.raises(StateConflict, match="no pause to renew"):
            pauses.renew("a")


async def test_a_lease_that_ran_out_may_keep_the_pause_for_whoever_comes(
    mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    mock_clock.autojump_threshold = 0
    async with opened(LeaseAction.KEEP_PAUSED) as (pauses, gate):
        window = pauses.open(PauseMode.ABORT, owner="a", lease=1)
        await trio.sleep(1000)
        assert (gate.closed, window.lapsed) == (True, True)
        assert caplog.text.count("stays paused") == 1

        assert pauses.open(PauseMode.KEEP, owner="b") is window
        assert (window.owner, window.mode) == ("b", PauseMode.ABORT)
        assert not window.lapsed


async def test_who_renews_a_lease_that_ran_out_has_the_pause_again_for_as_long(
    mock_clock: MockClock,
) -> None:
    mock_clock.autojump_threshold = 0
    async with opened(LeaseAction.KEEP_PAUSED) as (pauses, _):
        window = pauses.open(PauseMode.KEEP, owner="a", lease=10)
        await trio.sleep(15)
        with pytest.raises(StateConflict, match="by a"):
            pauses.renew("b")
        assert pauses.renew("a") is window
        with pytest.raises(StateConflict, match="by a"):
            pauses.open(PauseMode.KEEP, owner="b")
        assert window.lease.left(trio.current_time()) == 10
        await trio.sleep(15)
        assert window.lapsed


async def test_who_takes_a_pause_over_has_it_for_as_long_as_they_say(
    mock_clock: MockClock,
) -> None:
    mock_clock.autojump_threshold = 0
    async with opened(LeaseAction.KEEP_PAUSED) as (pauses, _):
        window = pauses.open(PauseMode.KEEP, owner="a", lease=10)
        await trio.sleep(15)
        pauses.open(PauseMode.KEEP, owner="b")
        assert window.lease.left(trio.current_time()) is None


async def test_a_lease_that_ran_out_in_an_update_says_what_ends_the_pause(
    mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    mock_clock.autojump_threshold = 0
    async with opened(LeaseAction.RESUME) as (pauses, gate):
        pauses.leases.veto = lambda: "weights are incomplete"
        pauses.open(PauseMode.KEEP, owner="a", lease=1)
        await trio.sleep(2)

        assert gate.closed
        assert "weights are incomplete; POST /shutdown_weight_transfer_engine" in caplog.text


async def test_a_lease_that_ran_out_may_end_the_program(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    async with opened(LeaseAction.SHUTDOWN) as (pauses, gate):
        reasons: list[str] = []
        pauses.leases.on_shutdown = reasons.append
        pauses.open(PauseMode.KEEP, lease=1)
        await trio.sleep(2)

        assert reasons == ["the lease of a pause was not renewed"]
        assert gate.closed


async def test_incomplete_weights_are_never_served_by_themselves(
    mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    mock_clock.autojump_threshold = 0
    async with opened(LeaseAction.RESUME) as (pauses, gate):
        pauses.leases.veto = lambda: "half of the weights are missing"
        pauses.open(PauseMode.KEEP, owner="a", lease=1)
        await trio.sleep(2)

        assert gate.closed
        assert "stays paused, half of the weights are missing" in caplog.text


async def test_a_resume_that_hangs_does_not_spin_when_the_lease_ends(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock_clock.autojump_threshold = 0
    async with opened(LeaseAction.RESUME) as (pauses, gate):
        window = pauses.open(PauseMode.KEEP, owner="a", lease=1)
        await window.wait_paused()
        # An engine that never answers.
        monkeypatch.setattr(
            pauses.standstill,
            "serving",
            lambda: [attrs.make_class("E", ["incarnation"], eq=False)(1)],
        )
        cast("NoEngines", pauses._calls).hangs = True
        pauses.end("a")
        await trio.sleep(5)
        await wait_all_tasks_blocked()

        assert (window.phase, gate.closed) == (PausePhase.RESUMING, True)

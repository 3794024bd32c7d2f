"""Ranks that end and come back, and what stands at their rims."""

import math
from collections.abc import Sequence

import attrs
import trio

from tests.simulator._frontend import RawFrontend, open_raw_frontend, request
from vllmfront.engine.wire import Abort, Add, Utility
from vllmfront.simulator import (
    Encode,
    Rim,
    Simulator,
    SimulatorConfig,
    Spoken,
    StartPhase,
    no_rim,
    open_simulator,
    serve_simulator,
)

TEST_SECONDS = 10.0


@attrs.define
class Recorder(Rim):
    """Notes what passes; ends the start at *last_phase*."""

    seen: list[str]
    last_phase: StartPhase | None = None

    def reached(self, phase: StartPhase, now: float) -> bool:
        del now
        self.seen.append(phase.name)
        return phase is not self.last_phase

    def hears(self, message: Add | Abort | Utility, now: float) -> bool:
        self.seen.append(type(message).__name__)
        return super().hears(message, now)

    def says(self, message: Spoken, encode: Encode, now: float) -> Sequence[list[bytes]]:
        self.seen.append(type(message).__name__)
        return super().says(message, encode, now)


def config_for(frontend: RawFrontend, **fields: float) -> SimulatorConfig:
    return SimulatorConfig(
        handshake=frontend.handshake.address,
        step_time=0.0,
        vocab_size=1000,
        **fields,  # type: ignore[arg-type]  # keywords of the caller
    )


async def test_everything_passes_the_rim() -> None:
    seen: list[str] = []
    with trio.fail_after(TEST_SECONDS):
        async with (
            open_raw_frontend() as frontend,
            open_simulator(config_for(frontend), lambda *_: Recorder(seen)),
        ):
            await frontend.shake_hands()
            await frontend.tokens(request(max_tokens=1))
            await frontend.answer(frontend.call("is_sleeping"))

    assert seen[:4] == ["HELLO", "INIT", "REGISTERED", "READY"]
    assert seen[4:6] == ["Add", "StepOutput"]
    assert sorted(seen[6:]) == ["Answer", "StepOutput", "Utility"]


async def test_a_plain_rim_holds_nothing_up() -> None:
    rim = no_rim(0, 0)

    assert rim.reached(StartPhase.HELLO, 0.0)
    assert rim.wake_at() == math.inf
    assert rim.asleep_until() == -math.inf


async def test_who_dies_before_it_was_ready_ends_the_serving() -> None:
    seen: list[str] = []
    rims = [Recorder(seen, StartPhase.INIT), Recorder([])]
    with trio.fail_after(TEST_SECONDS):
        async with open_raw_frontend() as frontend, trio.open_nursery() as nursery:
            config = config_for(frontend, ranks=2)
            async with trio.open_nursery() as starting:
                starting.start_soon(frontend.shake_hands)
                simulator: Simulator = await nursery.start(
                    serve_simulator, config, lambda rank, _: rims[rank]
                )
            found = [engine.snapshot() for engine in simulator.engines]
            simulator.engines[1].die()

    assert [one.ready for one in found] == [False, True]
    assert found[0].dead == "vanished after INIT"


async def test_a_rank_comes_back_as_a_new_engine_with_a_rim_of_its_own() -> None:
    lives: list[tuple[int, int]] = []

    def note(rank: int, life: int) -> Rim:
        lives.append((rank, life))
        return Rim()

    with trio.fail_after(TEST_SECONDS):
        async with open_raw_frontend() as frontend:
            config = config_for(frontend, rejoin_after=0.0, first_life=4, start_rank=0)
            async with open_simulator(config, note) as simulator:
                await frontend.shake_hands()
                first = simulator.engines[0]
                before = await frontend.tokens(request("a"))
                first.vanish()
                frontend.registrations.clear()
                await frontend.shake_hands()
                after = await frontend.tokens(request("b"))

                assert simulator.engines[0] is not first
                assert first.snapshot().dead == "vanished"

    assert lives == [(0, 4), (0, 5)]
    assert before == after

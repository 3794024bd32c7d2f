"""Faults over real sockets: each one really happens, and happens at its count."""

import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from tests.simulator._frontend import ANY_PORT, RANK_0, RawFrontend, open_raw_frontend, request
from vllmfront.engine.transport import PeerGone, open_context, open_router
from vllmfront.engine.wire import (
    DEAD_FRAME,
    Hello,
    decode_batch,
    decode_handshake,
    decode_output,
    decode_stats,
    encode_abort,
)
from vllmfront.errors import ProtocolError
from vllmfront.simulator import Simulator, SimulatorConfig, StartPhase, open_simulator
from vllmfront.testing import (
    Fault,
    FaultKind,
    FaultPlan,
    FaultyRim,
    Incident,
    Moment,
    Odds,
    faulty_rims,
)

TEST_SECONDS = 10.0
STALL = 0.2
"""Seconds: longer than anything else here."""


class Pair:
    """A stand-in with faults, the frontend before it, and what was injected."""

    def __init__(
        self, frontend: RawFrontend, simulator: Simulator, injected: list[Incident]
    ) -> None:
        self.frontend = frontend
        self.simulator = simulator
        self.injected = injected

    async def messages(self, count: int = 6) -> list[list[int]]:
        """Ask for *count* tokens; return those of each message up to one that carries the end."""
        self.frontend.add(request(max_tokens=count))
        said: list[list[int]] = []
        while True:
            batch = await self.frontend.batch()
            for row in batch.rows:
                output = decode_output(row, [])
                said.append(output.new_token_ids)
                if output.finish_reason is not None:
                    return said

    async def rows_until_stats(self) -> list[list[int]]:
        """Return the tokens of each message until one comes that has none."""
        said: list[list[int]] = []
        while (batch := await self.frontend.batch()).rows:
            said += [row[1] for row in batch.rows]
        return said

    async def reach(self) -> None:
        """Return once the present engine hears us, and we it."""
        while True:
            with contextlib.suppress(PeerGone):
                self.frontend.call("is_sleeping")
            with trio.move_on_after(0.05):
                while (await self.frontend.batch()).utility is None:
                    pass
                return

    async def rows(self) -> int:
        """Return the number of rows of the next message that has some."""
        while not (rows := (await self.frontend.batch()).rows):
            pass
        return len(rows)

    async def gone(self) -> None:
        while True:
            try:
                self.frontend.requests.send_nowait(RANK_0, encode_abort(["probe"]))
            except PeerGone:
                return
            await trio.sleep(0.001)


@asynccontextmanager
async def open_pair(
    *faults: Fault, step_time: float = 0.0, **fields: object
) -> AsyncGenerator[Pair]:
    injected: list[Incident] = []

    def note(incident: Incident) -> None:
        if incident.fault is not None:
            injected.append(incident)

    with trio.fail_after(TEST_SECONDS):
        async with open_raw_frontend() as frontend:
            config = SimulatorConfig(
                handshake=frontend.handshake.address,
                step_time=step_time,
                vocab_size=1000,
                **fields,  # type: ignore[arg-type]  # keywords of the caller
            )
            rims = faulty_rims(FaultPlan(faults=faults), note)
            async with open_simulator(config, rims) as simulator:
                await frontend.shake_hands()
                yield Pair(frontend, simulator, injected)


async def healthy_tokens(count: int = 6) -> list[int]:
    async with open_pair() as pair:
        return flat(await pair.messages(count))


def flat(messages: Sequence[Sequence[int]]) -> list[int]:
    return [token for message in messages for token in message]


async def test_without_faults_everything_passes() -> None:
    async with open_pair() as pair:
        messages = await pair.messages(4)

    assert [len(message) for message in messages] == [1, 1, 1, 1]
    assert pair.injected == []


async def test_a_dropped_message_is_lost() -> None:
    tokens = await healthy_tokens()
    async with open_pair(Fault(kind=FaultKind.DROP, at=2, count=2)) as pair:
        messages = await pair.messages()

    assert flat(messages) == [tokens[0], *tokens[3:]]
    assert [one.request_ids for one in pair.injected] == [("r",), ("r",)]


async def test_a_duplicated_message_comes_twice() -> None:
    tokens = await healthy_tokens()
    async with open_pair(Fault(kind=FaultKind.DUPLICATE, at=3)) as pair:
        messages = await pair.messages()

    assert flat(messages) == [*tokens[:3], *tokens[2:]]


async def test_a_reordered_message_follows_the_next() -> None:
    tokens = await healthy_tokens()
    async with open_pair(Fault(kind=FaultKind.REORDER, at=3)) as pair:
        messages = await pair.messages()

    assert flat(messages) == [*tokens[:2], tokens[3], tokens[2], *tokens[4:]]


async def test_the_last_message_changes_places_with_the_statistics() -> None:
    async with open_pair(Fault(kind=FaultKind.REORDER, at=2)) as pair:
        pair.frontend.add(request(max_tokens=2))
        kinds = [bool((await pair.frontend.batch()).rows) for _ in range(3)]

    assert kinds == [True, False, True]


async def test_garbled_messages_cannot_be_read() -> None:
    async with open_pair(Fault(kind=FaultKind.GARBLE, at=2, count=2)) as pair:
        pair.frontend.add(request(max_tokens=4))
        outcomes = []
        for _ in range(4):
            try:
                decode_batch(await pair.frontend.frames())
                outcomes.append("read")
            except ProtocolError:
                outcomes.append("garbled")

    assert outcomes == ["read", "garbled", "garbled", "read"]


async def test_a_crash_comes_in_place_of_its_message() -> None:
    async with open_pair(Fault(kind=FaultKind.CRASH, at=3), step_time=0.05) as pair:
        pair.frontend.add(request(max_tokens=9))
        said = [len((await pair.frontend.batch()).rows) for _ in range(2)]
        await pair.gone()

        assert said == [1, 1]
        assert pair.frontend.outputs.receive_nowait() is None
        assert pair.simulator.engines[0].snapshot().dead == "vanished"


async def test_a_death_is_told() -> None:
    async with open_pair(Fault(kind=FaultKind.DIE, at=2)) as pair:
        pair.frontend.add(request(max_tokens=9))
        await pair.frontend.batch()
        frames = await pair.frontend.frames()
        await pair.gone()

    assert frames == [DEAD_FRAME]


async def test_a_hanging_engine_stays_connected_and_says_nothing() -> None:
    async with open_pair(Fault(kind=FaultKind.HANG, on=Moment.REQUEST, at=2)) as pair:
        await pair.messages(2)
        await pair.rows_until_stats()
        pair.frontend.add(request("b", max_tokens=1))
        call = pair.frontend.call("is_sleeping")
        with trio.move_on_after(STALL) as waited:
            await pair.frontend.answer(call)

        assert waited.cancelled_caught
        pair.frontend.requests.send_nowait(RANK_0, encode_abort(["b"]))


async def test_a_stalled_engine_goes_on_where_it_was() -> None:
    tokens = await healthy_tokens()
    async with open_pair(Fault(kind=FaultKind.STALL, at=2, seconds=STALL)) as pair:
        pair.frontend.add(request(max_tokens=6))
        said = [(await pair.frontend.batch()).rows[0][1] for _ in range(2)]
        spoke = trio.current_time()
        said.append((await pair.frontend.batch()).rows[0][1])
        silent = trio.current_time() - spoke
        said += [(await pair.frontend.batch()).rows[0][1] for _ in range(3)]

    assert flat(said) == tokens
    assert silent > STALL / 2


async def test_a_slow_engine_takes_longer_for_each_message() -> None:
    async with open_pair(Fault(kind=FaultKind.SLOW, at=1, count=3, seconds=0.05)) as pair:
        started = trio.current_time()
        messages = await pair.messages()
        took = trio.current_time() - started

    assert len(messages) == 6
    assert took >= 0.15
    assert len(pair.injected) == 3


async def test_a_lying_engine_claims_to_be_swamped_and_to_be_idle() -> None:
    async with open_pair(Fault(kind=FaultKind.LIE, at=1, count=2)) as pair:
        pair.frontend.add(request(max_tokens=3))
        found = [decode_stats((await pair.frontend.batch()).scheduler_stats) for _ in range(3)]

    assert [stats.num_running_reqs for stats in found] == [1_000_000, 0, 0]
    assert found[0].kv_cache_usage == 1.0


async def test_a_lost_request_is_never_answered_and_the_next_one_is() -> None:
    async with open_pair(Fault(kind=FaultKind.LOSE, on=Moment.REQUEST, at=1)) as pair:
        pair.frontend.add(request("lost"))
        tokens = await pair.frontend.tokens(request("heard"))
        rest = await pair.rows_until_stats()

    assert len(tokens) == 3
    assert rest == []
    assert [one.request_ids for one in pair.injected] == [("lost",)]


async def test_a_mute_engine_never_answers_a_call() -> None:
    async with open_pair(Fault(kind=FaultKind.MUTE, on=Moment.CALL, at=2)) as pair:
        first = await pair.frontend.answer(pair.frontend.call("is_sleeping"))
        pair.frontend.call("is_sleeping")
        # It would be answered before a later one is, and the frontend wants that number.
        third = await pair.frontend.answer(pair.frontend.call("get_weight_version"))

    assert (first.result, third.result) == (False, "default")


@pytest.mark.parametrize("phase", [1, 2, 3])
async def test_an_engine_dies_in_the_handshake_and_comes_back(phase: int) -> None:
    fault = Fault(kind=FaultKind.CRASH, on=Moment.START, at=phase, life=0)
    async with open_pair(fault, rejoin_after=0.0) as pair:
        await pair.reach()
        tokens = await pair.frontend.tokens(request())

    assert len(tokens) == 3
    assert [(one.life, one.fault) for one in pair.injected] == [(0, fault)]


async def test_a_start_that_never_ends_says_hello_and_no_more() -> None:
    fault = Fault(kind=FaultKind.HANG, on=Moment.START, at=1)
    with (
        trio.fail_after(TEST_SECONDS),
        open_context() as context,
        open_router(context, ANY_PORT) as handshake,
    ):
        config = SimulatorConfig(handshake=handshake.address)
        async with open_simulator(config, faulty_rims(FaultPlan(faults=(fault,)))):
            _, hello = [frame.bytes for frame in await handshake.receive()]
            with trio.move_on_after(STALL / 2) as waited:
                await handshake.receive()

    assert isinstance(decode_handshake(hello), Hello)
    assert waited.cancelled_caught


async def test_a_timed_fault_strikes_an_idle_engine() -> None:
    async with open_pair(Fault(kind=FaultKind.CRASH, on=Moment.TIME, at=0.05)) as pair:
        await pair.gone()

    assert len(pair.injected) == 1


async def test_counts_begin_anew_with_each_life() -> None:
    crash = Fault(kind=FaultKind.CRASH, at=2)
    async with open_pair(crash, step_time=0.02, rejoin_after=0.0) as pair:
        for life in range(3):
            if life:
                await pair.frontend.shake_hands()
                await pair.reach()
            pair.frontend.add(request(max_tokens=9))
            await pair.rows()
            while len(pair.injected) == life:  # noqa: ASYNC110 (it tells no event)
                await trio.sleep(0.001)

    assert [one.life for one in pair.injected] == [0, 1, 2]


async def test_a_plan_gives_the_same_faults_again() -> None:
    kinds = (FaultKind.DROP, FaultKind.DUPLICATE, FaultKind.REORDER, FaultKind.LIE)
    plan = FaultPlan.from_seed(11, odds=Odds(kinds=kinds, per_life=9, within=100))
    runs = []
    for _ in range(2):
        async with open_pair(*plan.faults) as pair:
            await pair.messages(101)
            runs.append([(one.fault, one.request_ids) for one in pair.injected])

    assert runs[0] == runs[1]
    assert len({fault.kind for fault, _ in runs[0] if fault is not None}) > 2


async def test_outputs_are_counted_without_statistics_and_answers() -> None:
    async with open_pair(Fault(kind=FaultKind.DROP, at=3)) as pair:
        await pair.messages(2)
        await pair.rows_until_stats()
        await pair.frontend.answer(pair.frontend.call("is_sleeping"))
        pair.frontend.add(request("b", max_tokens=2))
        (only,) = await pair.rows_until_stats()

    assert len(only) == 1


async def test_both_of_two_faults_of_a_kind_at_one_count_happen() -> None:
    drop = Fault(kind=FaultKind.DROP, at=1)
    async with open_pair(drop, drop) as pair:
        outputs = flat(await pair.messages(4))

    assert len(outputs) == 2


def test_a_rim_of_no_faults_stands_nowhere() -> None:
    rim = FaultyRim((), 0, 0)

    assert rim.wake_at() == float("inf")
    assert rim.asleep_until() == -float("inf")


def test_readiness_is_told() -> None:
    told: list[Incident] = []
    rim = FaultyRim((), 3, 1, told.append)
    rim.reached(StartPhase.REGISTERED, 1.0)
    rim.reached(StartPhase.READY, 2.0)

    assert told == [Incident(rank=3, life=1, fault=None, time=2.0)]

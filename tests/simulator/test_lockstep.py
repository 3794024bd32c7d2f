"""Ranks that step together: what each knows of waves, and how they agree."""

import pytest

from tests.simulator._frontend import request
from vllmfront.engine.wire import Add, EngineAddresses, Init, StartWave, Utility
from vllmfront.errors import ProtocolError
from vllmfront.simulator import SimulatorConfig
from vllmfront.simulator._lockstep import (
    LockstepGroup,
    LockstepMeeting,
    Verdict,
    Vote,
    WaveLogic,
)
from vllmfront.simulator._lockstep_core import LockstepCore
from vllmfront.simulator._lockstep_remote import MeetingPoint, meeting_point
from vllmfront.simulator._messages import Answer, Death, Message, StepOutput, WaveNotice

OLD, NEW = False, True
GO_ON, STOP = Verdict(unfinished=True, pausing=False), Verdict(unfinished=False, pausing=False)


def logic(*, wakes_others: bool = NEW, rank: int = 1, **fields: bool | int) -> WaveLogic:
    made = WaveLogic(rank, wakes_others=wakes_others, sync_interval=4, wave=5)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


# One rank


@pytest.mark.parametrize(
    ("wakes_others", "carried", "notice", "wave", "running"),
    [
        (OLD, 5, None, 5, False),  # queued, and nobody is woken
        (OLD, 6, None, 6, False),
        (OLD, 4, WaveNotice(started=5), 5, True),
        (NEW, 5, WaveNotice(started=5), 5, True),
        (NEW, 6, WaveNotice(started=6), 6, True),
        (NEW, 4, WaveNotice(started=5), 5, True),
    ],
)
def test_a_request_to_an_idle_rank(
    *, wakes_others: bool, carried: int, notice: WaveNotice | None, wave: int, running: bool
) -> None:
    rank = logic(wakes_others=wakes_others)

    assert rank.request(carried, holds=False) == notice
    assert (rank.wave, rank.running) == (wave, running)


@pytest.mark.parametrize("wakes_others", [OLD, NEW])
@pytest.mark.parametrize("carried", [4, 5, 6])
def test_a_request_wakes_nobody_while_ranks_run_or_hold_still(
    *, wakes_others: bool, carried: int
) -> None:
    running = logic(wakes_others=wakes_others, running=True)
    paused = logic(wakes_others=wakes_others, paused=True)

    assert running.request(carried, holds=False) is None
    assert paused.request(carried, holds=True) is None
    assert not paused.running


@pytest.mark.parametrize(
    ("call", "wave", "running"),
    [
        (StartWave(5, None), 5, True),
        (StartWave(7, 0), 7, True),
        (StartWave(4, None), 5, False),  # it is over
        (StartWave(7, 1), 5, False),  # it is left out
    ],
)
def test_a_wake_up_call(call: StartWave, wave: int, *, running: bool) -> None:
    rank = logic()
    rank.wake_up(call)

    assert (rank.wave, rank.running) == (wave, running)


def test_a_wake_up_call_is_ignored_in_a_pause() -> None:
    rank = logic(paused=True)
    rank.wake_up(StartWave(9, None))

    assert (rank.wave, rank.running) == (5, False)


def test_the_first_step_and_then_every_so_many_need_a_vote() -> None:
    rank = logic(running=True)

    assert [rank.needs_vote() for _ in range(9)] == [step in {1, 4, 8} for step in range(1, 10)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_wave_ends_for_all_and_rank_0_says_so(rank: int) -> None:
    one = logic(rank=rank, running=True)
    one.needs_vote()

    assert one.decided(STOP) == (WaveNotice(ended=5) if rank == 0 else None)
    assert (one.wave, one.step, one.running) == (6, 0, False)


def test_rank_0_says_that_it_was_woken_once() -> None:
    rank = logic(rank=0)
    rank.wake_up(StartWave(5, None))

    assert rank.decided(GO_ON) == WaveNotice(started=5)
    assert rank.decided(GO_ON) is None


def test_a_pause_is_complete_when_all_are_told() -> None:
    rank = logic()
    rank.pause()
    assert rank.running, "it has to get to the vote"

    rank.decided(GO_ON)
    assert rank.pausing
    with pytest.raises(RuntimeError, match="pause is still in flight"):
        rank.check_resume()

    rank.decided(Verdict(unfinished=False, pausing=True))
    assert rank.paused
    assert rank.check_resume()

    rank.resumed(GO_ON)
    assert rank.running
    assert not rank.paused


def test_nothing_is_resumed_while_ranks_run() -> None:
    assert not logic(running=True).check_resume()


# All of them


def test_a_vote_waits_for_all() -> None:
    group = LockstepGroup(2)
    woken: list[int] = []
    for rank in range(2):
        group.join(rank, lambda rank=rank: woken.append(rank))  # type: ignore[misc]  # bound early
    group.vote(0, Vote(unfinished=False))
    assert group.take_verdict(0) is None

    group.vote(1, Vote(unfinished=True))

    assert woken == [0, 1]
    assert group.take_verdict(0) == group.take_verdict(1) == GO_ON
    assert group.take_verdict(0) is None


@pytest.mark.parametrize(
    ("told", "expected"), [(0, STOP), (1, GO_ON), (2, Verdict(unfinished=False, pausing=True))]
)
def test_ranks_that_are_told_to_pause_run_until_all_are(told: int, expected: Verdict) -> None:
    group = LockstepGroup(2)
    for rank in range(2):
        group.join(rank, lambda: None)
    for rank in range(2):
        group.vote(rank, Vote(unfinished=False, pausing=rank < told))

    assert group.take_verdict(0) == expected


async def test_a_group_that_has_lost_one_is_not_joined_any_more() -> None:
    meeting = LockstepMeeting(2)
    first = meeting.join(0, lambda: None)
    assert meeting.join(1, lambda: None) is first
    await first.wait_complete()

    first.leave(1)
    assert first.broken == "rank 1, with which it steps together, has ended"
    second = meeting.join(1, lambda: None)

    assert second is not first
    assert meeting.join(0, lambda: None) is second


async def test_a_process_that_was_replaced_before_all_were_there_breaks_the_group() -> None:
    meeting = LockstepMeeting(2)
    first = meeting.join(0, lambda: None)
    second = meeting.join(0, lambda: None)

    assert second is not first
    assert first.broken is not None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, None),
        ({"data_parallel_size": 2}, None),  # those of this process
        (
            {
                "data_parallel_size": 4,
                "data_parallel_master_ip": "10.0.0.1",
                "data_parallel_master_port": 7,
            },
            MeetingPoint("tcp://10.0.0.1:7", 4),
        ),
    ],
)
def test_where_ranks_of_several_processes_meet(
    said: dict[str, object], expected: MeetingPoint | None
) -> None:
    addresses = EngineAddresses(inputs=[], outputs=[])

    assert meeting_point(Init(addresses, said), 2) == expected


def test_ranks_that_cannot_find_the_others_say_so() -> None:
    init = Init(EngineAddresses(inputs=[], outputs=[]), {"data_parallel_size": 4})

    with pytest.raises(ProtocolError, match="cannot find each other"):
        meeting_point(init, 2)


# Cores


class Pair:
    """Two cores, one clock."""

    def __init__(self, version: str) -> None:
        config = SimulatorConfig(
            handshake="tcp://127.0.0.1:1",
            ranks=2,
            lockstep=True,
            vllm_version=version,
            step_time=1.0,
            stats=False,
        )
        self.group = LockstepGroup(2)
        self.cores = [LockstepCore(config, rank) for rank in range(2)]
        for rank, core in enumerate(self.cores):
            core.coordinated = True
            self.group.join(rank, lambda: None)
            core.join(self.group)
        self.now = 0.0

    def add(self, rank: int, tokens: int = 2, wave: int = 0) -> None:
        asked = request("r", max_tokens=tokens)
        self.cores[rank].receive(
            Add(internal_id="r", request=asked, client_index=0, current_wave=wave), self.now
        )

    def call(self, rank: int, method: str, *args: object) -> None:
        self.cores[rank].receive(
            Utility(client_index=0, call_id=rank, method=method, args=list(args)), self.now
        )

    def run(self, seconds: float) -> list[Message]:
        """Let time pass; return what was said of other things than load."""
        said: list[Message] = []
        until = self.now + seconds
        while True:
            busy = True
            while busy:
                news = [message for core in self.cores for message in core.advance(self.now)]
                said += news
                due = [core.wake_at(self.now) for core in self.cores]
                busy = bool(news) or any(one is not None and one <= self.now for one in due)
            now = min((one for one in due if one is not None), default=until)
            if now > until or self.now >= until:
                self.now = until
                return [
                    one for one in said if isinstance(one, StepOutput | Answer | WaveNotice | Death)
                ]
            self.now = now


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_a_request_for_the_present_wave(version: str) -> None:
    pair = Pair(version)
    pair.add(1)
    said = pair.run(50.0)

    told = WaveNotice(started=0) in said
    assert told is (version == "0.33.0")
    tokens = sum(isinstance(one, StepOutput) for one in said)
    assert tokens == 1, "after its first step it waits for the other"

    pair.cores[0].receive(StartWave(0, 1), pair.now)
    said = pair.run(50.0)

    assert WaveNotice(ended=0) in said
    assert [core.waves.wave for core in pair.cores] == [1, 1]


def test_a_rank_that_waits_for_the_others_answers_nothing() -> None:
    pair = Pair("0.32.0")
    pair.add(1)
    pair.run(5.0)
    pair.call(1, "is_sleeping")
    assert pair.run(50.0) == []

    pair.cores[0].receive(StartWave(0, None), pair.now)

    assert any(isinstance(one, Answer) for one in pair.run(5.0))


def test_a_pause_needs_all_ranks_and_so_does_the_way_back() -> None:
    pair = Pair("0.33.0")
    pair.call(0, "pause_generation", "keep", False)
    assert not [one for one in pair.run(50.0) if isinstance(one, Answer)]

    pair.call(1, "pause_generation", "keep", False)
    assert len([one for one in pair.run(50.0) if isinstance(one, Answer)]) == 2

    pair.add(1)
    assert pair.run(50.0) == []
    pair.call(1, "resume_scheduler")
    assert pair.run(50.0) == []
    pair.call(0, "resume_scheduler")
    said = pair.run(50.0)

    assert len([one for one in said if isinstance(one, Answer)]) == 2
    assert WaveNotice(ended=pair.cores[0].waves.wave - 1) in said


def test_a_dead_rank_stops_the_others_at_the_next_vote() -> None:
    pair = Pair("0.33.0")
    pair.add(1, tokens=100)
    pair.run(2.0)
    pair.group.leave(0)

    [death] = [one for one in pair.run(50.0) if isinstance(one, Death)]
    assert "rank 0" in death.reason
    assert pair.cores[1].dead

"""What coordinator, engines and frontends of vLLM say to each other, said to ours and by ours."""

from collections.abc import Mapping, Sequence

import pytest

from tests.engine.wire.golden import find
from vllmfront.engine.coordinator import WaveState
from vllmfront.engine.coordinator._follower import Follower
from vllmfront.engine.coordinator._judgement import CoordinatorJudgement
from vllmfront.engine.wire import (
    EngineLoad,
    decode_load_report,
    encode_batch,
    encode_start_dp_wave,
)
from vllmfront.errors import ProtocolError

SERIES = ("0.32", "0.33")
BOTH = pytest.mark.parametrize("series", SERIES)


class Desk:
    """A coordinator's judgement on two engines, and what it says."""

    def __init__(self, wave: int = 0, *, running: bool = False, listening: bool = True) -> None:
        self.to_engines: list[Sequence[bytes]] = []
        self.to_frontends: list[bytes] = []
        self.judgement = CoordinatorJudgement(
            2, self.to_engines.append, lambda frames: self.to_frontends.append(frames[0])
        )
        self.judgement.state = WaveState(wave, running=running)
        if listening:
            self.judgement.gate.is_open = True


def frame(name: str, series: str = "0.33") -> bytes:
    return find(name, series).frames[0]


@BOTH
def test_ready_is_said_when_both_have_subscribed(series: str) -> None:
    desk = Desk(listening=False)
    desk.judgement.take_subscription([frame("coord_subscribe", series)])
    assert desk.to_engines == []

    desk.judgement.take_subscription([frame("coord_subscribe", series)])

    assert desk.to_engines == [[frame("coord_ready", series)]]


@BOTH
def test_the_end_of_a_wave_is_published(series: str) -> None:
    desk = Desk(4, running=True)
    desk.judgement.take_report([frame("out_wave_complete", series)])

    assert desk.to_frontends == [frame("coord_publish_wave", series)]
    assert desk.to_engines == []


@BOTH
def test_engines_are_woken_on_the_word_of_one(series: str) -> None:
    desk = Desk(3)
    desk.judgement.take_report(encode_batch(engine_index=1, start_wave=3))

    golden = find("start_dp_wave", series)
    assert desk.to_engines == [[golden.type_frame, *golden.frames]]

    desk.judgement.take_report([frame("out_start_wave", series)])

    assert desk.to_engines[1:] == [encode_start_dp_wave(5, 1)]
    assert [decode_load_report(one).wave for one in desk.to_frontends] == [3, 5]


@BOTH
def test_loads_are_published_as_they_are_reported(series: str) -> None:
    desk = Desk(4, running=True)
    told: list[Mapping[int, EngineLoad]] = []
    desk.judgement.load_observers.append(told.append)
    desk.judgement.take_report([frame("out_coord_counts", series)])
    desk.judgement.tick(0.0)

    load = EngineLoad(2, 1, 0.5)
    assert told == [{1: load}]
    [published] = map(decode_load_report, desk.to_frontends)
    golden = decode_load_report(frame("coord_publish_counts", series))
    assert published.loads is not None
    assert golden.loads is not None
    assert list(published.loads) == list(reversed(golden.loads))
    assert (published.wave, published.running) == (golden.wave, golden.running)


def test_a_frontend_of_old_has_the_engines_woken() -> None:
    desk = Desk(4)
    desk.judgement.take_notice([frame("coord_first_request", "0.32")], 0.0)

    assert desk.to_engines == [encode_start_dp_wave(4, 1)]
    assert desk.judgement.state == WaveState(4), "that they run is for them to say"

    desk.judgement.tick(1.0)

    assert desk.to_engines[1:] == [encode_start_dp_wave(4, None)]


@BOTH
def test_a_frontend_says_how_many_engines_there_are(series: str) -> None:
    desk = Desk()
    desk.judgement.take_notice([frame("coord_scale", series)], 0.0)

    assert len(desk.judgement.table) == desk.judgement.gate.engines == 4


@pytest.mark.parametrize(
    "word",
    [b"\x92\xc0\xc0", b"\xc1", b"hello", b"\x93\x01\x02\x03"],
)
def test_what_makes_no_sense_changes_nothing(word: bytes) -> None:
    desk = Desk(4)
    for take in (
        desk.judgement.take_subscription,
        desk.judgement.take_report,
        lambda frames: desk.judgement.take_notice(frames, 0.0),
    ):
        with pytest.raises(ProtocolError):
            take([word])

    assert not desk.to_engines
    assert not desk.to_frontends
    assert desk.judgement.state == WaveState(4)


def test_the_load_of_an_engine_that_is_not_counted_is_refused() -> None:
    desk = Desk()
    desk.judgement.resize(1)

    with pytest.raises(ProtocolError, match="engine 1 is none of 1"):
        desk.judgement.take_report([frame("out_coord_counts")])


class Frontend:
    """A follower for one of two ranks, and what it says."""

    def __init__(self, version: str) -> None:
        self.said: list[bytes] = []
        self.loads: list[Mapping[int, EngineLoad]] = []
        self.follower = Follower([1], lambda frames: self.said.append(frames[0]))
        self.follower.load_observers.append(self.loads.append)
        self.follower.wakes.set_wanted(wanted=version == "0.32")


@BOTH
def test_a_follower_takes_what_is_published(series: str) -> None:
    frontend = Frontend(series)
    frontend.follower.take(frame("coord_publish_counts", series))

    assert frontend.follower.state == WaveState(4, running=True)
    assert frontend.loads == [{1: EngineLoad(0, 0, 0.0)}], "of its own rank"

    frontend.follower.take(frame("coord_publish_wave", series))

    assert frontend.follower.state == WaveState(5)
    assert len(frontend.loads) == 1


def test_a_follower_of_old_engines_tells_of_requests_to_idle_ones() -> None:
    frontend = Frontend("0.32")
    frontend.follower.state = WaveState(4)
    frontend.follower.requested(1, 0.0)

    assert frontend.said == [frame("coord_first_request", "0.32")]

    frontend.follower.tick(1.0)

    desk = Desk(4)
    desk.judgement.take_notice([frontend.said[1]], 1.0)
    assert desk.to_engines == [encode_start_dp_wave(4, None)], "nobody is left out any more"


def test_a_follower_of_new_engines_tells_nothing() -> None:
    frontend = Frontend("0.33")
    frontend.follower.requested(1, 0.0)
    frontend.follower.tick(100.0)

    assert frontend.said == []


@BOTH
def test_a_follower_is_not_troubled_by_nonsense(series: str) -> None:
    frontend = Frontend(series)
    frontend.follower.take(frame("coord_publish_counts", series))
    with pytest.raises(ProtocolError):
        frontend.follower.take(b"\x93\xc0\xc0\xc0")

    assert frontend.follower.state == WaveState(4, running=True)


def test_an_engine_that_waits_for_ready_hears_nothing_else_before() -> None:
    """It would end. What is owed to it is said once all listen."""
    desk = Desk(listening=False)
    judgement = desk.judgement
    judgement.wakes.requested(judgement.state)
    judgement.take_subscription([frame("coord_subscribe")])
    judgement.tick(1.0)
    before, due = list(desk.to_engines), judgement.due
    judgement.take_subscription([frame("coord_subscribe")])
    judgement.tick(2.0)

    assert before == []
    assert due == judgement.table.due
    assert desk.to_engines[0] == [frame("coord_ready")]


def test_a_wave_that_begins_before_all_listen_is_told_of_when_they_do() -> None:
    """As after a change of coordinators: engines connect again in any order."""
    desk = Desk(4, listening=False)
    desk.judgement.take_report([frame("out_start_wave")])
    desk.judgement.take_subscription([frame("coord_subscribe")])
    before = list(desk.to_engines)
    desk.judgement.take_subscription([frame("coord_subscribe")])

    assert before == []
    assert desk.to_engines[0] == [frame("coord_ready")]
    assert desk.to_engines[1] == encode_start_dp_wave(5, None)

"""Strikes happen at the order that they name, and everything that is heard is written down."""

import io
from pathlib import Path

import msgspec
import pytest

from tests.rl_soak._record import ADD, CALL, READY, Record, Recorder
from tests.rl_soak._rim import SoakRim
from tests.rl_soak._strikes import REQUEST, Strike, StrikeBox
from vllmfront.engine import EngineRequest, SamplingParams
from vllmfront.engine.wire import Add, Utility
from vllmfront.simulator import Answer, Mortal, StartPhase
from vllmfront.testing import Incident

UPDATE = Utility(
    client_index=0, call_id=1, method="collective_rpc", args=["update_weights", None, [], {}]
)
PAUSE = Utility(client_index=0, call_id=2, method="pause_generation", args=["keep", True])
ANSWER = Answer(client=0, timestamp=0.0, call_id=1, result=None)


class Engine(Mortal):
    def __init__(self) -> None:
        self.ended: str | None = None

    def die(self, reason: str = "") -> None:
        self.ended = f"died: {reason}"

    def vanish(self) -> None:
        self.ended = "vanished"


class Rig:
    def __init__(self, folder: Path, *strikes: Strike) -> None:
        self.file, self.engine = io.StringIO(), Engine()
        self.incidents: list[Incident] = []
        box = StrikeBox(folder / "strikes")
        box.put(list(strikes))
        self.rim = SoakRim(0, 0, self.incidents.append, Recorder(self.file, 0, 0), box)
        self.rim.attach(self.engine)

    def records(self) -> list[tuple[str, str]]:
        lines = self.file.getvalue().splitlines()
        found = [msgspec.json.decode(line, type=Record) for line in lines]
        return [(one.event, one.name) for one in found]

    def hears(self, message: Add | Utility) -> bool:
        return self.rim.hears(message, 0.0)

    def answers(self) -> int:
        return len(self.rim.says(ANSWER, lambda _: [b""], 0.0))


def add(name: str) -> Add:
    request = EngineRequest(
        request_id=name, prompt_token_ids=[1], sampling=SamplingParams(max_tokens=1)
    )
    return Add(request=request, internal_id=name, client_index=0, current_wave=0)


def test_what_is_heard_is_written_down(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.rim.reached(StartPhase.READY, 0.0)

    assert rig.hears(UPDATE)
    assert rig.hears(add("a"))
    assert rig.answers() == 1
    assert rig.records() == [(READY, ""), (CALL, "update_weights"), (ADD, "a")]


def test_a_strike_waits_for_its_order(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Strike(at="update_weights", kind="mute"))

    assert rig.hears(PAUSE)
    assert not rig.hears(UPDATE)
    assert rig.hears(UPDATE)
    assert rig.records() == [(CALL, "pause_generation"), (CALL, "update_weights")]


@pytest.mark.parametrize(("kind", "ended"), [("mute", None), ("crash", "vanished")])
def test_a_strike_may_come_when_the_order_is_done(
    tmp_path: Path, kind: str, ended: str | None
) -> None:
    rig = Rig(tmp_path, Strike(at="update_weights", kind=kind, done=True))

    assert rig.hears(UPDATE)
    assert rig.answers() == 0
    assert rig.engine.ended == ended
    assert len(rig.incidents) == 1


def test_a_strike_may_come_with_a_request(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Strike(at=REQUEST, kind="die"))
    rig.hears(add("a"))

    assert rig.engine.ended is not None
    assert rig.engine.ended.startswith("died")

"""The file in which engines are kept: what is read from it, and who may write it."""

import contextlib
import json
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllmfront.engine.client.entrance._saved import (
    SavedEngine,
    SavedState,
    UnusableState,
    decode_state,
    encode_state,
)
from vllmfront.engine.client.entrance._state_file import StateFile
from vllmfront.errors import ConfigurationError
from vllmfront.testing import REGISTRATION

ADDRESS = "tcp://10.0.0.1:29550"
STATE = SavedState(
    handshake_address=ADDRESS,
    ports=[(20001, 20002), (20003, 20004)],
    coordinator_ports=[20005, 20006, 20007],
    first_id=2**32 - 1,
    engines={
        0: SavedEngine(registration=REGISTRATION),
        7: SavedEngine(registration=REGISTRATION, connected=False, paused_by_us=True),
    },
)


def test_a_state_survives_the_way_through_a_file() -> None:
    assert decode_state(encode_state(STATE), ADDRESS) == STATE


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 1}, "of version 1, not 2"),
        ({"handshake_address": "tcp://10.0.0.2:29550"}, "about engines at tcp://10.0.0.2:29550"),
        ({"ports": [[20001, 20002]]}, "damaged"),
        ({"ports": [[20001, 20002], [20001, 20003]]}, "one port for two purposes"),
        ({"ports": [[20001, 20002], [0, 20003]]}, "damaged"),
        ({"coordinator_ports": [20005, 20006, 20001]}, "one port for two purposes"),
        ({"coordinator_ports": [20005, 20006]}, "no 2 ports"),
        ({"coordinator_ports": [20005, 20006, 0]}, "damaged"),
        ({"first_id": 2**32}, "damaged"),
        ({"engines": {"x": {}}}, "damaged"),
        ({"engines": {"0": {"registration": "AAAA", "connected": True}}}, "damaged"),
        (
            {"engines": {"0": {"registration": "oQ==", "connected": True, "paused_by_us": False}}},
            "damaged",
        ),
        ({"more": 1}, "damaged"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], why: str) -> None:
    fields = {**json.loads(encode_state(STATE)), **change}

    with pytest.raises(UnusableState, match=why):
        decode_state(json.dumps(fields).encode(), ADDRESS)


@given(st.integers(min_value=0), st.integers(0, 255), st.integers(min_value=0))
def test_damage_never_raises_anything_else(place: int, byte: int, end: int) -> None:
    data = bytearray(encode_state(STATE))
    data[place % len(data)] = byte
    for damaged in (bytes(data), bytes(data[: end % len(data)])):
        with contextlib.suppress(UnusableState):
            decode_state(damaged, ADDRESS)


def test_deep_nesting_is_damage() -> None:
    with pytest.raises(UnusableState):
        decode_state(b'{"version": 1, "engines": ' + b"[" * 100_000, ADDRESS)


def test_a_written_state_is_read_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "engines.json"
    with StateFile(path) as first:
        first.acquire()
        first.acquire()
        first.write(attrs.evolve(STATE, first_id=0))
        first.write(STATE)
    with StateFile(path) as second:
        second.acquire()

        assert second.read(ADDRESS) == STATE
    assert path.parent.stat().st_mode & 0o077 == 0
    assert sorted(each.name for each in path.parent.iterdir()) == ["engines.json", "engines.lock"]


def test_a_file_that_is_not_there_or_unusable_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = StateFile(tmp_path / "engines.json")

    assert file.read(ADDRESS) is None
    assert not caplog.text
    file.path.write_bytes(b"")
    assert file.read(ADDRESS) is None
    assert "it is damaged" in caplog.text
    assert "have to be restarted" in caplog.text


def test_one_process_at_a_time_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    with StateFile(path) as first, StateFile(path) as second:
        first.acquire()
        with pytest.raises(ConfigurationError, match=r"process \d+ serves the engines of"):
            second.acquire()
        first.release()
        second.acquire()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigurationError, match="--state-dir"):
        StateFile(tmp_path / "file" / "engines.json").acquire()


def test_a_full_disk_costs_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with StateFile(tmp_path / "engines.json") as file:
        file.acquire()
        (tmp_path / "engines.new").mkdir()
        file.write(STATE)

    assert "Cannot write" in caplog.text

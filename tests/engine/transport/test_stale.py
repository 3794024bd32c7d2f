import os
import socket
from pathlib import Path

import pytest

from vllmfront.engine.transport import remove_stale_sockets

AN_HOUR = 3600.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(tmp_path))
    return tmp_path


def bind(name: str, *, age: float = AN_HOUR) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.bind(name)
    times = os.lstat(name).st_mtime - age
    os.utime(name, (times, times))
    return bound


def test_only_what_is_ours_and_old_and_deaf_is_removed(folder: Path) -> None:
    with (
        bind("vllmfront-i-dead"),
        bind("vllmfront-o-new", age=0.0),
        bind("someone-elses"),
        bind("vllmfront-i-alive") as alive,
    ):
        alive.listen()
        (folder / "vllmfront-i-file").touch()

        assert remove_stale_sockets() == 1

    left = {path.name for path in folder.iterdir()}
    assert left == {"vllmfront-o-new", "someone-elses", "vllmfront-i-alive", "vllmfront-i-file"}

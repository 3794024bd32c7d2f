"""The pid file says who serves, and only while it does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles.upgrade import PidFile, _pid_file, check_free
from vllmfront.lifecycles.upgrade._pid_file import read_pid

HOLD = """
import pathlib, runpy, sys
PidFile = runpy.run_path(sys.argv[2])["PidFile"]
file = PidFile(pathlib.Path(sys.argv[1]))
file.write()
print("held", flush=True)
sys.stdin.read()
"""


def test_the_file_names_the_process_until_it_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    file = PidFile(path)
    assert read_pid(path) is None
    file.write()
    assert path.read_text() == f"{os.getpid()}\n"
    assert read_pid(path) == os.getpid()
    with pytest.raises(ConfigurationError, match=f"process {os.getpid()} is serving"):
        check_free(path)

    file.remove()
    file.remove()

    assert list(tmp_path.iterdir()) == []
    check_free(path)


def test_a_generation_that_leaves_spares_the_file_of_the_next(tmp_path: Path) -> None:
    old, new = PidFile(tmp_path / "pid"), PidFile(tmp_path / "pid")
    old.write()
    new.write()
    old.remove()
    assert read_pid(new.path) == os.getpid()
    new.write()
    assert read_pid(new.path) == os.getpid()

    new.remove()

    assert not new.path.exists()


def test_an_entry_knows_that_another_is_in_its_place(tmp_path: Path) -> None:
    old, new = PidFile(tmp_path / "pid"), PidFile(tmp_path / "pid")
    assert not old.is_replaced()
    old.write()
    assert not old.is_replaced()
    new.write()
    assert (old.is_replaced(), new.is_replaced()) == (True, False)
    old.write()
    assert (old.is_replaced(), new.is_replaced()) == (False, True)
    old.path.unlink()
    assert old.is_replaced()
    old.remove()
    new.remove()


def test_a_killed_process_does_not_serve(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), _pid_file.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert read_pid(path) == holder.pid
        holder.kill()
        holder.wait()

        assert path.exists()
        assert read_pid(path) is None


def test_an_unusable_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot write the pid file"):
        PidFile(tmp_path / "missing" / "pid").write()
    with pytest.raises(ConfigurationError, match="its folder is missing, or not ours"):
        check_free(tmp_path / "missing" / "pid")
    with pytest.raises(ConfigurationError, match="it is a folder"):
        check_free(tmp_path)
    with pytest.raises(ConfigurationError, match="cannot read the pid file"):
        read_pid(tmp_path / ("x" * 300))

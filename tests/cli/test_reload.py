"""``vllmfront reload`` as a command."""

from pathlib import Path

import pytest

from vllmfront.cli._main import run
from vllmfront.lifecycles.upgrade import PidFile


def test_without_a_server_there_is_nothing_to_replace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "stale"
    stale.write_text("1\n")

    assert run(["reload", str(tmp_path / "pid")]) == 1
    assert run(["reload", str(stale)]) == 1
    said = capsys.readouterr().err
    assert f"error: no process serves with the pid file {tmp_path}/pid" in said
    assert f"error: no process serves with the pid file {stale}" in said
    assert [file.name for file in tmp_path.iterdir()] == ["stale"]


def test_a_file_of_something_else_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = PidFile(tmp_path / "pid")
    file.write()
    file.path.write_text("rubbish")

    assert run(["reload", str(file.path)]) == 1
    assert "is no pid file of ours" in capsys.readouterr().err
    file.remove()


def test_the_help_tells_what_the_status_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["reload", "--help"])

    assert "Status 1: the old one goes on, or none serves." in capsys.readouterr().out

"""Who asked for an upgrade is told how it goes; nobody else."""

from pathlib import Path

import pytest
import trio

from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles.upgrade._report import Report, Reporter, Stage, open_reports


@pytest.fixture(params=["short", "d" * 120])
def pid_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A path, once one that is longer than the name of a socket may be."""
    folder: Path = tmp_path / request.param
    folder.mkdir()
    return folder / "pid"


async def test_what_is_told_arrives(pid_file: Path) -> None:
    with open_reports(pid_file) as reports, trio.fail_after(5):
        reporter = Reporter(pid_file)
        reporter.tell(Stage.UNDER_WAY, "process 7 is loading")
        reporter.tell(Stage.FAILED, "no")

        assert await reports.receive() == Report(Stage.UNDER_WAY, "process 7 is loading")
        assert await reports.receive() == Report(Stage.FAILED, "no")
    assert list(pid_file.parent.iterdir()) == []


async def test_who_comes_later_is_not_told_of_an_earlier_upgrade(pid_file: Path) -> None:
    early, unheard = Reporter(pid_file), Reporter(None)
    with open_reports(pid_file) as reports, trio.fail_after(5):
        late = Reporter(pid_file)
        early.tell(Stage.DONE, "early")
        unheard.tell(Stage.DONE, "unheard")
        late.tell(Stage.DONE, "late")

        assert (await reports.receive()).text == "late"
        assert late.listener == Reporter(pid_file).listener != early.listener


async def test_only_one_can_ask_at_a_time(pid_file: Path) -> None:
    with (
        open_reports(pid_file),
        pytest.raises(ConfigurationError, match="another reload"),
        open_reports(pid_file),
    ):
        pass


async def test_a_socket_that_somebody_left_is_no_hindrance(pid_file: Path) -> None:
    left = pid_file.with_name("pid.reload")
    with open_reports(pid_file):
        left.rename(left.with_name("kept"))
    left.with_name("kept").rename(left)

    with open_reports(pid_file) as reports, trio.fail_after(5):
        Reporter(pid_file).tell(Stage.DONE, "done")

        assert (await reports.receive()).stage is Stage.DONE


def test_a_folder_that_takes_no_socket_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match="missing"),
        open_reports(tmp_path / "missing" / "pid"),
    ):
        pass

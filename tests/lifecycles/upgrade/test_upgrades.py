"""The running process: whatever the new one does, there is one that serves."""

from pathlib import Path

import pytest
import trio

from tests.lifecycles.rig import alive
from tests.lifecycles.upgrade.rig import PREPARED, SERVING, SLEEP, open_stage


async def test_the_old_process_leaves_with_its_last_client(tmp_path: Path) -> None:
    async with open_stage(tmp_path, SERVING + SLEEP) as stage:
        stage.upgrades.request()
        told = [await stage.told() for _ in range(3)]
        pid = stage.frontend.retired_for

        assert told == [
            f"under way: process {pid} is loading",
            f"under way: process {pid} is taking over",
            f"done: process {pid} serves",
        ]
        await stage.called("step aside", "retire")
        stage.frontend.idle.set()
        await stage.called("step aside", "retire", f"stop: process {pid} has taken over")
        assert alive(pid)
        await stage.end_successor()


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("sys.exit(3)", "failed: process ended with status 3; its log tells why"),
        ("os.kill(os.getpid(), 9)", "failed: process was killed by SIGKILL"),
        ('say("failed", reason="no model")', "failed: process gave up: no model"),
        ('say("serving")', "failed: process gave up: serving"),
        ('line.send(b"rubbish\\n")' + SLEEP, "failed: process makes no sense:"),
        ('say("dance")' + SLEEP, "failed: process makes no sense:"),
        ("line.close()" + SLEEP, "failed: process has hung up; its log tells why"),
    ],
)
async def test_before_it_is_prepared_the_new_process_may_fail(
    tmp_path: Path, script: str, outcome: str
) -> None:
    async with open_stage(tmp_path, script) as stage:
        stage.upgrades.request()

        assert (await stage.outcome()).startswith(outcome)
        await stage.called("lead")


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("sys.exit(0)", "failed: process ended with status 0; its log tells why"),
        ('say("failed", reason="no engines")', "failed: process gave up: no engines"),
    ],
)
async def test_while_it_takes_over_the_new_process_may_fail(
    tmp_path: Path, script: str, outcome: str
) -> None:
    async with open_stage(tmp_path, f"{PREPARED}; hear(); {script}") as stage:
        stage.upgrades.request()

        assert await stage.outcome() == outcome
        await stage.called("step aside", "lead")


async def test_silence_while_loading_ends_the_upgrade(tmp_path: Path) -> None:
    async with open_stage(tmp_path, "time.sleep(60)", load_budget=0.3) as stage:
        stage.upgrades.request()
        pid = int((await stage.told()).split()[3])

        assert "was silent for 0.3 s, loading the model's files" in await stage.told()
        assert not alive(pid)
        await stage.called("lead")


async def test_silence_while_taking_over_ends_the_upgrade(tmp_path: Path) -> None:
    async with open_stage(tmp_path, PREPARED + SLEEP, take_over_budget=0.2) as stage:
        stage.upgrades.request()

        assert await stage.outcome() == "failed: process was silent for 0.2 s, taking over"
        await stage.called("step aside", "lead")


async def test_a_program_that_cannot_be_run_is_told(tmp_path: Path) -> None:
    async with open_stage(tmp_path, command=["/no/program"]) as stage:
        stage.upgrades.request()

        assert await stage.told() == "failed: cannot run /no/program: No such file or directory"


async def test_what_came_in_the_way_meanwhile_ends_the_upgrade(tmp_path: Path) -> None:
    async with open_stage(tmp_path, PREPARED + SLEEP) as stage:
        stage.frontend.obstacles = [None, "engine 1 is loading"]
        stage.upgrades.request()

        assert await stage.outcome() == "failed: engine 1 is loading"
        await stage.called("lead")


async def test_nothing_is_started_where_something_is_in_the_way(tmp_path: Path) -> None:
    async with open_stage(tmp_path, SERVING) as stage:
        stage.frontend.obstacles = ["the engines are loading"]
        stage.upgrades.request()

        assert await stage.told() == "failed: the engines are loading"
        assert stage.frontend.calls == []


async def test_one_upgrade_at_a_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_stage(tmp_path, SERVING + SLEEP) as stage:
        stage.upgrades.request()
        stage.upgrades.request()
        assert "no upgrade now: another upgrade is under way" in caplog.text

        assert (await stage.outcome()).startswith("done")
        pid = stage.frontend.retired_for
        stage.upgrades.request()
        assert f"no upgrade now: process {pid} has taken over; ask that one" in caplog.text
        await stage.end_successor()


async def test_when_the_new_process_dies_the_old_one_serves_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_stage(tmp_path, SERVING + SLEEP) as stage:
        for _ in range(2):
            stage.upgrades.request()
            assert (await stage.outcome()).startswith("done")
            await stage.called("step aside", "retire")
            await stage.end_successor()
            assert "is gone; this one serves again" in caplog.text
            stage.frontend.calls.clear()
            await trio.testing.wait_all_tasks_blocked()


async def test_a_new_process_that_is_dead_is_no_reason_to_leave(tmp_path: Path) -> None:
    async with open_stage(tmp_path, SERVING + "; sys.exit(1)") as stage:
        stage.frontend.idle.set()
        stage.upgrades.request()
        assert (await stage.outcome()).startswith("done")
        await stage.leading_again()

        # It may have been seen alive when the last client left.
        assert stage.frontend.calls[:2] == ["step aside", "retire"]


async def test_when_the_new_process_is_told_to_stop_so_is_the_old_one(tmp_path: Path) -> None:
    async with open_stage(tmp_path, SERVING + '; say("stopping")' + SLEEP) as stage:
        stage.upgrades.request()
        await stage.outcome()
        pid = stage.frontend.retired_for
        reason = f"stop: process {pid}, which took over, is stopping"

        await stage.called("step aside", "retire", reason)
        await stage.end_successor()


async def test_a_stop_ends_an_upgrade_under_way(tmp_path: Path) -> None:
    async with open_stage(tmp_path, "time.sleep(60)") as stage:
        stage.upgrades.request()
        pid = int((await stage.told()).split()[3])
        stage.shutdown.request("received SIGTERM")

        assert await stage.told() == "failed: this process was told to stop"
        assert not alive(pid)
        stage.upgrades.request()
        assert await stage.told() == "failed: this process is shutting down"
        assert stage.frontend.calls == ["lead"]


async def test_a_bug_in_the_hand_over_leaves_one_process_that_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_stage(tmp_path, SERVING + SLEEP) as stage:
        stage.frontend.fail_at = "step aside"
        stage.upgrades.request()
        assert await stage.outcome() == "failed: a bug in the upgrade; the log tells more"
        await stage.called("step aside", "lead")
        stage.frontend.calls.clear()

        stage.frontend.fail_at = "retire"
        stage.upgrades.request()
        assert await stage.outcome() == "done: process serves"
        pid = stage.frontend.retired_for
        await stage.called("step aside", "retire", f"stop: process {pid} has taken over")
        assert "a bug in leaving clients" in caplog.text
        await stage.end_successor()

import os
import signal
from pathlib import Path

import pytest
import trio

from tests.supervisor.process_rig import (
    FAMILY,
    START_BUDGET,
    alive,
    children,
    descriptors,
    parent_of,
    pids_in,
    program,
    script,
    wait_for,
    wait_for_family,
    wait_gone,
)
from vllmfront.errors import StartupFailed
from vllmfront.supervisor import ProcessExit, ProcessSpec, open_process


async def test_the_end_comes_with_its_status_and_the_last_lines(
    capfd: pytest.CaptureFixture[str],
) -> None:
    source = """
        import sys
        print("one")
        print("loading 1/2\\rloading 2/2\\r", file=sys.stderr)
        sys.stdout.flush()
        sys.exit(3)
    """
    with trio.fail_after(START_BUDGET):
        async with open_process(ProcessSpec(argv=script(source), prefix="(child) ")) as process:
            end = await process.wait()

    assert end.status == 3
    assert sorted(end.tail) == ["loading 1/2", "loading 2/2", "one"]
    assert end.describe() == "ended with status 3"
    assert "  | one" in end.report()
    assert "(child) one\n" in capfd.readouterr().err


async def test_a_signal_is_named() -> None:
    source = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with trio.fail_after(START_BUDGET):
        async with open_process(ProcessSpec(argv=script(source))) as process:
            end = await process.wait()

    assert end.describe() == "was killed by SIGKILL (9)"
    assert end.report() == "was killed by SIGKILL (9) and had printed nothing"


async def test_the_block_terminates_the_child(tmp_path: Path) -> None:
    source = """
        import pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        pathlib.Path(sys.argv[1]).touch()
        time.sleep(600)
    """
    up = tmp_path / "up"
    with trio.fail_after(START_BUDGET):
        async with open_process(ProcessSpec(argv=script(source, str(up)))) as process:
            await wait_for(up.exists)

            assert process.exit is None

    assert process.exit == ProcessExit(status=7)


async def test_a_child_that_ignores_the_request_is_killed_with_its_family(tmp_path: Path) -> None:
    ids = tmp_path / "pids"
    spec = ProcessSpec(argv=script(FAMILY, str(ids)), stop_budget=0.05)
    with trio.fail_after(START_BUDGET):
        async with open_process(spec) as process:
            await wait_for_family(ids)
            assert all(map(alive, pids_in(ids)))

    assert process.exit is not None
    assert process.exit.status == -signal.SIGKILL
    assert [pid for pid in pids_in(ids) if alive(pid)] == []


async def test_a_cancelled_block_leaves_nothing(tmp_path: Path) -> None:
    ids = tmp_path / "pids"
    spec = ProcessSpec(argv=script(FAMILY, str(ids)), stop_budget=0.05)
    with trio.move_on_after(START_BUDGET) as scope:
        async with open_process(spec):
            await wait_for_family(ids)
            scope.cancel()
            await trio.sleep_forever()

    assert [pid for pid in pids_in(ids) if alive(pid)] == []


async def test_cancelled_before_it_runs_it_leaves_nothing() -> None:
    before = children()
    with trio.CancelScope() as scope:
        scope.cancel()
        async with open_process(ProcessSpec(argv=script("import time; time.sleep(600)"))):
            pytest.fail("the block must not be entered")

    assert children() == before


async def test_descendants_of_a_leader_that_died_are_killed(tmp_path: Path) -> None:
    ids = tmp_path / "pids"
    with trio.fail_after(START_BUDGET):
        async with open_process(ProcessSpec(argv=script(FAMILY, str(ids)))) as process:
            await wait_for_family(ids)
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()

            assert [pid for pid in pids_in(ids) if alive(pid)] == []


@pytest.mark.parametrize("clean", [False, True], ids=["inherited", "cleared"])
async def test_nobody_survives_a_killed_reaper(tmp_path: Path, clean: bool) -> None:
    """Whether they can be told by their environment, or only by the leader's session."""
    ids = tmp_path / "pids"
    argv = script(
        FAMILY if not clean else FAMILY.replace("os.setsid()", "os.setpgid(0, 0)"), str(ids)
    )
    if clean:
        argv = ["env", "-i", *argv]
    with trio.fail_after(START_BUDGET):
        async with open_process(ProcessSpec(argv=argv)) as process:
            family = await wait_for_family(ids)
            os.kill(parent_of(process.pid), signal.SIGKILL)
            end = await process.wait()
            await wait_gone(family)

    assert end.status == -signal.SIGKILL
    assert end.tail == ("(the supervising process was killed)",)


async def test_orphans_that_come_to_us_are_collected(tmp_path: Path) -> None:
    """As in a container whose first process we are."""
    source = """
        import ctypes, os, pathlib, signal, sys, trio
        from tests.supervisor.process_rig import children, parent_of, pids_in, wait_for_family
        from vllmfront.supervisor import ProcessSpec, open_process

        async def main():
            ids = pathlib.Path(sys.argv[1])
            async with open_process(ProcessSpec(argv=sys.argv[2:])) as process:
                await wait_for_family(ids)
                ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
                os.kill(parent_of(process.pid), signal.SIGKILL)
                await process.wait()
            assert children() == set(), children()

        trio.run(main)
    """
    ids = tmp_path / "pids"
    async with program(source, str(ids), *script(FAMILY, str(ids))) as owner:
        with trio.fail_after(START_BUDGET):
            assert await owner.wait() == 0


async def test_a_long_command_line_arrives_whole() -> None:
    source = "import sys; sys.exit(sum(map(len, sys.argv[1:])) != 300_000)"
    spec = ProcessSpec(argv=script(source, *["x" * 100_000] * 3))
    with trio.fail_after(START_BUDGET):
        async with open_process(spec) as process:
            assert (await process.wait()).status == 0


async def test_a_daemon_is_killed_with_the_program_that_left_it(tmp_path: Path) -> None:
    source = """
        import os, sys, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open(sys.argv[1], "w").write(str(os.getpid()))
                time.sleep(600)
            os._exit(0)
        os.wait()
        time.sleep(600)
    """
    ids = tmp_path / "pids"
    with trio.fail_after(START_BUDGET):
        async with open_process(ProcessSpec(argv=script(source, str(ids)))) as process:
            await wait_for(lambda: bool(pids_in(ids)))
            await wait_for(lambda: parent_of(pids_in(ids)[0]) == parent_of(process.pid))

            assert alive(pids_in(ids)[0])

    assert not alive(pids_in(ids)[0])


async def test_what_the_service_manager_said_to_us_stays_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
        "LISTEN_FDS",
        "LISTEN_PID",
        "LISTEN_FDNAMES",
    ]
    for name in (*names, "ANOTHER"):
        monkeypatch.setenv(name, "1")
    spec = ProcessSpec(argv=["env"], environment={"ADDED": "2"})
    with trio.fail_after(START_BUDGET):
        async with open_process(spec) as process:
            end = await process.wait()

    seen = dict(line.partition("=")[::2] for line in end.tail)
    assert not seen.keys() & set(names)
    assert (seen["ANOTHER"], seen["ADDED"]) == ("1", "2")


async def test_a_program_that_does_not_exist_is_named() -> None:
    with (
        trio.fail_after(START_BUDGET),
        pytest.raises(StartupFailed, match=r"cannot run /does/not/exist: No such file"),
    ):
        async with open_process(ProcessSpec(argv=["/does/not/exist"])):
            pytest.fail("the block must not be entered")


@pytest.mark.parametrize("count", [5, pytest.param(100, marks=pytest.mark.slow)])
async def test_restarts_leave_no_zombies_no_descriptors_and_no_tasks(count: int) -> None:
    async with open_process(ProcessSpec(argv=["true"])) as process:
        await process.wait()
    opened, before = descriptors(), children()
    tasks = trio.lowlevel.current_statistics().tasks_living
    for _ in range(count):
        async with open_process(ProcessSpec(argv=["true"])) as process:
            await process.wait()

    assert descriptors() == opened
    assert children() == before
    assert trio.lowlevel.current_statistics().tasks_living == tasks

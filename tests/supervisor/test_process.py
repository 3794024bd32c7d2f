import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from vllmfront.errors import StartupFailed
from vllmfront.supervisor import ProcessExit, ProcessSpec, open_process

START_BUDGET = 20.0
"""Seconds; two interpreters start, on a machine that may be busy."""


def script(source: str, *args: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", textwrap.dedent(source), *args]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


async def wait_for(condition: Callable[[], bool], seconds: float = START_BUDGET) -> None:
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - other processes set no event
            await trio.sleep(0.01)


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


FAMILY = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    own = [os.getpid()]
    if (child := os.fork()) == 0:
        os.setsid()
        if (grandchild := os.fork()) != 0:
            own = [os.getpid(), grandchild]
            open(sys.argv[1], "a").write(" ".join(map(str, own)) + "\\n")
        time.sleep(600)
    open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
    time.sleep(600)
"""
"""Three processes in two sessions that all ignore SIGTERM, and write their ids to a file."""


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
            await wait_for(lambda: len(pids_in(ids)) == 3)
            assert all(map(alive, pids_in(ids)))

    assert process.exit is not None
    assert process.exit.status == -signal.SIGKILL
    assert [pid for pid in pids_in(ids) if alive(pid)] == []


async def test_a_cancelled_block_leaves_nothing(tmp_path: Path) -> None:
    ids = tmp_path / "pids"
    spec = ProcessSpec(argv=script(FAMILY, str(ids)), stop_budget=0.05)
    with trio.move_on_after(START_BUDGET) as scope:
        async with open_process(spec):
            await wait_for(lambda: len(pids_in(ids)) == 3)
            scope.cancel()
            await trio.sleep_forever()

    assert [pid for pid in pids_in(ids) if alive(pid)] == []


async def test_cancelled_before_it_runs_it_leaves_nothing() -> None:
    before = _children()
    with trio.CancelScope() as scope:
        scope.cancel()
        async with open_process(ProcessSpec(argv=script("import time; time.sleep(600)"))):
            pytest.fail("the block must not be entered")

    assert _children() == before


def _children() -> set[int]:
    """List our children; each belongs to the thread that started it."""
    files = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in files for pid in file.read_text().split()}


async def test_descendants_of_a_leader_that_died_are_killed(tmp_path: Path) -> None:
    ids = tmp_path / "pids"
    with trio.fail_after(START_BUDGET):
        async with open_process(ProcessSpec(argv=script(FAMILY, str(ids)))) as process:
            await wait_for(lambda: len(pids_in(ids)) == 3)
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()

            assert [pid for pid in pids_in(ids) if alive(pid)] == []


async def test_a_killed_reaper_does_not_leave_the_child(tmp_path: Path) -> None:
    ids = tmp_path / "pids"
    with trio.fail_after(START_BUDGET):
        async with open_process(ProcessSpec(argv=script(FAMILY, str(ids)))) as process:
            await wait_for(lambda: len(pids_in(ids)) == 3)
            os.kill(parent_of(process.pid), signal.SIGKILL)
            end = await process.wait()
            await wait_for(lambda: not alive(process.pid))
            # What had left the child's group is nobody's any more.
            for pid in pids_in(ids):
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)

    assert end.status == -signal.SIGKILL


async def test_a_program_that_does_not_exist_is_named() -> None:
    with (
        trio.fail_after(START_BUDGET),
        pytest.raises(StartupFailed, match=r"cannot run /does/not/exist: No such file"),
    ):
        async with open_process(ProcessSpec(argv=["/does/not/exist"])):
            pytest.fail("the block must not be entered")


async def test_no_zombies_and_no_descriptors_stay_behind() -> None:
    opened = descriptors()
    children = _children()
    for _ in range(3):
        async with open_process(ProcessSpec(argv=script("pass"))) as process:
            await process.wait()

    assert descriptors() == opened
    assert _children() == children


OWNER = """
    import sys, trio
    from vllmfront.supervisor import ProcessSpec, open_process

    async def main():
        async with open_process(ProcessSpec(argv=sys.argv[1:])):
            await trio.sleep_forever()

    trio.run(main)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_the_family_dies_with_an_owner_that_is_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    ids = tmp_path / "pids"
    owner = await trio.lowlevel.open_process(
        [sys.executable, "-c", textwrap.dedent(OWNER), *script(FAMILY, str(ids))]
    )
    await wait_for(lambda: len(pids_in(ids)) == 3)
    os.kill(owner.pid, number)
    killed_at = time.monotonic()
    await owner.wait()
    await wait_for(lambda: not any(map(alive, pids_in(ids))), 5.0)

    assert time.monotonic() - killed_at < 5.0


async def test_an_owner_killed_at_any_moment_of_the_start_leaves_nothing() -> None:
    marker = f"marker-{os.getpid()}"
    command = script("import time; time.sleep(600)", marker)
    for delay in (0.0, 0.15, 0.2, 0.25, 0.3, 0.35):
        owner = await trio.lowlevel.open_process(
            [sys.executable, "-c", textwrap.dedent(OWNER), *command]
        )
        await trio.sleep(delay)
        owner.kill()
        await owner.wait()

    await wait_for(lambda: not _named(marker), 5.0)


def _named(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found

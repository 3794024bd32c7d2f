"""A frontend that is killed at any moment leaves no process of its engine."""

import os
import signal
import time
from pathlib import Path

import pytest
import trio

from tests.supervisor.process_rig import (
    END_BUDGET,
    FAMILY,
    alive,
    pids_in,
    program,
    script,
    wait_for,
    wait_for_family,
    wait_gone,
)

OWNER = """
    import sys, trio
    from vllmfront.supervisor import ProcessSpec, open_process

    async def main():
        spec = ProcessSpec(argv=sys.argv[2:], leftovers=[sys.argv[1]], stop_budget=600.0)
        async with open_process(spec):
            await trio.sleep_forever()

    trio.run(main)
"""

BEFORE_THE_COMMAND = """
    import os, pathlib, sys, trio
    from vllmfront.supervisor._process import _open_reaper

    async def main():
        async with _open_reaper(dict(os.environ)) as (reaper, link):
            pathlib.Path(sys.argv[1]).write_text(str(reaper))
            await link.send(sys.argv[2].encode()) if sys.argv[2] else None
            await trio.sleep_forever()

    trio.run(main)
"""

AFTER_THE_COMMAND = """
    import os, pathlib, signal, sys, trio
    from vllmfront.supervisor import ProcessSpec, open_process, _process

    class Link(_process.ReaperLink):
        async def next_report(self):
            files = pathlib.Path("/proc/self/task").glob("*/children")
            pathlib.Path(sys.argv[1]).write_text(" ".join(file.read_text() for file in files))
            os.kill(os.getpid(), signal.SIGKILL)

    _process.ReaperLink = Link

    async def main():
        async with open_process(ProcessSpec(argv=sys.argv[2:])):
            pass

    trio.run(main)
"""

STOPPING = """
    import pathlib, sys, trio
    from vllmfront.supervisor import ProcessSpec, open_process

    async def main():
        async with open_process(ProcessSpec(argv=sys.argv[2:], stop_budget=600.0)):
            while not pathlib.Path(sys.argv[1]).exists():
                await trio.sleep(0.01)

    trio.run(main)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_the_family_dies_with_an_owner_that_is_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    ids, leftover = tmp_path / "pids", tmp_path / "socket"
    leftover.touch()
    async with program(OWNER, str(leftover), *script(FAMILY, str(ids))) as owner:
        family = await wait_for_family(ids)
        os.kill(owner.pid, number)
        killed_at = time.monotonic()
        await owner.wait()
        await wait_gone(family)

    assert time.monotonic() - killed_at < END_BUDGET
    await wait_for(lambda: not leftover.exists(), END_BUDGET)


@pytest.mark.parametrize("part", ["", '{"argv": ["sle'], ids=["none", "half"])
async def test_killed_before_the_reaper_has_its_command(tmp_path: Path, part: str) -> None:
    reaper = tmp_path / "pid"
    async with program(BEFORE_THE_COMMAND, str(reaper), part) as owner:
        await wait_for(lambda: bool(pids_in(reaper)))
        owner.kill()
        await owner.wait()
        await wait_gone(pids_in(reaper))


async def test_killed_while_the_child_starts(tmp_path: Path) -> None:
    """The reaper has its command, and nobody is there to hear that it was carried out."""
    marker = f"marker-{os.getpid()}"
    reaper = tmp_path / "pid"
    command = script("import time; time.sleep(600)", marker)
    async with program(AFTER_THE_COMMAND, str(reaper), *command) as owner:
        await owner.wait()
        assert len(pids_in(reaper)) == 1
        await wait_gone(pids_in(reaper))

    assert not named(marker)


async def test_killed_while_the_child_is_being_stopped(tmp_path: Path) -> None:
    """The child was asked to end, takes its time, and its owner waits for it."""
    source = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: open(sys.argv[2], "w").close())
        open(sys.argv[1], "w").write(str(os.getpid()))
        while True:
            time.sleep(600)
    """
    ids, asked = tmp_path / "pids", tmp_path / "asked"
    async with program(STOPPING, str(ids), *script(source, str(ids), str(asked))) as owner:
        await wait_for(asked.exists)

        assert all(map(alive, pids_in(ids)))

        owner.kill()
        await owner.wait()
        await wait_gone(pids_in(ids))


@pytest.mark.slow
async def test_killed_at_any_moment_of_the_start(tmp_path: Path) -> None:
    marker = f"marker-{os.getpid()}"
    command = script("import time; time.sleep(600)", marker)
    for delay in (0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4):
        async with program(OWNER, str(tmp_path / "none"), *command):
            await trio.sleep(delay)

    await wait_for(lambda: not named(marker), END_BUDGET)


def named(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found

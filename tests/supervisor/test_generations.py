# ruff: noqa: ARG001 - a clock is asked for because of its effect
"""Generations of a frontend share the pipes of one reaper, so that an upgrade stops no engine."""

import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.supervisor.process_rig import (
    END_BUDGET,
    FAMILY,
    START_BUDGET,
    alive,
    parent_of,
    pids_in,
    program,
    script,
    wait_for,
    wait_for_family,
    wait_gone,
)
from vllmfront.supervisor import (
    ManagedProcess,
    ProcessEnded,
    ProcessHandle,
    ProcessSpec,
    adopt_process,
    open_process,
)
from vllmfront.supervisor._reaper_link import ReaperLink

OLD = """
    import attrs, json, os, pathlib, subprocess, sys, trio
    from vllmfront.supervisor import ProcessSpec, open_process

    folder, new, leftover, *argv = sys.argv[1:]

    async def main():
        async with open_process(ProcessSpec(argv=argv, leftovers=[leftover])) as process:
            successor = await trio.lowlevel.open_process(
                [sys.executable, "-c", new, folder],
                stdin=subprocess.PIPE, pass_fds=(process.handle.control, process.handle.reports),
            )
            while not os.path.exists(folder + "/commit"):
                await trio.sleep(0.01)
            handle = process.hand_over()
            await successor.stdin.send_all(json.dumps(attrs.asdict(handle)).encode() + b"\\n")
            while not os.path.exists(folder + "/leave"):
                await trio.sleep(0.01)

    trio.run(main)
"""

NEW = """
import json, os, pathlib, sys, trio
from vllmfront.supervisor import ProcessHandle, adopt_process

folder = pathlib.Path(sys.argv[1])

async def main():
    (folder / "new").write_text(str(os.getpid()))
    words = await trio.to_thread.run_sync(sys.stdin.readline)
    async with adopt_process(ProcessHandle(**json.loads(words)), stop_budget=0.05) as process:
        process.set_leftovers([str(folder / "new leftover")])
        (folder / "adopted").touch()
        with trio.move_on_after(60) as scope:
            while not (folder / "stop").exists():
                await trio.sleep(0.01)
                if process.exit is not None:
                    break
    (folder / "exit").write_text(process.exit.describe())

trio.run(main)
"""


@attrs.frozen
class Generations:
    """An old frontend with a family of processes, and its successor, which runs."""

    folder: Path
    old: trio.Process
    family: list[int]

    @property
    def new(self) -> int:
        return int((self.folder / "new").read_text())

    async def commit(self) -> None:
        (self.folder / "commit").touch()
        await wait_for((self.folder / "adopted").exists)

    async def leave(self) -> None:
        """Let the old one go."""
        (self.folder / "leave").touch()
        with trio.fail_after(END_BUDGET):
            assert await self.old.wait() == 0

    async def seen_exit(self) -> str:
        await wait_for((self.folder / "exit").exists)
        return (self.folder / "exit").read_text()


@pytest.fixture
async def generations(tmp_path: Path) -> AsyncGenerator[Generations]:
    ids = tmp_path / "pids"
    (tmp_path / "leftover").touch()
    (tmp_path / "new leftover").touch()
    args = (str(tmp_path), NEW, str(tmp_path / "leftover"), *script(FAMILY, str(ids)))
    async with program(OLD, *args) as old:
        family = await wait_for_family(ids)
        await wait_for(lambda: bool(pids_in(tmp_path / "new")))
        running = Generations(tmp_path, old, family)
        yield running
        kill(running.new)
    await wait_gone(family)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def test_the_process_outlives_the_generation_that_started_it(
    generations: Generations,
) -> None:
    await generations.commit()
    await generations.leave()

    assert all(map(alive, generations.family))

    (generations.folder / "stop").touch()

    assert await generations.seen_exit() == "was killed by SIGKILL (9)"
    await wait_gone(generations.family)


async def test_its_end_is_told_to_the_new_generation_alone(generations: Generations) -> None:
    await generations.commit()
    family = generations.family
    leader = next(pid for pid in family if parent_of(pid) not in family)
    os.kill(leader, signal.SIGUSR1)
    seen = await generations.seen_exit()

    assert seen == "was killed by SIGUSR1 (10)"
    assert generations.old.poll() is None
    await generations.leave()


async def test_it_dies_with_the_last_generation(generations: Generations) -> None:
    await generations.commit()
    generations.old.kill()
    await generations.old.wait()
    await trio.sleep(0.1)  # what would kill the family by mistake needs less

    assert all(map(alive, generations.family))

    kill(generations.new)
    await wait_gone(generations.family)
    await wait_for(lambda: not (generations.folder / "new leftover").exists(), END_BUDGET)
    assert (generations.folder / "leftover").exists()


async def test_it_dies_with_an_old_generation_that_never_handed_it_over(
    generations: Generations,
) -> None:
    generations.old.kill()
    await wait_gone(generations.family)
    await wait_for(lambda: not (generations.folder / "leftover").exists(), END_BUDGET)


async def test_a_new_generation_that_fails_costs_nothing(generations: Generations) -> None:
    kill(generations.new)
    await trio.sleep(0.1)  # what would kill the family by mistake needs less

    assert all(map(alive, generations.family))

    generations.old.kill()
    await wait_gone(generations.family)


async def test_handed_over_it_is_left_alone_until_it_is_taken_back() -> None:
    source = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: 1 / 0); time.sleep(600)"
    with trio.fail_after(START_BUDGET):
        async with open_process(ProcessSpec(argv=script(source))) as process:
            handle = process.handle

            assert process.hand_over() == handle

            process.terminate()
            process.kill()
            await trio.sleep(0.1)  # a command would have arrived

            assert alive(process.pid)
            assert "handed over" in repr(process)

            kill(process.pid)
            await wait_for(lambda: not alive(process.pid))
            await wait_all_tasks_blocked()

            assert process.exit is None

            process.take_back()
            end = await process.wait()

    assert end.describe() == "was killed by SIGKILL (9)"


async def test_what_has_ended_cannot_be_handed_over() -> None:
    with trio.fail_after(START_BUDGET):
        async with open_process(ProcessSpec(argv=["true"])) as process:
            await process.wait()
            with pytest.raises(ProcessEnded, match="ended with status 0"):
                process.hand_over()


@attrs.define
class Pipes:
    """A reaper that says what a test tells it to."""

    control: int
    reports: int
    theirs: tuple[int, int]

    def say(self, words: str) -> None:
        os.write(self.theirs[1], words.encode())

    def heard(self) -> bytes:
        return os.read(self.theirs[0], 1000)

    def close(self) -> None:
        for fd in self.theirs:
            os.close(fd)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    control_read, control_write = os.pipe()
    reports_read, reports_write = os.pipe()
    made = Pipes(control_write, reports_read, (control_read, reports_write))
    yield made
    made.close()


async def test_a_report_that_was_read_in_part_is_handed_over(pipes: Pipes) -> None:
    old = ReaperLink(os.dup(pipes.control), os.dup(pipes.reports))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(old.next_report)
        pipes.say('{"status": 3, ')
        with trio.fail_after(START_BUDGET):
            while not old.unread:
                await wait_all_tasks_blocked()
        old.pause()
        unread = old.unread
        nursery.cancel_scope.cancel()
    pipes.say('"tail": ["last words"]}\n')
    old.close()
    new = ReaperLink(pipes.control, pipes.reports, unread)

    assert await new.next_report() == {"status": 3, "tail": ["last words"]}
    new.close()


async def test_nothing_is_read_from_the_moment_of_the_hand_over(pipes: Pipes) -> None:
    link = ReaperLink(pipes.control, pipes.reports)
    received = []

    async def read() -> None:
        received.append(await link.next_report())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        pipes.say('{"status": 0, "tail": []}\n')
        link.pause()
        await wait_all_tasks_blocked(0.01)

        assert received == []
        assert link.unread == ""

        link.resume()
    assert received == [{"status": 0, "tail": []}]
    link.close()


async def test_descriptors_that_were_given_to_a_child_go_no_further(pipes: Pipes) -> None:
    for fd in (pipes.control, pipes.reports):
        os.set_inheritable(fd, True)
    link = ReaperLink(pipes.control, pipes.reports)

    assert not any(map(os.get_inheritable, link.descriptors))
    link.close()


async def test_commands_are_lines(pipes: Pipes) -> None:
    link = ReaperLink(pipes.control, pipes.reports)
    process = ManagedProcess(1, 2, "token", link)
    process.terminate()
    process.set_leftovers(["a\nb"])
    process.kill()

    assert pipes.heard() == b'T\nL["a\\nb"]\nK\n'
    link.close()


async def test_a_reaper_that_was_adopted_and_does_not_end_is_killed(
    pipes: Pipes, autojump_clock: MockClock
) -> None:
    async with program("import time; time.sleep(600)") as reaper:
        handle = ProcessHandle(
            pid=1, reaper=reaper.pid, control=pipes.control, reports=pipes.reports, token="t"
        )
        pipes.say('{"status": 0, "tail": []}\n')
        async with adopt_process(handle) as process:
            assert (await process.wait()).status == 0

        assert await reaper.wait() == -signal.SIGKILL

"""Whose the managed engine's process is, and when."""

import os

import trio

from vllmfront.lifecycles._custody import EngineCustody
from vllmfront.supervisor import ProcessHandle, ProcessSpec


def inherited() -> tuple[int, int, ProcessHandle]:
    """Return the far ends of a reaper's pipes, for commands and reports, and the near ones."""
    commands, control = os.pipe()
    reports, words = os.pipe()
    return (
        commands,
        words,
        ProcessHandle(pid=1, reaper=1, control=control, reports=reports, token="t"),
    )


SPEC = ProcessSpec(argv=["engine"], leftovers=["ours"], stop_budget=0.0)


async def test_an_inherited_process_is_ours_once_we_take_it() -> None:
    commands, words, handle = inherited()
    custody = EngineCustody(handle)
    assert custody.inherits
    with trio.fail_after(5.0):
        async with custody.open(SPEC) as process:
            assert custody.process is process
            assert process.handed_over
            custody.take_back()
            custody.take_back()
            await custody.wait_ours()
            assert custody.ours
            os.write(words, b'{"status": 0, "tail": []}\n')
            os.close(words)
            await process.wait()

    # The files of the generation before are not ours to leave behind.
    assert os.read(commands, 100) == b'L["ours"]\n'
    assert "None" in repr(custody)
    os.close(commands)


async def test_a_process_that_we_never_took_is_left_alone() -> None:
    commands, words, handle = inherited()
    with trio.fail_after(5.0):
        async with EngineCustody(handle).open(SPEC):
            pass

    assert os.read(commands, 100) == b""
    os.close(commands)
    os.close(words)


async def test_what_we_take_before_it_is_opened_is_ours() -> None:
    commands, words, handle = inherited()
    custody = EngineCustody(handle)
    custody.take_back()
    os.write(words, b'{"status": 0, "tail": []}\n')
    os.close(words)
    with trio.fail_after(5.0):
        async with custody.open(SPEC) as process:
            await process.wait()

    assert os.read(commands, 100) == b'L["ours"]\n'
    os.close(commands)

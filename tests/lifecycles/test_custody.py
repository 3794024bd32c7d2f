import os

import trio

from vllmfront.lifecycles._custody import EngineCustody
from vllmfront.supervisor import ProcessHandle, ProcessSpec


async def test_the_reaper_of_an_inherited_process_learns_of_our_files() -> None:
    """Those of the generation before are not ours to leave behind."""
    commands, control = os.pipe()
    reports, words = os.pipe()
    handle = ProcessHandle(pid=1, reaper=1, control=control, reports=reports, token="t")
    os.write(words, b'{"status": 0, "tail": []}\n')
    os.close(words)
    with trio.fail_after(5.0):
        spec = ProcessSpec(argv=["engine"], leftovers=["ours"])
        async with EngineCustody(handle).open(spec) as process:
            await process.wait()

    assert os.read(commands, 100) == b'L["ours"]\n'
    os.close(commands)

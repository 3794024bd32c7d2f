"""A process of its own, because the last resort ends it."""

import subprocess
import sys

SOURCE = """
import time, trio
from vllmfront.lifecycles._last_resort import serve_last_resort
from vllmfront.supervisor import Shutdown

async def never_ends():
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()

async def blocks_the_loop():
    time.sleep(60)

async def main():
    shutdown = Shutdown(budget=0.0, margin=0.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_last_resort, shutdown, 0.2)
        await trio.testing.wait_all_tasks_blocked()
        shutdown.request("test")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon({culprit})

import trio.testing
trio.run(main)
"""


def test_what_never_ends_is_named_and_ended() -> None:
    result = _run("never_ends")

    assert result.returncode == 1
    assert result.stderr.startswith("vllmfront has not ended in time")
    assert "task __main__.never_ends:" in result.stderr


def test_what_blocks_the_loop_is_named_and_ended() -> None:
    result = _run("blocks_the_loop")

    assert result.returncode == 1
    assert "in blocks_the_loop" in result.stderr


def _run(culprit: str) -> subprocess.CompletedProcess[str]:
    source = SOURCE.replace("{culprit}", culprit)
    return subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False, timeout=30
    )

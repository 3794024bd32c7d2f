"""The examples do what they say, as whoever tries them would run them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.abuse.rig import running_frontend
from vllmfront.simulator import SimulatorConfig, open_simulator

EXAMPLE = Path(__file__).parents[2] / "examples" / "rl_loop.py"

LINE = re.compile(
    r"iteration (\d): (\d+) rollouts \((\d+) tokens, (\d+) over two versions\), "
    r"paused (\d+\.\d) ms, weights (\S+)"
)


@pytest.mark.parametrize("mode", ["keep", "abort"])
async def test_rollouts_go_on_while_their_weights_are_replaced(tmp_path: Path, mode: str) -> None:
    with running_frontend(tmp_path, environment={"VLLM_SERVER_DEV_MODE": "1"}) as frontend:
        config = SimulatorConfig(handshake=frontend.handshake, vocab_size=2048, step_time=0.002)
        async with open_simulator(config):
            await frontend.wait_health(200)
            options = ["--server", f"http://127.0.0.1:{frontend.port}", "--model", "tiny"]
            few = ["--iterations", "2", "--interval", "0.7", "--rollouts", "8", "--max-tokens", "8"]
            with trio.fail_after(60):
                ended = await trio.run_process(
                    [sys.executable, str(EXAMPLE), *options, *few, "--mode", mode],
                    capture_stdout=True,
                    stderr=subprocess.STDOUT,
                    check=False,
                )

    text = ended.stdout.decode()
    lines = [line for line in map(LINE.fullmatch, text.splitlines()) if line is not None]
    assert ended.returncode == 0, text
    assert [(line[1], line[6]) for line in lines] == [("1", "step-1"), ("2", "step-2")], text
    rollouts = sum(int(line[2]) for line in lines)
    assert rollouts > 0
    assert sum(int(line[3]) for line in lines) == 8 * rollouts

"""``vllmfront simulate`` as a command line and as a process."""

import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.simulator._frontend import open_raw_frontend, request
from vllmfront.cli._simulate import _parser, fault_plan, run, simulator_config
from vllmfront.errors import ConfigurationError
from vllmfront.simulator import Rule, SimulatorConfig
from vllmfront.testing import Fault, FaultKind, FaultPlan, read_journal

ADDRESS = "tcp://127.0.0.1:1"
PROCESS_SECONDS = 30.0


def config(*words: str) -> SimulatorConfig:
    return simulator_config(_parser().parse_args(["--handshake", ADDRESS, *words]))


def test_the_defaults_are_those_of_the_library() -> None:
    assert config() == SimulatorConfig(handshake=ADDRESS)


def test_times_are_milliseconds() -> None:
    found = config("--step-ms", "2.5", "--prefill-ms-per-token", "1", "--start-delay-ms", "500")

    assert (found.step_time, found.prefill_time_per_token, found.start_delay) == (
        0.0025,
        0.001,
        0.5,
    )


def test_every_option_has_a_place(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"rules": [{"tokens": [1]}]}')
    found = config(
        *("--ranks", "2", "--start-rank", "3", "--local", "--vllm-version", "0.32.0"),
        *("--max-batch", "4", "--tokens-per-output", "5", "--no-stats", "--seed", "6"),
        *("--vocab-size", "700", "--first-token-id", "8", "--eos-chance", "0.9"),
        *("--max-model-len", "100", "--block-size", "11", "--no-prefix-caching"),
        *("--rejoin-after-ms", "250", "--first-life", "13"),
        *("--max-loras", "12", "--task", "embed", "--task", "classify", "--script", str(script)),
    )

    assert found == SimulatorConfig(
        handshake=ADDRESS,
        ranks=2,
        start_rank=3,
        local=True,
        headless=False,
        vllm_version="0.32.0",
        max_batch=4,
        tokens_per_output=5,
        stats=False,
        seed=6,
        vocab_size=700,
        first_token_id=8,
        eos_chance=0.9,
        max_model_len=100,
        block_size=11,
        prefix_caching=False,
        max_loras=12,
        rejoin_after=0.25,
        first_life=13,
        supported_tasks=("embed", "classify"),
        script=found.script,
    )
    assert found.script.rules == (Rule(tokens=(1,)),)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks", "0"], "'ranks' must be >= 1"),
        (["--eos-chance", "2"], "'eos_chance' must be <= 1"),
        (["--first-token-id", "32000"], "first_token_id"),
        (["--ranks", "2", "--start-rank", "65535"], "start_rank"),
    ],
)
def test_numbers_out_of_range_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config(*words)

    assert message in str(caught.value.__cause__)


def test_an_unknown_option_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(["--handshake", ADDRESS, "--step", "1"])

    assert caught.value.code == 2
    assert "--step" in capsys.readouterr().err


async def test_the_process_serves_until_it_is_told_to_stop() -> None:
    with trio.fail_after(PROCESS_SECONDS):
        async with open_raw_frontend() as frontend, trio.open_nursery() as nursery:
            words = ["--handshake", frontend.handshake.address, "--step-ms", "0"]
            run_process = partial(trio.run_process, check=False, capture_stderr=True)
            process: trio.Process = await nursery.start(
                run_process, [sys.executable, "-m", "vllmfront", "simulate", *words]
            )
            await frontend.shake_hands()
            tokens = await frontend.tokens(request())
            process.send_signal(signal.SIGTERM)

    assert len(tokens) == 3
    assert process.returncode == 0


async def test_the_process_fails_by_a_plan_and_keeps_a_journal(tmp_path: Path) -> None:
    plan, journal = tmp_path / "plan.json", tmp_path / "journal"
    faults = (Fault(kind=FaultKind.DROP, at=2, life=4), Fault(kind=FaultKind.CRASH, at=3))
    plan.write_text(FaultPlan(faults=faults).to_json())
    with trio.fail_after(PROCESS_SECONDS):
        async with open_raw_frontend() as frontend, trio.open_nursery() as nursery:
            words = ["--handshake", frontend.handshake.address, "--step-ms", "20"]
            words += ["--faults", str(plan), "--faults-journal", str(journal)]
            words += ["--first-life", "4"]
            run_process = partial(trio.run_process, check=False, capture_stderr=True)
            process: trio.Process = await nursery.start(
                run_process, [sys.executable, "-m", "vllmfront", "simulate", *words]
            )
            await frontend.shake_hands()
            frontend.add(request(max_tokens=9))
            first = await frontend.batch()
            await process.wait()

    assert len(first.rows) == 1
    assert process.returncode == 1
    assert [(entry.kind, entry.life, entry.request_ids) for entry in read_journal(journal)] == [
        (None, 4, ()),
        (FaultKind.DROP, 4, ("r",)),
        (FaultKind.CRASH, 4, ()),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--faults", "seed:1.5"], "a seed is a whole number"),
        (["--faults", "nothing.json"], "cannot read the fault plan"),
        (["--faults-journal", "no/such/folder"], "cannot write the journal"),
    ],
)
def test_unusable_faults_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run(["--handshake", ADDRESS, *words])


def test_random_faults_are_those_of_the_seed() -> None:
    options = _parser().parse_args(
        ["--handshake", ADDRESS, "--start-rank", "1", "--first-life", "2", "--faults", "seed:3"]
    )
    found = fault_plan(options)

    assert found.of_life(1, 2) == FaultPlan.from_seed(3, ranks=2, lives=3).of_life(1, 2)

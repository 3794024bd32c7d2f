import subprocess
import sys

import pytest

import vllmfront
from vllmfront.cli._main import failure_text, run
from vllmfront.errors import ConfigurationError, EngineDied, StartupFailed


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"vllmfront {vllmfront.__version__}\n"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--help"], 0),
        ([], 2),
        (["serve", "--help"], 0),
        (["nonsense"], 2),
        (["serve"], 2),
        (["serve", "m", "--config", "x"], 2),
        (["serve", "m", "--debug-cli"], 0),
        (["serve", "m", "--ssl-keyfile", "x"], 1),
        (["serve", "m", "--tool-call-parser", "hermes"], 1),
        (["serve", "m", "--reasoning-parser", "qwen3"], 1),
        (["serve", "m", "-dp", "0"], 1),
        (["serve", "m", "--engine-stall-restart", "59"], 1),
        (["serve", "m", "-dpl", "0", "--engine-stall-restart", "90"], 1),
        (["serve", "m", "-dp", "1", "-dpl", "2"], 1),
    ],
)
def test_exit_statuses_are_those_of_the_reference(words: list[str], status: int) -> None:
    assert run(words) == status


def test_a_usage_error_is_shown_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    run(["serve", "--port", "1", "m"])

    assert capsys.readouterr().err == (
        "error: the model must appear immediately after the command\n\n"
        "Usage: vllmfront serve MODEL [options] [-- ENGINE_ARGUMENTS...]\n\n"
        "For more information, try '--help'.\n"
    )


def test_debug_cli_shows_the_split(capsys: pytest.CaptureFixture[str]) -> None:
    run(["serve", "m", "-tp", "2", "--port", "1", "--debug-cli", "--", "--x"])
    lines = capsys.readouterr().out.splitlines()

    assert lines[0].endswith("serve m -tp 2 --port 1 --debug-cli -- --x")
    assert lines[2].endswith("serve m --port 1 --debug-cli -- --tensor-parallel-size 2 --x")
    assert lines[4] == "Passthrough Python args: --tensor-parallel-size 2 --x"


def test_causes_are_listed_nearest_first() -> None:
    error = StartupFailed("it failed")

    assert failure_text(error) == "it failed"

    error.__cause__ = ConfigurationError("a file is missing")

    assert failure_text(error) == "it failed\n\nCaused by:\n  a file is missing"

    error.__cause__.__cause__ = OSError("no disk")

    assert failure_text(error) == (
        "it failed\n\nCaused by these errors (recent errors listed first):\n"
        "  1: a file is missing\n  2: no disk"
    )


def test_what_went_wrong_besides_is_told() -> None:
    error = EngineDied("the engine is gone")
    error.add_note("besides: the port is taken")

    assert failure_text(error) == "the engine is gone; besides: the port is taken"


def test_a_usage_error_comes_quickly_and_imports_no_server() -> None:
    source = (
        "import sys; from vllmfront.cli._main import run; run(['serve', 'm', '--port', 'x']);"
        "print([name for name in ('quart', 'zmq', 'tokenizers', 'jinja2') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=30
    )

    assert result.stdout == "[]\n"


def test_the_module_can_be_run() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "vllmfront", "-V"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )

    assert result.stdout.startswith("vllmfront ")


_THREAD_IN_NATIVE_CODE = """
import sys, threading, time
from pathlib import Path
import fastokens
from vllmfront.cli import _main

tokenizer = Path("tests/data/tiny-chat/tokenizer.json").read_text()

def load() -> None:
    while True:
        fastokens.Tokenizer.from_json_str(tokenizer)

def run(words: list[str]) -> int:
    for _ in range(4):
        threading.Thread(target=load, daemon=True).start()
    time.sleep(0.2)
    print("said before the end")
    return 7

_main.run = run
_main.main()
"""


def test_threads_in_native_code_do_not_change_how_it_ends() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _THREAD_IN_NATIVE_CODE], check=False, capture_output=True, text=True
    )

    assert (ended.returncode, ended.stdout) == (7, "said before the end\n"), ended.stderr

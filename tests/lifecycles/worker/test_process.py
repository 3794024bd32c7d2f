"""The program as the supervisor starts it: exit statuses, the parent's death, and what is imported
before clients are accepted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lifecycles.rig import TINY_CHAT, alive
from vllmfront.testing import SupervisorStandIn, open_supervisor, supervised_args

START_SECONDS = 60.0
LEAVING_SECONDS = 5.0
ACCEPTING = "accepting connections"

LATE = {
    *("quart", "quart_trio", "flask", "werkzeug", "hypercorn", "h2", "wsproto"),
    *("jinja2", "tokenizers", "fastokens", "huggingface_hub", "httpx", "requests"),
    *("asyncio", "numpy", "torch", "transformers", "vllm", "cattrs"),
}
"""Packages that take long to import, and that nobody needs who just says 503."""


@contextmanager
def started(
    supervisor: SupervisorStandIn, log: Path, *, python: Sequence[str] = (), **args: Any
) -> Generator[subprocess.Popen[bytes]]:
    words = supervisor.words(supervised_args(str(TINY_CHAT), **args))
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, *python, "-m", "vllmfront", *words],
            pass_fds=supervisor.descriptors,
            stdin=subprocess.DEVNULL,
            stderr=stderr,
        )
    supervisor.release()
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(log: Path, text: str) -> str:
    """Wait until the log holds *text*; return what comes before."""
    deadline = time.monotonic() + START_SECONDS
    while text not in (found := log.read_text(errors="replace")):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found.partition(text)[0]


def test_what_takes_long_to_import_is_not_imported_before_clients_are_accepted(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    with (
        open_supervisor() as supervisor,
        started(supervisor, log, python=["-X", "importtime"]) as process,
    ):
        before = wait_for(log, ACCEPTING)
        process.send_signal(signal.SIGTERM)
        status = process.wait(START_SECONDS)

    imported = {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in before.splitlines()
        if line.startswith("import time:")
    }
    assert {"vllmfront", "trio", "zmq"} <= imported
    assert imported & LATE == set()
    assert status == 0


def test_what_is_not_served_ends_with_its_status_and_without_secrets(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        open_supervisor() as supervisor,
        started(supervisor, log, hf_token="secret", api_key=["secret"]) as process,
    ):
        status = process.wait(START_SECONDS)

    assert status == 2
    assert "- hf_token: " in log.read_text()
    assert "secret" not in log.read_text()


PARENT = """\
import os, subprocess, sys
from vllmfront.testing import open_supervisor, supervised_args
with open_supervisor() as supervisor:
    words = supervisor.words(supervised_args(sys.argv[1], shutdown_timeout=600))
    child = subprocess.Popen(
        [sys.executable, "-m", "vllmfront", *words], pass_fds=supervisor.descriptors
    )
    print(child.pid, flush=True)
    child.wait()
"""


@pytest.mark.slow
def test_the_program_leaves_soon_after_its_supervisor_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(TINY_CHAT)],
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    assert parent.stdout is not None
    try:
        child = int(parent.stdout.readline())
        wait_for(log, ACCEPTING)
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + LEAVING_SECONDS
        while alive(child):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
    finally:
        parent.stdout.close()
        parent.kill()
        parent.wait()

    assert f"process {parent.pid}, which has started this one, is gone" in log.read_text()


@pytest.mark.slow
def test_a_wrapper_that_replaces_itself_is_the_program(tmp_path: Path) -> None:
    log, wrapper = tmp_path / "log", tmp_path / "frontend"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -m vllmfront "$@"\n')
    wrapper.chmod(0o755)
    with open_supervisor() as supervisor, log.open("wb") as stderr:
        words = supervisor.words(supervised_args(str(TINY_CHAT)))
        process = subprocess.Popen(
            [wrapper, *words], pass_fds=supervisor.descriptors, stderr=stderr
        )
        wait_for(log, ACCEPTING)
        os.kill(process.pid, signal.SIGINT)

        assert process.wait(START_SECONDS) == 0

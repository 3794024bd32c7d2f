import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vllmfront.testing import (
    FlakyProgram,
    ProcessFault,
    ProcessFaultKind,
    kill,
    stopped,
    write_program,
    write_python,
)

SAY = [sys.executable, "-c", "import sys; print(*sys.argv[1:])", "life {life}"]
SLEEP = ["sleep", "30"]
HOLD = "echo $$ > $0; exec sleep 30"
BUDGET = 10.0


def run(program: FlakyProgram, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program.path, *words], capture_output=True, text=True, timeout=BUDGET, check=False
    )


def test_without_faults_it_is_the_command(tmp_path: Path) -> None:
    program = write_program(tmp_path, SAY)
    found = [run(program, "a", "b c") for _ in range(2)]

    assert [one.stdout for one in found] == ["life 0 a b c\n", "life 1 a b c\n"]
    assert [one.returncode for one in found] == [0, 0]


def test_a_life_can_end_at_its_start(tmp_path: Path) -> None:
    fault = ProcessFault(kind=ProcessFaultKind.DIE_AT_START, life=1, status=3)
    program = write_program(tmp_path, SAY, [fault])
    found = [run(program) for _ in range(3)]

    assert [one.returncode for one in found] == [0, 3, 0]
    assert [one.stdout for one in found] == ["life 0\n", "", "life 2\n"]
    assert found[1].stderr == "life 1 ends at its start\n"


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (ProcessFault(kind=ProcessFaultKind.EXIT, seconds=0.4), 0),
        (ProcessFault(kind=ProcessFaultKind.EXIT, seconds=0.4, status=7), 7),
        (ProcessFault(kind=ProcessFaultKind.KILL, seconds=0.4), -signal.SIGKILL),
    ],
)
def test_a_life_can_end_after_a_while(tmp_path: Path, fault: ProcessFault, status: int) -> None:
    program = write_program(tmp_path, ["sh", "-c", HOLD, str(tmp_path / "child")], [fault])
    found = run(program)

    assert found.returncode == status
    assert not Path("/proc", (tmp_path / "child").read_text().strip()).exists()


def test_a_command_that_ends_by_itself_keeps_its_status(tmp_path: Path) -> None:
    fault = ProcessFault(kind=ProcessFaultKind.EXIT, seconds=BUDGET)
    program = write_program(tmp_path, ["sh", "-c", "exit 5"], [fault])

    assert run(program).returncode == 5


def test_a_faulty_life_still_heeds_a_termination(tmp_path: Path) -> None:
    fault = ProcessFault(kind=ProcessFaultKind.EXIT, seconds=BUDGET)
    program = write_program(tmp_path, ["sh", "-c", "echo up; exec sleep 30"], [fault])
    with subprocess.Popen([program.path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.terminate()

        assert process.wait(BUDGET) not in (0, None)


def test_it_can_stand_for_a_python_that_has_an_engine(tmp_path: Path) -> None:
    program = write_program(tmp_path, SAY)
    python = write_python(tmp_path, program)
    words = ["-m", "vllm.entrypoints.cli.main", "serve", "m", "--data-parallel-address", "h"]
    words += ["--data-parallel-rpc-port", "7", "--data-parallel-size", "2", "--seed", "3"]
    probe = subprocess.run([python, "-c", "import vllm"], timeout=BUDGET, check=False)
    engine = subprocess.run([python, *words], stdout=subprocess.PIPE, timeout=BUDGET, check=False)

    assert probe.returncode == 0
    assert engine.stdout == b"life 0 --handshake tcp://h:7 --ranks 2\n"
    assert len(program.pids()) == 1


def test_the_process_of_each_life_is_known(tmp_path: Path) -> None:
    program = write_program(tmp_path, SLEEP)
    with subprocess.Popen([program.path]) as first, subprocess.Popen([program.path]) as second:
        while len(program.pids()) < 2:
            time.sleep(0.01)
        found = program.pids()
        killed = [kill(pid) for pid in found]

    assert sorted(found) == sorted([first.pid, second.pid])
    assert killed == [True, True]
    assert [kill(pid) for pid in found] == [False, False]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_stopped_process_is_alive_and_does_not_run() -> None:
    with subprocess.Popen(SLEEP) as process:
        with stopped(process.pid):
            os.waitpid(process.pid, os.WUNTRACED)
            held = state(process.pid)
        os.waitpid(process.pid, os.WCONTINUED)
        after = state(process.pid)
        process.kill()

    assert held == "T"
    assert after != "T"


def test_a_process_that_ends_while_stopped_is_no_error() -> None:
    with subprocess.Popen(SLEEP) as process, stopped(process.pid):
        process.kill()
        process.wait()

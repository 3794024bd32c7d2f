# ruff: noqa: ARG001 - a clock is asked for because of its effect

import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from vllmfront.supervisor import (
    Notifier,
    serve_extensions,
    serve_watchdog,
    watchdog_interval,
)


@attrs.define
class Manager:
    """The service manager's end: a real datagram socket."""

    sock: socket.socket
    address: str

    def received(self) -> list[str]:
        messages = []
        while True:
            try:
                messages.append(self.sock.recv(4096).decode())
            except BlockingIOError:
                return messages


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    path = str(tmp_path / "notify") if request.param == "path" else f"@{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + path[1:] if path.startswith("@") else path)
        sock.setblocking(False)
        yield Manager(sock, path)


async def test_a_message_is_one_datagram(manager: Manager) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": manager.address})
    assert not notifier.ready
    await notifier.send(READY=1, STATUS="it\nserves  ü")
    await notifier.send(MAINPID=7)

    assert manager.received() == ["READY=1\nSTATUS=it serves ü\n", "MAINPID=7\n"]
    assert notifier.ready


async def test_who_has_handed_over_is_silent(manager: Manager) -> None:
    notifier = Notifier(manager.address)
    await notifier.send(MAINPID=7, READY=1)
    notifier.silent = True
    await notifier.send(STOPPING=1)
    await notifier.around_reload(lambda: None)
    notifier.silent = False
    await notifier.send(STATUS="again")

    assert manager.received() == ["MAINPID=7\nREADY=1\n", "STATUS=again\n"]


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
async def test_without_a_service_manager_nothing_is_sent(environ: dict[str, str]) -> None:
    notifier = Notifier.from_environment(environ)
    await notifier.send(READY=1)

    assert not notifier.enabled
    assert not notifier.ready


async def test_one_that_is_gone_is_complained_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(str(tmp_path / "gone"))
    await notifier.send(READY=1)
    await notifier.send(READY=1)

    [record] = caplog.records
    assert record.getMessage() == (
        "the service manager does not learn how we are: cannot send to NOTIFY_SOCKET "
        f"{tmp_path}/gone: No such file or directory"
    )
    assert not notifier.ready


async def test_one_that_does_not_read_costs_a_moment(
    manager: Manager, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(manager.address)
    with trio.fail_after(2000.0):
        while not caplog.records:
            await notifier.send(STATUS="x")

    assert "it does not read" in caplog.text
    assert len(manager.received()) > 1
    await notifier.send(STATUS="heard")
    assert manager.received() == ["STATUS=heard\n"]


async def test_one_that_starts_anew_is_found(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    notifier = Notifier(str(path))
    for _ in range(2):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.bind(str(path))
            await notifier.send(WATCHDOG=1)

            assert sock.recv(100) == b"WATCHDOG=1\n"
        path.unlink()


async def test_more_time_is_asked_for_before_it_is_over(
    manager: Manager, autojump_clock: MockClock
) -> None:
    notifier = Notifier(manager.address)
    left = 0.0
    with trio.move_on_after(100.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_extensions, notifier)
            while True:
                await wait_all_tasks_blocked()
                for message in manager.received():
                    left = int(message.removeprefix("EXTEND_TIMEOUT_USEC=")) / 1e6
                assert left > 0
                await trio.sleep(1.0)
                left -= 1.0
    assert trio.current_time() == 100.0


async def test_the_watchdog_hears_twice_in_each_interval(
    manager: Manager, autojump_clock: MockClock
) -> None:
    notifier = Notifier(manager.address)
    with trio.move_on_after(9.9):
        await serve_watchdog(notifier, 2.0)

    assert manager.received() == ["WATCHDOG=1\n"] * 10


async def test_a_blocked_loop_is_silent(manager: Manager) -> None:
    notifier = Notifier(manager.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_watchdog, notifier, 0.02)
        await wait_all_tasks_blocked()
        manager.received()
        time.sleep(0.1)  # noqa: ASYNC251 - this is the blocked loop

        assert manager.received() == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": ""}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "7"}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
    ],
)
def test_the_watchdog_is_for_this_very_process(
    environ: dict[str, str], interval: float | None
) -> None:
    assert watchdog_interval(environ, 7) == interval


async def test_a_reload_is_told_before_and_after(manager: Manager) -> None:
    notifier = Notifier(manager.address)
    seen: list[list[str]] = []
    await notifier.around_reload(lambda: seen.append(manager.received()))

    assert seen == [[]]  # not started yet: READY would be a lie

    await notifier.send(READY=1)
    manager.received()
    earliest = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    await notifier.around_reload(lambda: seen.append(manager.received()))
    latest = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000

    [message] = seen[1]
    first, second, _ = message.split("\n")
    assert first == "RELOADING=1"
    assert earliest <= int(second.removeprefix("MONOTONIC_USEC=")) <= latest
    assert manager.received() == ["READY=1\n"]

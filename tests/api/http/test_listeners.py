import errno
import os
import resource
import socket
import sys
from pathlib import Path

import pytest
import trio

from tests.api.http.rig import echo
from vllmfront.api.http import (
    HttpConfig,
    ListenConfig,
    Listener,
    duplicate_listeners,
    open_listeners,
    raise_descriptor_limit,
    serve_http,
    take_systemd_descriptors,
)
from vllmfront.errors import ConfigurationError


async def answers(listeners: list[Listener]) -> bool:
    """Tell whether each of *listeners* leads to a server."""
    received = []
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, listeners, echo, HttpConfig())
        for listener in listeners:
            with trio.socket.socket(listener.socket.family, socket.SOCK_STREAM) as client:
                await client.connect(listener.socket.getsockname())
                await client.send(b"GET / HTTP/1.1\r\n\r\n")
                received.append(await client.recv(1000))
        nursery.cancel_scope.cancel()
    return all(b"200 OK" in answer for answer in received)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", ""])
async def test_a_tcp_address_is_listened_on(host: str) -> None:
    async with open_listeners(ListenConfig(host=host, port=0)) as listeners:
        assert await answers(listeners)
        assert len({listener.socket.getsockname()[1] for listener in listeners}) == 1


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_an_ipv6_address_is_listened_on() -> None:
    async with open_listeners(ListenConfig(host="::1", port=0)) as listeners:
        assert await answers(listeners)
        assert listeners[0].name.startswith("[::1]:")


async def test_a_port_in_use_is_a_clear_error() -> None:
    async with open_listeners(ListenConfig(port=0)) as listeners:
        port = listeners[0].socket.getsockname()[1]

        message = f"cannot listen on 127.0.0.1 port {port}: {os.strerror(errno.EADDRINUSE)}"
        with pytest.raises(ConfigurationError, match=message):
            async with open_listeners(ListenConfig(port=port)):
                pass


async def test_an_unknown_host_is_a_clear_error() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen on no\.such\.host\.invalid"):
        async with open_listeners(ListenConfig(host="no.such.host.invalid")):
            pass


async def test_a_unix_socket_is_listened_on_and_its_file_removed(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    async with open_listeners(ListenConfig(uds=str(path))) as listeners:
        assert await answers(listeners)
        assert path.is_socket()

    assert not path.exists()


async def test_a_stale_unix_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))

    async with open_listeners(ListenConfig(uds=str(path))) as listeners:
        assert await answers(listeners)


async def test_a_unix_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    async with open_listeners(ListenConfig(uds=str(path))) as listeners:
        with pytest.raises(ConfigurationError, match="another server answers there"):
            async with open_listeners(ListenConfig(uds=str(path))):
                pass

        assert await answers(listeners)


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")

    with pytest.raises(ConfigurationError, match="the file exists and is no socket"):
        async with open_listeners(ListenConfig(uds=str(path))):
            pass
    assert path.read_text() == "data"


async def test_a_unix_socket_that_somebody_replaced_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    async with open_listeners(ListenConfig(uds=str(path))):
        path.unlink()
        path.write_text("somebody else's")

    assert path.exists()


async def test_an_unusable_path_is_a_clear_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "s", tmp_path / ("x" * 200)):
        with pytest.raises(ConfigurationError, match="cannot listen on the Unix socket"):
            async with open_listeners(ListenConfig(uds=str(path))):
                pass


async def test_an_inherited_descriptor_is_served() -> None:
    with socket.create_server(("127.0.0.1", 0)) as inherited:
        fd = os.dup(inherited.fileno())
        os.set_inheritable(fd, True)  # takes no keywords
        async with open_listeners(ListenConfig(fds=[fd])) as listeners:
            assert not os.get_inheritable(fd)
            assert await answers(listeners)


async def test_several_descriptors_are_all_served_or_none(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        unix.bind(str(path))
        unix.listen()
        fds = [os.dup(tcp.fileno()), os.dup(unix.fileno())]
        async with open_listeners(ListenConfig(fds=fds)) as listeners:
            assert await answers(listeners)
        first = os.dup(tcp.fileno())
        with pytest.raises(ConfigurationError, match="descriptor 999999"):
            async with open_listeners(ListenConfig(fds=[first, 999_999])):
                pass

        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            os.fstat(first)
    assert path.exists()  # whoever made it removes it


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
async def test_a_child_that_closes_its_duplicate_takes_nothing_away(
    tmp_path: Path, unix: bool
) -> None:
    """Who connects between two children is answered by the second one."""
    path = tmp_path / "http.sock"
    config = ListenConfig(uds=str(path)) if unix else ListenConfig(port=0)
    async with open_listeners(config) as owned:
        with duplicate_listeners(owned) as lent:
            assert await answers(lent)
            lent[0].close()
        address = owned[0].socket.getsockname()
        with trio.socket.socket(owned[0].socket.family, socket.SOCK_STREAM) as client:
            await client.connect(address)
            await client.send(b"GET / HTTP/1.1\r\n\r\n")
            with duplicate_listeners(owned) as lent:
                async with trio.open_nursery() as nursery:
                    await nursery.start(serve_http, lent, echo, HttpConfig())

                    assert b"200 OK" in await client.recv(1000)
                    nursery.cancel_scope.cancel()
        assert [listener.socket.fileno() for listener in lent] == [-1]
        assert owned[0].socket.fileno() >= 0


async def test_a_descriptor_that_does_not_listen_is_refused(tmp_path: Path) -> None:
    with socket.socket() as idle, (tmp_path / "file").open("w") as file:
        for fd in (idle.fileno(), file.fileno(), 999_999):
            with pytest.raises(ConfigurationError, match=f"descriptor {fd}"):
                async with open_listeners(ListenConfig(fds=[fd])):
                    pass
        assert idle.fileno() >= 0


async def test_only_one_place_to_listen_may_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="choose one"):
        async with open_listeners(ListenConfig(uds=str(tmp_path / "s"), fds=[3])):
            pass


def environ(**changes: str) -> dict[str, str]:
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0", "PATH": "/bin"} | changes


async def test_without_sockets_from_the_service_manager_the_error_says_so() -> None:
    for env in ({}, environ(), environ(LISTEN_FDS="x"), environ(LISTEN_PID="1", LISTEN_FDS="1")):
        with pytest.raises(ConfigurationError, match="has not passed sockets"):
            async with open_listeners(ListenConfig(systemd=True), env):
                pass
    with pytest.raises(ConfigurationError, match="a socket named 'http'"):
        async with open_listeners(ListenConfig(systemd=True, systemd_name="http"), environ()):
            pass


async def test_sockets_of_the_service_manager_are_served(tmp_path: Path) -> None:
    """In a child process, whose descriptors from 3 on are free to be arranged."""
    script = tmp_path / "activated.py"
    script.write_text(
        """
import os, socket, sys, trio
from tests.api.http.test_listeners import answers
from vllmfront.api.http import ListenConfig, open_listeners

servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
servers.append(socket.socket(socket.AF_UNIX))
servers[2].bind(sys.argv[1])
servers[2].listen()
high = [os.dup2(s.fileno(), 50 + n) for n, s in enumerate(servers)]
for n in range(3):
    os.dup2(high[n], 3 + n)

async def main():
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="3", LISTEN_FDNAMES="grpc:http:http")
    config = ListenConfig(systemd=True, systemd_name="http")
    async with open_listeners(config) as listeners:
        assert [listener.socket.fileno() for listener in listeners] == [4, 5]
        assert not any(os.get_inheritable(fd) for fd in (3, 4, 5))
        assert not any(name.startswith("LISTEN_") for name in os.environ)
        assert await answers(listeners)

trio.run(main)
os._exit(0)
"""
    )

    process = await trio.run_process(
        [sys.executable, str(script), str(tmp_path / "s")],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        check=False,
        capture_stderr=True,
    )

    assert process.returncode == 0, process.stderr
    assert (tmp_path / "s").exists()  # it is the service manager's


def test_variables_of_the_service_manager_do_not_reach_children() -> None:
    env = environ(LISTEN_FDNAMES="a")

    assert take_systemd_descriptors(env) == []
    assert env == {"PATH": "/bin"}


def test_a_descriptor_that_was_counted_but_not_passed_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="LISTEN_FDS counts descriptor"):
        take_systemd_descriptors(environ(LISTEN_FDS="100000"))


def test_the_limit_of_open_files_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    try:
        assert raise_descriptor_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

"""Inherited descriptors: checked by name, closed to our children, listened on."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles.worker import Bootstrap
from vllmfront.lifecycles.worker._descriptors import check_descriptors, open_client_listener
from vllmfront.testing import SupervisorPlan, SupervisorStandIn, open_supervisor


@pytest.fixture
def supervisor() -> Iterator[SupervisorStandIn]:
    with open_supervisor() as supervisor:
        yield supervisor


def bootstrap(supervisor: SupervisorStandIn) -> Bootstrap:
    listen, inputs, outputs = supervisor.descriptors
    return Bootstrap(listen_fd=listen, input_fd=inputs, output_fd=outputs)


def test_what_vllm_hands_down_is_accepted_and_closed_to_children(
    supervisor: SupervisorStandIn,
) -> None:
    for fd in supervisor.descriptors:
        os.set_inheritable(fd, True)

    check_descriptors(bootstrap(supervisor))

    assert not any(map(os.get_inheritable, supervisor.descriptors))
    assert not supervisor.clients.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def test_clients_are_listened_for_until_the_end(supervisor: SupervisorStandIn) -> None:
    name = supervisor.clients.getsockname()
    with open_client_listener(os.dup(supervisor.clients.fileno())) as listener:
        socket.create_connection(name, timeout=1).close()
        assert listener.socket.gettimeout() == 0
        assert not os.get_inheritable(listener.socket.fileno())

    assert listener.socket.fileno() == -1


def test_the_file_of_a_unix_socket_is_the_supervisors(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with (
        open_supervisor(SupervisorPlan(uds=str(path))) as supervisor,
        open_client_listener(os.dup(supervisor.clients.fileno())) as listener,
    ):
        assert listener.name == f"unix:{path}"

    assert path.exists()


def test_an_address_that_somebody_listens_on_is_refused(supervisor: SupervisorStandIn) -> None:
    fd = supervisor.clients.fileno()
    supervisor.clients.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(supervisor.clients.getsockname())
        other.listen()

        with (
            pytest.raises(ConfigurationError, match=f"--listen-fd {fd}: cannot listen there"),
            open_client_listener(fd),
        ):
            pass


def closed() -> int:
    with socket.socket() as gone:
        return gone.fileno()


def pipe() -> int:
    return os.pipe()[0]


def datagrams() -> int:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()


def netlink() -> int:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).detach()


def unbound() -> int:
    return socket.socket().detach()


def deaf() -> int:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound.detach()


@pytest.mark.parametrize(
    ("field", "option"),
    [
        ("listen_fd", "--listen-fd"),
        ("input_fd", "--input-listener-fd"),
        ("output_fd", "--output-listener-fd"),
    ],
)
@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (closed, "Bad file descriptor; whoever starts this process has to pass it on"),
        (pipe, "is no socket"),
        (datagrams, "is no stream socket"),
        (netlink, "is no stream socket"),
        (unbound, "is bound to no address"),
        (deaf, "does not listen: engines could not connect"),
    ],
)
def test_others_are_refused_by_name_and_left_open(
    supervisor: SupervisorStandIn,
    field: str,
    option: str,
    make: Callable[[], int],
    complaint: str,
) -> None:
    fd = make()
    changed: dict[str, Any] = {field: fd}
    given = attrs.evolve(bootstrap(supervisor), **changed)
    try:
        if make is deaf and field == "listen_fd":
            check_descriptors(given)  # it is we who listen there
            return
        with pytest.raises(ConfigurationError) as caught:
            check_descriptors(given)
    finally:
        if make is not closed:
            os.close(fd)

    assert str(caught.value).startswith(f"{option} {fd}")
    assert complaint in str(caught.value)


def test_each_needs_a_descriptor_of_its_own(supervisor: SupervisorStandIn) -> None:
    given = bootstrap(supervisor)

    with pytest.raises(ConfigurationError, match="each needs a descriptor of its own"):
        check_descriptors(attrs.evolve(given, output_fd=given.input_fd))

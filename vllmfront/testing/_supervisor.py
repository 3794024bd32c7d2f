"""Stands in for vLLM's own supervisor: sockets and handshake as its, without engines or a model."""

import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
import zmq

from vllmfront.engine.transport import MessageRouter, PeerGone, open_context, open_router
from vllmfront.engine.wire import EngineAddresses, Hello, decode_handshake, encode_init


@attrs.frozen(kw_only=True)
class SupervisorPlan:
    """What a supervisor binds, and which engines it has."""

    host: str = "127.0.0.1"
    port: int = 0
    uds: str | None = None
    """Path of a Unix socket for clients, instead of host and port."""

    handshake_port: int = 0
    """Where engines say HELLO; 0 takes any free port."""

    start_rank: int = 0
    engine_count: int = 1
    data_parallel_size: int = 1
    engines_over_tcp: bool = False
    """As where some engines are on other hosts."""

    coordinator_address: str | None = None


@attrs.define(kw_only=True, eq=False)
class SupervisorStandIn:
    """What a frontend inherits; opened by ``open_supervisor``."""

    plan: SupervisorPlan
    clients: socket.socket
    """Bound, and not listening."""

    inputs: socket.socket
    outputs: socket.socket
    handshake: MessageRouter
    greeted: list[int] = attrs.field(factory=list)
    """Ranks that have said HELLO, in order."""

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """What a child process has to inherit (``pass_fds``)."""
        return self.clients.fileno(), self.inputs.fileno(), self.outputs.fileno()

    @property
    def handshake_address(self) -> str:
        return self.handshake.address

    @property
    def url(self) -> str:
        """Where clients find the frontend, over TCP."""
        host, port = self.clients.getsockname()[:2]
        return f"http://{host}:{port}"

    def words(self, args: Mapping[str, Any]) -> list[str]:
        """Return what follows the program: the same words in the same order as vLLM's."""
        plan, (listen, inputs, outputs) = self.plan, self.descriptors
        coordinator = (
            []
            if plan.coordinator_address is None
            else ["--coordinator-address", plan.coordinator_address]
        )
        return [
            "frontend",
            *("--listen-fd", str(listen)),
            *("--input-listener-fd", str(inputs), "--output-listener-fd", str(outputs)),
            *("--engine-start-index", str(plan.start_rank)),
            *("--engine-count", str(plan.engine_count)),
            *("--data-parallel-size", str(plan.data_parallel_size)),
            *coordinator,
            *("--args-json", json.dumps(dict(args), sort_keys=True)),
        ]

    def release(self) -> None:
        """Close our copies of the engines' sockets, as vLLM does once the child is started."""
        self.inputs.close()
        self.outputs.close()

    async def serve_handshake(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Tell engines that say HELLO where the frontend's sockets are, until cancelled."""
        addresses = EngineAddresses(
            inputs=[_address(self.inputs)],
            outputs=[_address(self.outputs)],
            frontend_stats_publish_address=self.plan.coordinator_address,
        )
        task_status.started()
        while True:
            identity, payload = await self.handshake.receive()
            if not isinstance(decode_handshake(payload.bytes), Hello):
                continue
            self.greeted.append(int.from_bytes(identity.bytes, "little"))
            try:
                self.handshake.send_nowait(identity.bytes, [encode_init(addresses, {})])
            except PeerGone:
                continue


@contextmanager
def open_supervisor(plan: SupervisorPlan | None = None) -> Iterator[SupervisorStandIn]:
    """Bind everything for the block."""
    plan = plan or SupervisorPlan()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vllmfront-")))
        context: zmq.Context[zmq.Socket[bytes]] = stack.enter_context(open_context())
        yield SupervisorStandIn(
            plan=plan,
            clients=stack.enter_context(_bind_for_clients(plan)),
            inputs=stack.enter_context(_listen_for_engines(plan, folder / "inputs")),
            outputs=stack.enter_context(_listen_for_engines(plan, folder / "outputs")),
            handshake=stack.enter_context(
                open_router(context, f"tcp://127.0.0.1:{plan.handshake_port or '*'}")
            ),
        )


def supervised_args(model: str, **more: Any) -> dict[str, Any]:
    """Return the options that vLLM always hands down, and *more* besides."""
    return {
        "model_tag": model,
        "engine_ready_timeout_secs": 600,
        "http_timeout_keep_alive": 5,
        **more,
    }


def _bind_for_clients(plan: SupervisorPlan) -> socket.socket:
    if plan.uds is not None:
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(plan.uds)
        return bound
    bound = socket.socket(socket.AF_INET6 if ":" in plan.host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((plan.host, plan.port))
    return bound


def _listen_for_engines(plan: SupervisorPlan, path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_INET if plan.engines_over_tcp else socket.AF_UNIX)
    listener.bind(("127.0.0.1", 0) if plan.engines_over_tcp else os.fspath(path))
    listener.listen()
    return listener


def _address(listener: socket.socket) -> str:
    name = listener.getsockname()
    return f"ipc://{name}" if isinstance(name, str) else f"tcp://{name[0]}:{name[1]}"

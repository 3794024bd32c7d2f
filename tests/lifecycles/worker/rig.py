"""Whole frontends under a supervisor, in the test's own process; engines are stand-ins."""

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx
import trio

from tests.lifecycles.rig import BUDGET, TINY_CHAT, wait_health
from vllmfront.errors import VllmFrontError
from vllmfront.lifecycles import EngineConfig, ModelConfig, ServeConfig, ServerConfig
from vllmfront.lifecycles.worker import Bootstrap, WorkerConfig
from vllmfront.lifecycles.worker._worker import serve_worker
from vllmfront.simulator import SimulatorConfig, serve_simulator
from vllmfront.supervisor import Parent
from vllmfront.testing import SupervisorPlan, SupervisorStandIn, open_supervisor


class MortalParent(Parent):
    """A parent that ends when the test says so."""

    def __init__(self) -> None:
        super().__init__(4711, None)
        self.end = trio.Event()

    async def wait_end(self) -> None:
        await self.end.wait()


@attrs.define
class Worker:
    """A frontend that runs, and those around it."""

    supervisor: SupervisorStandIn
    http: httpx.AsyncClient
    parent: MortalParent
    ended: trio.Event = attrs.field(factory=trio.Event)
    error: VllmFrontError | None = None

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        os.kill(os.getpid(), number)

    async def generate(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"prompt": "hi", **fields})


def settings(*, server: ServerConfig | None = None, ready_timeout: float = 60.0) -> ServeConfig:
    return ServeConfig(
        model=ModelConfig(model=str(TINY_CHAT)),
        engine=EngineConfig(data_parallel_size_local=0, ready_timeout=ready_timeout),
        server=server or ServerConfig(served_model_names=("tiny",)),
    )


def bootstrap(supervisor: SupervisorStandIn) -> Bootstrap:
    """Inherit copies: the frontend closes what it is given."""
    listen, inputs, outputs = map(os.dup, supervisor.descriptors)
    return Bootstrap(
        listen_fd=listen,
        input_fd=inputs,
        output_fd=outputs,
        start_rank=supervisor.plan.start_rank,
        engine_count=supervisor.plan.engine_count,
        data_parallel_size=supervisor.plan.data_parallel_size,
    )


@asynccontextmanager
async def supervised(
    config: ServeConfig | None = None,
    plan: SupervisorPlan | None = None,
    *,
    loss_grace: float = 60.0,
    budget: float = BUDGET,
) -> AsyncGenerator[Worker]:
    """Serve for as long as the block runs; then a signal ends it, if nothing has yet."""
    with trio.fail_after(budget), open_supervisor(plan) as supervisor:
        transport = None
        url = "http://frontend"
        if supervisor.plan.uds is None:
            url = supervisor.url
        else:
            transport = httpx.AsyncHTTPTransport(uds=supervisor.plan.uds)
        async with (
            trio.open_nursery() as nursery,
            httpx.AsyncClient(base_url=url, transport=transport, timeout=BUDGET) as http,
        ):
            worker = Worker(supervisor, http, MortalParent())
            handed_down = WorkerConfig(
                bootstrap=bootstrap(supervisor), settings=config or settings()
            )
            await nursery.start(supervisor.serve_handshake)
            await nursery.start(_run, worker, handed_down, loss_grace)
            yield worker
            if not worker.ended.is_set():
                worker.signal()
            await worker.ended.wait()
            nursery.cancel_scope.cancel()


async def _run(
    worker: Worker,
    config: WorkerConfig,
    loss_grace: float,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    told = False

    class Status:
        def started(self, value: object = None) -> None:
            nonlocal told
            del value
            told = True
            task_status.started()

    try:
        await serve_worker(config, worker.parent, loss_grace=loss_grace, task_status=Status())
    except VllmFrontError as error:
        worker.error = error
    finally:
        worker.ended.set()
    if not told:
        task_status.started()


@attrs.define
class Engines:
    """The supervisor's engines, each in a scope of its own."""

    scopes: dict[int, trio.CancelScope] = attrs.field(factory=dict)

    def kill(self, rank: int | None = None) -> None:
        """End one, or all, without a word."""
        for number, scope in self.scopes.items():
            if rank in {None, number}:
                scope.cancel()


@asynccontextmanager
async def simulated_engines(worker: Worker, **fields: Any) -> AsyncGenerator[Engines]:
    """Run the supervisor's engines, and wait until they serve."""
    plan, engines = worker.supervisor.plan, Engines()

    async def run(rank: int) -> None:
        config = SimulatorConfig(
            handshake=worker.supervisor.handshake_address,
            vocab_size=2048,
            start_rank=rank,
            **fields,
        )
        with engines.scopes[rank]:
            await serve_simulator(config)

    async with trio.open_nursery() as nursery:
        for rank in range(plan.start_rank, plan.start_rank + plan.engine_count):
            engines.scopes[rank] = trio.CancelScope()
            nursery.start_soon(run, rank)
        await wait_health(worker.http, 200)
        yield engines
        nursery.cancel_scope.cancel()

"""All ranks of a simulator in one process."""

import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import trio
import zmq

from vllmfront.simulator._config import SimulatorConfig
from vllmfront.simulator._engine import SimulatedEngine
from vllmfront.simulator._sockets import Context


class Simulator:
    """The ranks of one ``SimulatorConfig``."""

    def __init__(self, engines: Sequence[SimulatedEngine]) -> None:
        self.engines = engines
        """In order of rank."""

    def __repr__(self) -> str:
        return f"<Simulator {list(self.engines)}>"

    async def wait_ready(self) -> None:
        """Return once all ranks have registered with their frontend."""
        for engine in self.engines:
            await engine.wait_ready()


@contextmanager
def _open_context() -> Iterator[Context]:
    """Hold ZeroMQ's I/O thread for the block.

    The end of a context waits for sockets that linger, in a thread of its own: the block's end
    does not.
    """
    context = zmq.Context()
    try:
        yield context
    finally:
        threading.Thread(target=context.term, daemon=True).start()


async def serve_simulator(
    config: SimulatorConfig,
    *,
    task_status: trio.TaskStatus[Simulator] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve all ranks until the last of them has died; cancelled, it closes all sockets.

    Started once every rank has registered with its frontend.

    Raises:
        ExceptionGroup: with a ``ProtocolError``, if a frontend's INIT makes no sense.
    """
    engines = [SimulatedEngine(config, config.start_rank + index) for index in range(config.ranks)]
    with _open_context() as context:
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as starting:
                for engine in engines:
                    starting.start_soon(nursery.start, engine.serve, context)
            task_status.started(Simulator(engines))


@asynccontextmanager
async def open_simulator(config: SimulatorConfig) -> AsyncGenerator[Simulator, None]:
    """Run all ranks for the block; entering does not wait for a frontend to answer.

    Raises:
        ExceptionGroup: what the block or a rank raised.
    """
    engines = [SimulatedEngine(config, config.start_rank + index) for index in range(config.ranks)]
    with _open_context() as context:
        async with trio.open_nursery() as nursery:
            for engine in engines:
                # A frontend may well be opened within the block, so nothing waits for one here.
                nursery.start_soon(engine.serve, context)  # noqa: ASYNC113
            yield Simulator(engines)
            nursery.cancel_scope.cancel(reason="simulator closed")

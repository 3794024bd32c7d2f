"""All ranks of a simulator in one process."""

import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import trio
import zmq

from vllmfront.simulator._config import SimulatorConfig
from vllmfront.simulator._engine import SimulatedEngine
from vllmfront.simulator._lives import Lives
from vllmfront.simulator._lockstep import LockstepMeeting
from vllmfront.simulator._rim import RimFactory, no_rim
from vllmfront.simulator._sockets import Context


class Simulator:
    """The ranks of one ``SimulatorConfig``."""

    def __init__(self, config: SimulatorConfig, rims: RimFactory = no_rim) -> None:
        ranks = range(config.start_rank, config.start_rank + config.ranks)
        meeting = LockstepMeeting(config.ranks) if config.lockstep else None
        self._lives = [Lives(config, rank, rims, meeting) for rank in ranks]

    def __repr__(self) -> str:
        return f"<Simulator {list(self.engines)}>"

    @property
    def engines(self) -> Sequence[SimulatedEngine]:
        """The present engine of each rank, in order of rank; one that has come back is new."""
        return [lives.engine for lives in self._lives]

    async def wait_ready(self) -> None:
        """Return once all ranks have registered with their frontend, or have ended before."""
        for lives in self._lives:
            await lives.settled.wait()

    def start_in(self, nursery: trio.Nursery, context: Context) -> None:
        """Serve all ranks in *nursery*, until none comes back any more."""
        for lives in self._lives:
            nursery.start_soon(lives.serve, context, name=f"rank {lives.rank}")


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
    rims: RimFactory = no_rim,
    *,
    task_status: trio.TaskStatus[Simulator] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve all ranks until the last of them has died; cancelled, it closes all sockets.

    Started once every rank has registered with its frontend, or has died before.

    Args:
        config: The ranks, all alike.
        rims: Makes what stands between each engine and its sockets; faults are put in there.
        task_status: Gets the running engines.

    Raises:
        ExceptionGroup: with a ``ProtocolError``, if a frontend's INIT makes no sense.
    """
    simulator = Simulator(config, rims)
    with _open_context() as context:
        async with trio.open_nursery() as nursery:
            simulator.start_in(nursery, context)
            await simulator.wait_ready()
            task_status.started(simulator)


@asynccontextmanager
async def open_simulator(
    config: SimulatorConfig, rims: RimFactory = no_rim
) -> AsyncGenerator[Simulator, None]:
    """Run all ranks for the block; entering does not wait for a frontend to answer.

    Raises:
        ExceptionGroup: what the block or a rank raised.
    """
    simulator = Simulator(config, rims)
    with _open_context() as context:
        async with trio.open_nursery() as nursery:
            # A frontend may well be opened within the block, so nothing waits for one here.
            simulator.start_in(nursery, context)
            yield simulator
            nursery.cancel_scope.cancel(reason="simulator closed")

"""One rank's lives: an engine that has ended may come back, as a restarted process would."""

import attrs
import trio

from vllmfront.simulator._config import SimulatorConfig
from vllmfront.simulator._engine import SimulatedEngine
from vllmfront.simulator._lockstep import LockstepMeeting
from vllmfront.simulator._rim import RimFactory
from vllmfront.simulator._sockets import Context


@attrs.define(eq=False)
class Lives:
    """Runs one engine after the other under the same rank."""

    config: SimulatorConfig
    rank: int
    rims: RimFactory
    meeting: LockstepMeeting | None = None
    """Where the ranks find each other, if they step together."""

    settled: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set once a life has registered with its frontend, or none will any more."""

    engine: SimulatedEngine = attrs.field(init=False)
    """The present one, or the last one."""

    _life: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._life = self.config.first_life
        self.engine = self._new_engine()

    async def serve(self, context: Context) -> None:
        """Serve until a life ends that no other one follows; cancelled, close all sockets.

        Raises:
            ProtocolError: the frontend's INIT makes no sense.
        """
        while True:
            await self.engine.serve(context, task_status=_Report(self.settled))
            if self.config.rejoin_after is None:
                self.settled.set()
                return
            await trio.sleep(self.config.rejoin_after)
            self._life += 1
            self.engine = self._new_engine()

    def _new_engine(self) -> SimulatedEngine:
        rim = self.rims(self.rank, self._life)
        return SimulatedEngine(self.config, self.rank, rim, self.meeting)


@attrs.frozen
class _Report(trio.TaskStatus[None]):
    """Hears that a life has registered."""

    settled: trio.Event

    def started(self, value: None = None) -> None:
        del value
        self.settled.set()

"""One update of the weights of all servers, from the pause to the end of it."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import attrs

from vllmfront.rl._errors import LeaseLost, StateConflict, UpdateFailed
from vllmfront.rl._fleet import Fleet
from vllmfront.rl._lease import LeasedPause
from vllmfront.rl._payload import UpdateInfo
from vllmfront.rl._rollback import Restore, Rollback
from vllmfront.rl._server import Server
from vllmfront.rl._upload import Upload

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True)
class UpdateWindow:
    """What ``WeightSyncClient.update_window`` opens: all servers are paused and await weights."""

    fleet: Fleet
    pause: LeasedPause
    upload: Upload
    restore: Restore | None
    rollback_budget: float
    version: str | None
    """What the new weights are called once all are there; may be set inside the window."""

    previous: str | None = attrs.field(default=None, init=False)
    """What the weights were called before."""

    async def send(
        self, info: UpdateInfo | None = None, *, per_server: Sequence[UpdateInfo] | None = None
    ) -> None:
        """Send one piece of the weights; as ``Upload.send``."""
        await self.upload.send(info, per_server=per_server)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator["UpdateWindow", None]:
        """Do one update around the block, as ``WeightSyncClient.update_window`` promises it."""
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            body = anyio.CancelScope()
            try:
                tasks.start_soon(self.pause.serve_renewal, body)
                with body:
                    await self._begin()
                    yield self
                await self._end()
            except Exception as error:  # noqa: BLE001 - raised again when the renewal has ended
                failure = await self._after_rollback(error)
            except BaseException as error:  # cancelled: what is raised is not ours to choose
                told = await self._after_rollback(error)  # noqa: ASYNC102 - it is shielded
                logger.warning("An update of weights was cut short: %s", told or type(error))
                raise
            finally:
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _begin(self) -> None:
        answers = await self.pause.take()
        answers.raise_first()
        self.previous = await self._version_of(self.fleet.servers[0])
        await self.upload.start()

    @staticmethod
    async def _version_of(server: Server) -> str | None:
        """Return what a server calls its weights; None where its engines do not agree on that.

        One that was started anew has other weights than the others, until they are updated.
        """
        try:
            answer = await server.get("/weight_info")
        except StateConflict:
            return None
        return str(answer["weight_version"])

    async def _end(self) -> None:
        if self.pause.lost is not None:
            raise LeaseLost(self.pause.lost)
        await self.upload.finish(self.version)
        answers = await self.pause.release()
        answers.raise_first()

    async def _after_rollback(self, error: BaseException) -> Exception | None:
        """Bring all servers back; return what to raise, None where all are and nothing failed."""
        rollback = Rollback(self.fleet, self.pause, self.upload, self.restore, self.previous)
        outcomes = await rollback.run(error, self.rollback_budget)
        if all(outcome.state.serves_as_before for outcome in outcomes.values()):
            return error if isinstance(error, Exception) else None
        failed = UpdateFailed("The weights were not updated everywhere", outcomes)
        failed.__cause__ = error
        return failed

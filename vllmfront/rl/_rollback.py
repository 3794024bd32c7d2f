"""What becomes of all servers when an update fails: one state for all that is known."""

from collections.abc import Awaitable, Callable, Mapping

import anyio
import attrs

from vllmfront.rl._errors import (
    CallFailed,
    ServerOutcome,
    ServerState,
    StateConflict,
    WeightSyncError,
)
from vllmfront.rl._fleet import Answers, Fleet
from vllmfront.rl._lease import LeasedPause
from vllmfront.rl._progress import Phase
from vllmfront.rl._upload import Upload

ROLLBACK_BUDGET = 60.0
"""Seconds in which servers are brought back, whatever else happens."""

Restore = Callable[[Upload], Awaitable[object]]
"""Sends the weights that the servers had before. Their transfer engines have been shut down: it
initialises them if the backend needs that, then starts the upload and sends everything."""


@attrs.define(eq=False)
class Rollback:
    """Ends an update that failed, on all servers."""

    fleet: Fleet
    pause: LeasedPause
    upload: Upload
    restore: Restore | None
    previous: str | None
    """What the weights are called that ``restore`` sends."""

    async def run(self, cause: BaseException, budget: float) -> Mapping[str, ServerOutcome]:
        """Return what state each server is in afterwards, by its URL.

        Nothing was sent: all go on with what they have. Otherwise their weights are mixed, so they
        stay paused, unless ``restore`` brings the old ones back.

        Args:
            cause: Why the update failed.
            budget: Seconds; shielded against cancellation meanwhile.
        """
        outcomes = {
            server.url: ServerOutcome(ServerState.UNKNOWN, _error_at(server.url, cause))
            for server in self.fleet.servers
        }
        with anyio.move_on_after(budget, shield=True):
            if self.upload.finished:
                self._note(outcomes, await self.pause.release(), ServerState.UPDATED)
            elif not self.upload.chunks:
                await self._shut_down()
                self._note(outcomes, await self.pause.release(), ServerState.RESUMED)
            else:
                await self._shut_down()
                await self._bring_back(outcomes)
        return outcomes

    async def _shut_down(self) -> None:
        """Forget transfers that were begun; who has begun none says so, which is as good."""
        if self.upload.began:
            await self.fleet.call(
                lambda server, _place: server.post(
                    "/shutdown_weight_transfer_engine", repeatable=True
                ),
                Phase.ROLLED_BACK,
            )

    async def _bring_back(self, outcomes: dict[str, ServerOutcome]) -> None:
        held = await self.pause.take()
        self._note(outcomes, held, ServerState.HELD)
        if self.restore is None or held.errors:
            return
        upload = Upload(self.fleet, self.pause.owner, draft=self.upload.draft)
        try:
            await self.restore(upload)
            await upload.finish(self.previous)
        except WeightSyncError as error:
            for url, outcome in outcomes.items():
                outcomes[url] = attrs.evolve(outcome, error=_error_at(url, error) or outcome.error)
            return
        self._note(outcomes, await self.pause.release(), ServerState.RESTORED)

    def _note(
        self, outcomes: dict[str, ServerOutcome], answers: Answers, state: ServerState
    ) -> None:
        for url in answers.values:
            outcomes[url] = attrs.evolve(outcomes[url], state=state)
        for url, error in answers.errors.items():
            cause = outcomes[url].error
            known = ServerState.OTHERS if self._taken(cause) else self._state_by(error)
            outcomes[url] = ServerOutcome(known, cause or error)

    def _taken(self, error: CallFailed | None) -> bool:
        """Tell whether *error* says that somebody else has paused the server."""
        return isinstance(error, StateConflict) and error.holder not in {None, self.pause.owner}

    def _state_by(self, error: CallFailed) -> ServerState:
        """Return the state of a server that refused to be paused, or to go on."""
        if not isinstance(error, StateConflict):
            return ServerState.UNKNOWN
        if self._taken(error):
            return ServerState.OTHERS
        # Our own pause, which stays: somebody, maybe long before us, has left weights incomplete.
        return ServerState.HELD if error.call == "/resume" else ServerState.UNKNOWN


def _error_at(url: str, error: BaseException) -> CallFailed | None:
    return error.at(url) if isinstance(error, CallFailed) else None

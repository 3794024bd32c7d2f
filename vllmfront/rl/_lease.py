"""A pause of all servers under one name, renewed for as long as its holder is there."""

import math
import time
from collections.abc import Mapping
from typing import Literal

import anyio
import attrs

from vllmfront.rl._errors import CallFailed
from vllmfront.rl._fleet import Answers, Fleet
from vllmfront.rl._progress import Phase

Mode = Literal["abort", "wait", "keep"]

RENEWALS_A_LEASE = 3


@attrs.define(eq=False, kw_only=True)
class LeasedPause:
    """Holds all servers of a fleet paused."""

    fleet: Fleet
    owner: str
    mode: Mode
    clear_cache: bool
    lease: float | None
    """Seconds after which a server acts by itself if it hears nothing; None: never."""

    lost: str | None = attrs.field(default=None, init=False)
    """Why the pause may have ended behind our back."""

    async def take(self) -> Answers:
        """Pause all servers, and return what each said."""
        return await self._pause(Phase.PAUSED)

    async def release(self, only: Mapping[str, object] | None = None) -> Answers:
        """Let them go on, all or those that are named, and return what each said."""
        return await self.fleet.call(
            lambda server, _place: server.post(
                "/resume", params={"owner": self.owner}, repeatable=True
            ),
            Phase.RESUMED,
            only=only,
        )

    async def serve_renewal(self, body: anyio.CancelScope) -> None:
        """Renew the lease in time, until cancelled; when it is lost, cancel *body* and return."""
        if self.lease is None:
            return
        heard = dict.fromkeys((server.url for server in self.fleet.servers), time.monotonic())
        while True:
            await anyio.sleep(self.lease / RENEWALS_A_LEASE)
            answers = Answers({}, {})
            with anyio.move_on_after(self.lease / RENEWALS_A_LEASE):
                answers = await self._pause(None)
            heard |= dict.fromkeys(answers.values, time.monotonic())
            server, last = min(heard.items(), key=lambda item: item[1])
            if time.monotonic() - last >= self.lease:
                self.lost = self._why(server, answers.errors.get(server))
                body.cancel()
                return

    def _why(self, server: str, error: CallFailed | None) -> str:
        said = "it gave no answer" if error is None else str(error)
        return f"the pause of {server} could not be renewed for {self.lease:g} seconds: {said}"

    async def _pause(self, phase: Phase | None) -> Answers:
        params = {
            "mode": self.mode,
            "clear_cache": "true" if self.clear_cache else "false",
            "owner": self.owner,
            "lease": self.lease,
        }
        return await self.fleet.call(
            lambda server, _place: server.post("/pause", params=params, repeatable=True), phase
        )


def valid_lease(lease: float | None) -> float | None:
    """Return *lease*, seconds or None.

    Raises:
        ValueError: It is no positive number.
    """
    if lease is not None and not (0 < lease < math.inf):
        raise ValueError(f"lease is {lease}: give a positive number of seconds, or None")
    return lease

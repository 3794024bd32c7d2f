"""A pause of all servers under one name, renewed for as long as its holder is there."""

import math
import time
from collections.abc import Mapping
from typing import Literal

import anyio
import attrs

from vllmfront.rl._errors import CallFailed, StateConflict
from vllmfront.rl._fleet import Answers, Fleet
from vllmfront.rl._progress import Phase
from vllmfront.rl._server import Server

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

    held: set[str] = attrs.field(factory=set, init=False)
    """Servers, by their URL, that have said that they are paused."""

    lost: str | None = attrs.field(default=None, init=False)
    """Why the pause may have ended behind our back."""

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
        """Renew the lease in time, until cancelled; when it is lost, cancel *body* and return.

        From the first moment on: a pause that waits for requests, here or on another server, may
        take longer to be had than a lease lasts.
        """
        if self.lease is None:
            return
        heard = dict.fromkeys((server.url for server in self.fleet.servers), time.monotonic())
        while self.lost is None:
            await anyio.sleep(self.lease / RENEWALS_A_LEASE)
            answers = Answers({}, {})
            with anyio.move_on_after(self.lease / RENEWALS_A_LEASE):
                answers = await self._renew()
            conflicts = {
                server
                for server, error in answers.errors.items()
                if isinstance(error, StateConflict)
            }
            heard |= dict.fromkeys({*answers.values, *conflicts}, time.monotonic())
            self._judge(heard, answers.errors)
        body.cancel()

    def _judge(self, heard: Mapping[str, float], errors: Mapping[str, CallFailed]) -> None:
        """Note that the pause is lost where a server says so, or has been silent for too long."""
        for server, error in errors.items():
            # Who has not been paused yet has nothing to renew, and says so to who pauses it.
            if isinstance(error, StateConflict) and server in self.held:
                self.lost = f"{server} is not paused by us any more: {error}"
        server, last = min(heard.items(), key=lambda item: item[1])
        if self.lost is None and time.monotonic() - last >= (self.lease or math.inf):
            said = errors.get(server) or "it gave no answer"
            self.lost = (
                f"the pause of {server} could not be renewed for {self.lease:g} seconds: {said}"
            )

    async def _renew(self) -> Answers:
        params = {"owner": self.owner, "lease": self.lease}
        return await self.fleet.call(
            lambda server, _place: server.post("/renew_pause", params=params, repeatable=True)
        )

    async def take(self) -> Answers:
        """Pause all servers, or find them paused by us, and return what each said."""
        params = {
            "mode": self.mode,
            "clear_cache": "true" if self.clear_cache else "false",
            "owner": self.owner,
            "lease": self.lease,
        }

        async def pause(server: Server, _place: int) -> None:
            await server.post("/pause", params=params, repeatable=True)
            self.held.add(server.url)

        return await self.fleet.call(pause, Phase.PAUSED)


def valid_lease(lease: float | None) -> float | None:
    """Return *lease*, seconds or None.

    Raises:
        ValueError: It is no positive number.
    """
    if lease is not None and not (0 < lease < math.inf):
        raise ValueError(f"lease is {lease}: give a positive number of seconds, or None")
    return lease

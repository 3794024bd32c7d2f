"""``python -m tests.rl_soak.trainer``: does the tasks that come by its standard input.

It recovers as docs/rl.md tells trainers to, with nothing but ``vllmfront.rl`` and the routes.
"""

import contextlib
import os
import signal
import sys
import time
from typing import Literal, NoReturn, cast

import anyio
import attrs
import httpx
import msgspec

from tests.rl_soak._pieces import pieces_of
from tests.rl_soak._sync_call import SyncRefused, run_sync
from tests.rl_soak._task import Done, News, Task, Window
from vllmfront.rl import (
    CallFailed,
    Phase,
    Progress,
    ServerState,
    StateConflict,
    UpdateAbandoned,
    UpdateFailed,
    WeightSyncClient,
    WeightSyncError,
)

AGAIN_SECONDS = 0.15
"""Before the next attempt."""

AWAY_SECONDS = 0.4
"""The same where an engine is away, or has just come back: it will take some time."""

Mode = Literal["keep", "wait", "abort"]

IN_CALL_SECONDS = 0.002
"""From a call's begin until who makes it is killed."""

OTHERS_FIRST = 3
"""How often an update under way is left to whoever does it, before it counts as abandoned."""

_PHASES = {Phase.PAUSED: "paused", Phase.STARTED: "started", Phase.SENT: "sent"} | {
    Phase.FINISHED: "finished"
}


class NotThere(WeightSyncError):
    """Raised when a server does not serve the new weights although nobody said so."""


@attrs.define
class Attempts:
    """One task, from its first attempt to the one that works."""

    task: Task
    client: WeightSyncClient
    http: httpx.AsyncClient
    windows: list[Window] = attrs.field(factory=list)
    failures: list[str] = attrs.field(factory=list)
    needs_init: bool = True
    paused_at: float | None = None
    busy: int = 0
    """How often somebody else's update was seen in a row."""

    async def run(self) -> Done:
        deadline = time.monotonic() + self.task.budget
        while time.monotonic() < deadline:
            try:
                await self._attempt()
                return Done(updated=True, attempts=self.failures, windows=self.windows)
            except (WeightSyncError, SyncRefused, httpx.HTTPError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                await self._recover(error)
            await anyio.sleep(AGAIN_SECONDS)
        return Done(updated=False, attempts=self.failures, windows=self.windows)

    async def _attempt(self) -> None:
        task = self.task
        self.paused_at = None
        if self.needs_init:
            await self.client.init_transfer({})
            self.needs_init = False
            self._reach("initialized")
        if task.style == "sync":
            await run_sync(self.http, task, self._pieces(), self._reach)
        else:
            await self._through_window()
        await self._verify()

    async def _through_window(self) -> None:
        task = self.task
        async with self.client.update_window(
            mode=cast("Mode", task.mode),
            clear_cache=task.clear_cache,
            lease=task.lease,
            version=task.version,
            rollback_budget=20.0,
        ) as window:
            if task.gives_up and not self.failures:
                raise UpdateAbandoned("the loss was no number")
            for piece in self._pieces():
                if task.dies == "in_update":
                    self._die_soon()
                await window.send(piece)
            if task.dies == "in_finish":
                self._die_soon()
            closing = time.time()
        if self.paused_at is not None:
            self.windows.append(Window(self.paused_at, closing))

    def _pieces(self) -> list[dict[str, object]]:
        pieces = pieces_of(self.task.version, self.task.pieces)
        if self.task.spoiled and not self.failures:
            pieces[-1] = {}
        return pieces

    async def _verify(self) -> None:
        """Raise unless all engines have the new weights."""
        answer = await self.http.get("/weight_info")
        info = answer.json()
        if not answer.is_success or info.get("stale"):
            raise NotThere(f"/weight_info says {answer.status_code} {info}")
        if info["weight_version"] != self.task.version:
            # Somebody else's came after ours, which is theirs to get right; ours were there.
            self.failures.append(f"then {info['weight_version']} came")

    async def _recover(self, error: Exception) -> None:
        """Do what docs/rl.md asks for after *error*."""
        if isinstance(error, NotThere):
            await anyio.sleep(AWAY_SECONDS)
            return  # once more
        if isinstance(error, StateConflict) and error.holder not in {None, self.task.owner}:
            return  # wait for them
        if isinstance(error, StateConflict) and error.call == "/init_weight_transfer_engine":
            self.busy += 1
            if self.busy <= OTHERS_FIRST:
                return
        self.busy = 0
        if isinstance(error, UpdateFailed) and all(
            outcome.state is ServerState.UPDATED for outcome in error.outcomes.values()
        ):
            return
        with contextlib.suppress(CallFailed):
            await self.client.shutdown_transfer()
        self.needs_init = True

    def note(self, progress: Progress) -> None:
        if progress.phase in _PHASES:
            self._reach(_PHASES[progress.phase])

    def _reach(self, phase: str) -> None:
        """Take note that a step is done; end there if that is our fate."""
        if phase == "paused":
            self.paused_at = time.time()
        if self.task.dies == phase:
            self._die()

    def _die_soon(self) -> None:
        """End while the call is under way that comes next."""
        signal.signal(signal.SIGALRM, lambda *_: self._die())
        signal.setitimer(signal.ITIMER_REAL, IN_CALL_SECONDS)

    def _die(self) -> NoReturn:
        windows = self.windows
        # In a sync the server goes on by itself: what we read of it may be long over.
        if self.paused_at is not None and self.task.style == "window":
            windows = [*windows, Window(self.paused_at, time.time())]
        _say(News(dying=self.task.dies or "", windows=windows))
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


async def do_task(task: Task) -> Done:
    headers = {"authorization": f"Bearer {task.key}"}
    async with (
        httpx.AsyncClient(base_url=task.server, headers=headers, timeout=30.0) as http,
        WeightSyncClient(
            task.server,
            api_key=task.key,
            owner=task.owner,
            timeout=30.0,
            on_progress=lambda progress: attempts.note(progress),  # noqa: PLW0108 - set below
        ) as client,
    ):
        attempts = Attempts(task, client, http)
        return await attempts.run()


def _say(line: Done | News) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def main() -> None:
    for line in sys.stdin:
        task = msgspec.json.decode(line, type=Task)
        _say(anyio.run(do_task, task))


if __name__ == "__main__":
    main()

"""The same call on several servers at once."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import attrs

from vllmfront.rl._errors import CallFailed
from vllmfront.rl._progress import OnProgress, Phase, Progress
from vllmfront.rl._server import Server

Call = Callable[[Server, int], Awaitable[Any]]
"""What to do on one server; the number is its place in the fleet."""


@attrs.frozen
class Answers:
    """What each server answered, and what went wrong on which; by its URL."""

    values: Mapping[str, Any]
    errors: Mapping[str, CallFailed]

    def raise_first(self) -> None:
        """Raise one of the errors, if there are any; it knows of the others."""
        if not self.errors:
            return
        first, *others = self.errors.values()
        first.others = tuple(others)
        for other in others:
            first.add_note(f"and {other}")
        raise first


@attrs.frozen
class Fleet:
    """Servers that get the same weights."""

    servers: Sequence[Server]
    on_progress: OnProgress

    async def call(
        self,
        call: Call,
        phase: Phase | None = None,
        *,
        chunk: int | None = None,
        only: Mapping[str, object] | None = None,
    ) -> Answers:
        """Do one call on all servers at once and wait for all of them.

        A server that fails does not end the call on the others, so that what each has done is known
        afterwards. Cancelled, it is cancelled on all.

        Args:
            call: What to do.
            phase: What its success means for those who follow the progress.
            chunk: Told along with the phase.
            only: The URLs of the servers that are meant; None: all.
        """
        values: dict[str, Any] = {}
        errors: dict[str, CallFailed] = {}

        async def call_one(server: Server, place: int) -> None:
            began = time.perf_counter()
            try:
                values[server.url] = await call(server, place)
            except CallFailed as error:
                errors[server.url] = error
                return
            if phase is not None:
                seconds = time.perf_counter() - began
                self.on_progress(Progress(server.url, phase, seconds, chunk))

        async with anyio.create_task_group() as tasks:
            for place, server in enumerate(self.servers):
                if only is None or server.url in only:
                    tasks.start_soon(call_one, server, place)
        return Answers(values, errors)

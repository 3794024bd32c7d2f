"""One profiling session of all engines at a time."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import attrs
import trio

from vllmfront.control._background import Background
from vllmfront.control._calls import ControlCalls
from vllmfront.engine import EngineClient, release_of
from vllmfront.errors import (
    ControlCallFailed,
    RequestRejected,
    StateConflict,
    VllmFrontError,
)

_FIRST_WITH_KWARGS = (0, 33)

_START, _STOP = True, False
"""What the engines' one call for both is told."""


@attrs.frozen(kw_only=True)
class ProfilePlan:
    """How to profile; None leaves it to the engines' own configuration."""

    prefix: str | None = None
    """Of the names of what is written."""

    delay_iterations: int | None = None
    max_iterations: int | None = None
    kwargs: Mapping[str, Any] | None = None
    """For the profiler itself; engines before 0.33 take none."""


class Profiling:
    """Begins and ends sessions; orders take turns."""

    def __init__(self, client: EngineClient, calls: ControlCalls, background: Background) -> None:
        self._client = client
        self._calls = calls
        self._background = background
        self._turn = trio.Lock()
        self.active = False
        """Whether a session was begun, and not ended; an engine may have ended it by itself."""

        client.on_loss(self._note_loss)

    async def start(self, plan: ProfilePlan) -> None:
        """Begin a session; cancelled, it is begun all the same.

        Raises:
            StateConflict: There is one.
            RequestRejected: An engine is too old for what is asked.
            ControlCallFailed: An engine refused, and none profiles.
            ControlCallTimeout: An engine did not answer in time.
            EngineUnavailable: No engine serves.
        """
        await self._background.run(partial(self._start, plan))

    async def stop(self) -> None:
        """End the session; engines are told even if none is known of.

        Raises:
            ControlCallFailed: An engine refused.
            ControlCallTimeout: An engine did not answer in time.
            EngineUnavailable: No engine serves.
        """
        await self._background.run(self._stop)

    async def _start(self, plan: ProfilePlan) -> None:
        async with self._turn:
            if self.active:
                raise StateConflict(
                    "A profiling session is already active. Call /stop_profile before starting "
                    "another session.",
                    state="profiling",
                )
            args: list[Any] = [_START, plan.prefix, plan.delay_iterations, plan.max_iterations]
            if plan.kwargs is not None:
                self._check_kwargs()
                args.append(dict(plan.kwargs))
            try:
                await self._calls.order("start_profile", "profile", *args)
            except ControlCallFailed:
                await self._take_back()  # noqa: ASYNC120 (cancelled: the server ends)
                raise
            self.active = True

    async def _take_back(self) -> None:
        """Have those that have begun stop again."""
        await self._client.call_each(
            "profile", _STOP, None, None, None, timeout=self._calls.timeout, wait_for_all=True
        )

    async def _stop(self) -> None:
        async with self._turn:
            await self._calls.order("stop_profile", "profile", _STOP, None, None, None)
            self.active = False

    def _check_kwargs(self) -> None:
        for rank, one in self._client.info.registrations.items():
            if release_of(one.vllm_version) < _FIRST_WITH_KWARGS:
                raise RequestRejected(
                    f"profiler_kwargs needs engines of vLLM 0.33; engine {rank} runs "
                    f"{one.vllm_version}",
                    param="profiler_kwargs",
                )

    def _note_loss(self, _rank: int, _error: VllmFrontError) -> None:
        """Take note that an engine is lost: the next one profiles nothing, and may be asked to."""
        self.active = False

"""Orders to all engines at once; what one of them answers names it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import trio

from vllmfront.engine import EngineClient, Outcome
from vllmfront.errors import ControlCallFailed, ControlCallTimeout, UtilityCallTimeout


class ControlCalls:
    """Calls of the engines' utilities, each with a deadline and a name for what it is part of."""

    def __init__(self, client: EngineClient, *, timeout: float) -> None:
        """Give each call *timeout* seconds, unless it says otherwise."""
        self._client = client
        self.timeout = timeout

    async def order(
        self, phase: str, method: str, *args: Any, seconds: float | None = None
    ) -> list[Any]:
        """Have every engine do *method*; return their results, in the order of ranks.

        Args:
            phase: What it is for, as errors name it.
            method: The utility.
            args: Positional, plain data.
            seconds: Until it is given up; None: as configured.

        Raises:
            ControlCallFailed: Engines failed; all that are known to by then are named.
            ControlCallTimeout: Engines did not answer in time.
            EngineUnavailable: No engine serves.
            RequestRejected: An argument cannot be sent.
        """
        limit = self.timeout if seconds is None else seconds
        outcomes = await self._client.call_each(method, *args, timeout=limit)
        failures = {one.rank: one.error for one in outcomes if one.error is not None}
        if not failures:
            return [one.result for one in outcomes]
        answered = {
            rank: str(error)
            for rank, error in failures.items()
            if not isinstance(error, UtilityCallTimeout)
        }
        if answered:
            raise failed(phase, answered, outcomes)
        raise timed_out(phase, list(failures), limit)

    async def order_workers(
        self,
        phase: str,
        method: str,
        kwargs: Mapping[str, Any] | None = None,
        *,
        seconds: float | None = None,
    ) -> list[Any]:
        """Have every worker of every engine do *method*; return a list of results an engine.

        Raises:
            VllmFrontError: As ``order``.
        """
        return await self.order(
            phase, "collective_rpc", method, None, [], dict(kwargs or {}), seconds=seconds
        )

    async def try_workers(
        self,
        phase: str,
        deadline: float,
        method: str,
        ranks: Collection[int] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Have workers of *ranks*, or of all, do *method*; return the ranks on which they refused.

        Raises:
            ControlCallTimeout: Some did not answer until *deadline*, by the event loop's clock.
            EngineDied: Some engine is gone.
        """
        outcomes = await self._client.call_each(
            *("collective_rpc", method, None, [], dict(kwargs or {})),
            timeout=deadline - trio.current_time(),
            ranks=ranks,
            wait_for_all=True,
        )
        silent = [one.rank for one in outcomes if isinstance(one.error, UtilityCallTimeout)]
        if silent:
            raise timed_out(phase, silent, self.timeout)
        return [one.rank for one in outcomes if one.error is not None]


def failed(
    phase: str, failures: Mapping[int, str], outcomes: Sequence[Outcome]
) -> ControlCallFailed:
    """Return the error of *phase* that names the engines which failed."""
    listed = "; ".join(f"engine {rank}: {text}" for rank, text in failures.items())
    done = [outcome.rank for outcome in outcomes if outcome.error is None]
    rest = f" (done on {_engines(done)})" if done else ""
    return ControlCallFailed(f"{phase} failed on {listed}{rest}", phase=phase, failures=failures)


def timed_out(phase: str, ranks: Sequence[int], seconds: float) -> ControlCallTimeout:
    """Return the error of *phase* that names the engines which are silent."""
    text = f"no answer within {round(seconds, 2):g} seconds"
    return ControlCallTimeout(
        f"{phase} timed out: {_engines(ranks)} gave {text}; they may still be at it",
        phase=phase,
        failures=dict.fromkeys(ranks, text),
    )


def _engines(ranks: Sequence[int]) -> str:
    return ("engine " if len(ranks) == 1 else "engines ") + ", ".join(map(str, ranks))

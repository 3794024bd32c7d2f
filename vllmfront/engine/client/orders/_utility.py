"""Utility calls: methods of the engine called by name, answered over the output socket."""

import logging
import math
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs
import trio

from vllmfront.engine.client.membership import EngineRank, EngineState, Membership
from vllmfront.engine.transport import PeerGone
from vllmfront.engine.wire import UtilityAnswer, encode_utility
from vllmfront.errors import (
    RequestRejected,
    UtilityCallFailed,
    UtilityCallTimeout,
    VllmFrontError,
)

_LOGGER = logging.getLogger(__name__)

DEFAULT_CALL_SECONDS = 60.0
"""For calls that do not wait for requests to end; pauses and loads want more."""

_ID_BITS = 48
"""Of a random start: ids that count on from it stay within 64 bits."""

_SERVING = (EngineState.READY, EngineState.STALLED)


@attrs.frozen(kw_only=True)
class Outcome:
    """What became of a call to one engine."""

    rank: int
    result: Any = None
    error: VllmFrontError | None = None
    """A UtilityCallFailed or a UtilityCallTimeout, or why the engine is gone."""


class _Call:
    """One call to several engines, as its caller waits for it."""

    def __init__(self, method: str, ranks: Sequence[EngineRank], *, wait_for_all: bool) -> None:
        self.method = method
        self.results: dict[int, Any] = {}
        self.errors: dict[int, VllmFrontError] = {}
        self.missing = {rank.rank for rank in ranks}
        self.done = trio.Event()
        self._wait_for_all = wait_for_all

    def succeed(self, rank: EngineRank, result: Any) -> None:
        self.results[rank.rank] = result
        self._settle(rank)

    def fail(self, rank: EngineRank, error: VllmFrontError) -> None:
        if rank.rank not in self.missing:
            return
        self.errors[rank.rank] = error
        self._settle(rank)
        if not self._wait_for_all:
            self.done.set()

    def _settle(self, rank: EngineRank) -> None:
        self.missing.discard(rank.rank)
        if not self.missing:
            self.done.set()


class UtilityCalls:
    """Calls under way, by the id that each engine answers with."""

    def __init__(self, membership: Membership, *, client_index: int = 0) -> None:
        self._membership = membership
        self._client_index = client_index
        self._pending: dict[int, tuple[_Call, EngineRank]] = {}
        # Answers to a client that had our slot before us must not be taken for ours.
        self._last_id = secrets.randbits(_ID_BITS)
        self._success_observers: list[Callable[[str, Collection[EngineRank]], None]] = []
        membership.on_loss(self.fail_rank)

    @property
    def num_pending(self) -> int:
        """Answers that are awaited."""
        return len(self._pending)

    def on_success(self, observer: Callable[[str, Collection[EngineRank]], None]) -> None:
        """Call *observer* with each method that engines have done, and with those engines."""
        self._success_observers.append(observer)

    async def call(
        self,
        method: str,
        args: Sequence[Any],
        numbers: Collection[int] | None,
        seconds: float | None,
    ) -> list[Any]:
        """Call *method* on the ranks of these *numbers*, or on all that serve, at once.

        Cancelled, timed out or failed, it forgets the call; late answers are ignored.

        Returns:
            The results, in the order of ranks.

        Raises:
            UtilityCallFailed: An engine answered with a failure text.
            UtilityCallTimeout: An engine did not answer within *seconds*.
            EngineDied: An engine ended before it answered, or had before.
            EngineUnavailable: No engine serves, and none was named.
            RequestRejected: An argument cannot be sent, or there is no such rank.
        """
        ranks = self._chosen(numbers)
        results = await self.call_ranks(ranks, method, args, seconds)
        for observer in self._success_observers:
            observer(method, ranks)
        return results

    def _chosen(self, numbers: Collection[int] | None) -> list[EngineRank]:
        membership = self._membership
        if numbers is None:
            if membership.state.value not in _SERVING:
                raise membership.unavailable()
            return [rank for rank in membership.ranks.values() if rank.state.connected]
        chosen = []
        for number in sorted(numbers):
            rank = membership.ranks.get(number)
            if rank is None:
                raise RequestRejected(f"there is no engine {number}")
            if not rank.state.connected:
                raise rank.death()
            chosen.append(rank)
        return chosen

    async def call_ranks(
        self,
        ranks: Sequence[EngineRank],
        method: str,
        args: Sequence[Any],
        seconds: float | None,
    ) -> list[Any]:
        """Do as ``call``, also with ranks that are connected and do not serve yet."""
        call = await self._make(ranks, method, args, seconds, wait_for_all=False)
        for error in call.errors.values():
            raise error
        if call.missing:
            silent = ", ".join(map(str, sorted(call.missing)))
            raise UtilityCallTimeout(
                f"engine {silent} did not answer {method} within {seconds:g} seconds"
            )
        return [call.results[rank.rank] for rank in ranks]

    async def call_each(
        self,
        method: str,
        args: Sequence[Any],
        numbers: Collection[int] | None,
        seconds: float | None,
        *,
        wait_for_all: bool,
    ) -> list[Outcome]:
        """Do as ``call``, and return what became of it on each engine instead of raising.

        Args:
            method: Its name.
            args: Positional, plain data.
            numbers: Which ranks; None means all that serve.
            seconds: Until those that have not answered are given up.
            wait_for_all: Whether a failure of one leaves the others their time. Otherwise the call
                is over at once, and those that have not answered count as timed out.

        Raises:
            EngineUnavailable: No engine serves, and none was named.
            RequestRejected: An argument cannot be sent, or there is no such rank.
        """
        ranks = self._chosen(numbers)
        return await self.call_ranks_each(ranks, method, args, seconds, wait_for_all=wait_for_all)

    async def call_ranks_each(
        self,
        ranks: Sequence[EngineRank],
        method: str,
        args: Sequence[Any],
        seconds: float | None,
        *,
        wait_for_all: bool,
        then: tuple[str, Sequence[Any]] | None = None,
    ) -> list[Outcome]:
        """Do as ``call_each``, with these *ranks*.

        Each of them is told *then* right behind it, before it can do anything else; nobody waits
        for the answer to that.
        """
        call = await self._make(ranks, method, args, seconds, wait_for_all=wait_for_all, then=then)
        done = [rank for rank in ranks if rank.rank in call.results]
        if done:
            for observer in self._success_observers:
                observer(method, done)
        silence = UtilityCallTimeout(
            f"it had not answered {method}"
            + (" when another failed" if call.errors else f" within {seconds} seconds")
        )
        errors = dict.fromkeys(call.missing, silence) | call.errors
        return [
            Outcome(
                rank=rank.rank,
                result=call.results.get(rank.rank),
                error=errors.get(rank.rank),
            )
            for rank in ranks
        ]

    async def _make(
        self,
        ranks: Sequence[EngineRank],
        method: str,
        args: Sequence[Any],
        seconds: float | None,
        *,
        wait_for_all: bool,
        then: tuple[str, Sequence[Any]] | None = None,
    ) -> _Call:
        """Ask all of *ranks* at once; return when it is over, or its time is up."""
        call = _Call(method, ranks, wait_for_all=wait_for_all)
        if not ranks:
            await trio.lowlevel.checkpoint()
            return call
        ids = []
        try:
            for rank in ranks:
                self._last_id += 1
                frames = encode_utility(self._last_id, method, args, self._client_index)
                self._pending[self._last_id] = (call, rank)
                ids.append(self._last_id)
                try:
                    self._membership.send(rank, frames)
                    if then is not None:
                        self._tell(rank, *then)
                except PeerGone:
                    call.fail(rank, rank.death())
            with trio.move_on_after(math.inf if seconds is None else seconds):
                await call.done.wait()
        finally:
            for call_id in ids:
                self._pending.pop(call_id, None)
        return call

    def probe(self, rank: EngineRank) -> None:
        """Ask *rank* something, to see whether it answers; nobody waits for that."""
        try:
            self._tell(rank, "is_sleeping", [])
        except PeerGone:
            _LOGGER.debug("Engine %d left before it could be asked", rank.rank)

    def _tell(self, rank: EngineRank, method: str, args: Sequence[Any]) -> None:
        """Call *method* without waiting for its answer.

        Raises:
            PeerGone: The engine has left.
        """
        self._last_id += 1
        self._membership.send(rank, encode_utility(self._last_id, method, args, self._client_index))

    def answered(self, answer: UtilityAnswer) -> None:
        """Take an engine's answer; one that nobody waits for is ignored."""
        call, rank = self._pending.pop(answer.call_id, (None, None))
        if call is None or rank is None:
            _LOGGER.debug("Nobody waits for the answer to utility call %d", answer.call_id)
        elif answer.failure is None:
            call.succeed(rank, answer.result)
        else:
            call.fail(rank, UtilityCallFailed(answer.failure))

    def fail_rank(self, rank: EngineRank) -> None:
        """Fail every call that waits for *rank*, which is lost."""
        for call, awaited in list(self._pending.values()):
            if awaited is rank:
                call.fail(rank, rank.death())

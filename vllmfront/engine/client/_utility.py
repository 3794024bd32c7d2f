"""Utility calls: methods of the engine called by name, answered over the output socket."""

import logging
import math
import secrets
from collections.abc import Sequence
from typing import Any

import trio

from vllmfront.engine.client._membership import Membership
from vllmfront.engine.client._rank import EngineRank
from vllmfront.engine.transport import PeerGone
from vllmfront.engine.wire import UtilityAnswer, encode_utility
from vllmfront.errors import UtilityCallFailed, UtilityCallTimeout, VllmFrontError

_LOGGER = logging.getLogger(__name__)

DEFAULT_CALL_SECONDS = 60.0
"""For calls that do not wait for requests to end; pauses and loads want more."""

_ID_BITS = 48
"""Of a random start: ids that count on from it stay within 64 bits."""


class _Call:
    """One call to several engines, as its caller waits for it."""

    def __init__(self, method: str, ranks: Sequence[EngineRank]) -> None:
        self.method = method
        self.results: dict[int, Any] = {}
        self.missing = {rank.rank for rank in ranks}
        self.error: VllmFrontError | None = None
        self.done = trio.Event()

    def succeed(self, rank: EngineRank, result: Any) -> None:
        self.results[rank.rank] = result
        self.missing.discard(rank.rank)
        if not self.missing:
            self.done.set()

    def fail(self, error: VllmFrontError) -> None:
        if self.error is None:
            self.error = error
        self.done.set()


class UtilityCalls:
    """Calls under way, by the id that each engine answers with."""

    def __init__(self, membership: Membership, *, client_index: int = 0) -> None:
        self._membership = membership
        self._client_index = client_index
        self._pending: dict[int, tuple[_Call, EngineRank]] = {}
        # Answers to a client that had our slot before us must not be taken for ours.
        self._last_id = secrets.randbits(_ID_BITS)
        membership.on_loss(self.fail_rank)

    @property
    def num_pending(self) -> int:
        """Answers that are awaited."""
        return len(self._pending)

    async def call(
        self,
        ranks: Sequence[EngineRank],
        method: str,
        args: Sequence[Any],
        seconds: float | None,
    ) -> list[Any]:
        """Call *method* on *ranks* at once and return their results in that order.

        Cancelled, timed out or failed, it forgets the call; late answers are ignored.

        Raises:
            UtilityCallFailed: An engine answered with a failure text.
            UtilityCallTimeout: An engine did not answer within *seconds*.
            EngineDied: An engine ended before it answered.
            RequestRejected: An argument cannot be sent.
        """
        if not ranks:
            await trio.lowlevel.checkpoint()
            return []
        call = _Call(method, ranks)
        ids = []
        try:
            for rank in ranks:
                self._last_id += 1
                frames = encode_utility(self._last_id, method, args, self._client_index)
                self._pending[self._last_id] = (call, rank)
                ids.append(self._last_id)
                try:
                    self._membership.send(rank, frames)
                except PeerGone:
                    call.fail(rank.death())
            with trio.move_on_after(math.inf if seconds is None else seconds):
                await call.done.wait()
        finally:
            for call_id in ids:
                self._pending.pop(call_id, None)
        if call.error is not None:
            raise call.error
        if call.missing:
            silent = ", ".join(map(str, sorted(call.missing)))
            raise UtilityCallTimeout(
                f"engine {silent} did not answer {method} within {seconds:g} seconds"
            )
        return [call.results[rank.rank] for rank in ranks]

    def probe(self, rank: EngineRank) -> None:
        """Ask *rank* something, to see whether it answers; nobody waits for that."""
        self._last_id += 1
        try:
            self._membership.send(
                rank, encode_utility(self._last_id, "is_sleeping", [], self._client_index)
            )
        except PeerGone:
            _LOGGER.debug("Engine %d left before it could be asked", rank.rank)

    def answered(self, answer: UtilityAnswer) -> None:
        """Take an engine's answer; one that nobody waits for is ignored."""
        call, rank = self._pending.pop(answer.call_id, (None, None))
        if call is None or rank is None:
            _LOGGER.debug("Nobody waits for the answer to utility call %d", answer.call_id)
        elif answer.failure is None:
            call.succeed(rank, answer.result)
        else:
            call.fail(UtilityCallFailed(answer.failure))

    def fail_rank(self, rank: EngineRank) -> None:
        """Fail every call that waits for *rank*, which is lost."""
        for call, awaited in list(self._pending.values()):
            if awaited is rank:
                call.fail(rank.death())

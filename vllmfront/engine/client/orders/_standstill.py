"""Holding generation back: the gate closes, and engines are brought to stand still."""

import logging
from collections.abc import Sequence

import trio

from vllmfront.engine.client.membership import EngineRank, Membership, RankState
from vllmfront.engine.client.orders._hold_setup import HoldSetup
from vllmfront.engine.client.orders._utility import UtilityCalls
from vllmfront.engine.client.requests import Books, Child, Dispatch
from vllmfront.engine.metrics import TerminalCause
from vllmfront.engine.pause import Hold, HoldGate, PauseMode

_LOGGER = logging.getLogger(__name__)

ABORT_GRACE = 0.25
"""Seconds from an engine's word that it has aborted everything until what it forgot ends here."""

Caught = Sequence[tuple[str, Child]]
"""What was in flight at a moment, by the ids that it had."""


class Standstill:
    """What pauses and sleep have in common."""

    def __init__(
        self,
        gate: HoldGate,
        calls: UtilityCalls,
        membership: Membership,
        books: Books,
        dispatch: Dispatch,
    ) -> None:
        self.setup = HoldSetup(gate, calls, membership)
        """Tells engines of holds."""

        self._gate = gate
        self._membership = membership
        self._books = books
        self._dispatch = dispatch
        membership.setups.append(self.setup)
        gate.on_change(self._note_gate)

    def hold(self, hold: Hold) -> Caught:
        """Let nothing pass from now on; return what runs on engines, which are still to be told."""
        self._dispatch.send_posted()  # they were let in before
        self._gate.close(hold)
        caught = list(self._books.children.items())
        if hold.mode is PauseMode.ABORT:
            for child in list(self._books.room):
                self._books.finish_aborted(child, TerminalCause.ENGINE_ABORTED)
        return caught

    async def end_aborted(self, caught: Caught) -> None:
        """End those of *caught* that engines have aborted without a word about it."""
        if not caught:
            return
        await trio.sleep(ABORT_GRACE)
        for child in self._books.still_running(caught):
            _LOGGER.warning("An engine did not say that it has aborted %r", child)
            self._books.finish_aborted(child, TerminalCause.ENGINE_ABORTED)

    def serving(self) -> list[EngineRank]:
        """Return the engines that may generate; others are told when they join."""
        ranks = self._membership.ranks.values()
        return [
            one for one in ranks if one.state.connected and one.state is not RankState.PREPARING
        ]

    def _note_gate(self) -> None:
        if self._gate.closed:
            self._books.room.hold()
        else:
            self._books.room.release(trio.current_time())

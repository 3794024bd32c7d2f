"""Requests of a process of ours that died: engines still run them, and answer to its successor."""

import logging

from vllmfront.engine.client.membership import Membership
from vllmfront.engine.client.requests._ids import IdSource
from vllmfront.engine.transport import PeerGone
from vllmfront.engine.wire import encode_abort

_LOGGER = logging.getLogger(__name__)

_MOST_TOLD = 10_000
"""Ids that are remembered as told; what an engine had on its way when it was told is no news."""


class Orphans:
    """Tells engines to drop what nobody waits for."""

    def __init__(self, membership: Membership, ids: IdSource) -> None:
        self._membership = membership
        self._ids = ids
        self._told = set[str]()

    def __repr__(self) -> str:
        return f"<Orphans, {len(self._told)} were told of>"

    def note(self, internal_id: str) -> None:
        """Take note of an output for a request that nobody here has in flight."""
        if self._ids.made(internal_id) or internal_id in self._told:
            return  # it has ended here, and this was on its way
        if len(self._told) >= _MOST_TOLD:
            self._told.clear()
        self._told.add(internal_id)
        _LOGGER.info("Aborting request %s of a process of ours that is gone", internal_id)
        for engine in self._membership.ranks.values():
            if engine.state.connected:
                try:
                    self._membership.send(engine, encode_abort([internal_id]))
                except PeerGone:
                    continue

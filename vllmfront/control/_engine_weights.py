"""What engines are told about weights."""

import logging
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import trio

from vllmfront.control._calls import ControlCalls
from vllmfront.control._sync_state import SyncOrder
from vllmfront.engine import EngineClient, release_of

_LOGGER = logging.getLogger(__name__)

_FIRST_THAT_FORGETS_ADAPTERS = (0, 33)
"""The first release whose engines unload all adapters when the weights below them change."""


class EngineWeights:
    """Calls that are parts of an order; each ends by the order's deadline, by Trio's clock."""

    def __init__(self, client: EngineClient, calls: ControlCalls) -> None:
        self._client = client
        self._calls = calls

    async def pass_on(self, order: SyncOrder, kwargs: Mapping[str, Any], deadline: float) -> None:
        """Have all workers do what *order* says.

        Raises:
            VllmFrontError: As ``ControlCalls.order``.
        """
        method = order.path.removeprefix("/")
        seconds = deadline - trio.current_time()
        await self._calls.order_workers(method, method, kwargs, seconds=seconds)

    async def name(self, label: str, deadline: float) -> None:
        """Have all engines call their weights *label*.

        Raises:
            VllmFrontError: As ``ControlCalls.order``.
        """
        seconds = deadline - trio.current_time()
        await self._calls.order(
            "update_weight_version", "set_weight_version", label, seconds=seconds
        )

    async def break_off(self, deadline: float, ranks: Collection[int] | None) -> bool:
        """End an update that nobody will finish, so that *ranks* can be disconnected, and can run.

        Its start may have emptied layers, which its finish fills again, with what has come or with
        what they had. Workers that have forgotten the update because it failed have to begin one to
        finish it. Those that cannot finish at all forget an update that fails, and an empty list of
        chunks fails in any backend.

        Returns:
            Whether all have finished it.

        Raises:
            ControlCallTimeout: Some did not answer.
            EngineDied: Some engine is gone.
        """
        attempt = partial(self._calls.try_workers, SyncOrder.SHUTDOWN.path[1:], deadline)
        ranks = await attempt("finish_weight_update", ranks)
        if ranks:
            await attempt("start_weight_update", ranks)
            ranks = await attempt("finish_weight_update", ranks)
        if ranks:
            await attempt("update_weights", ranks, {"update_info": []})
        return not ranks

    async def load_adapters(self, deadline: float) -> None:
        """Have engines that have finished an update, and so forgotten adapters, load them again."""
        engines = self._client.info.registrations.values()
        if all(release_of(one.vllm_version) < _FIRST_THAT_FORGETS_ADAPTERS for one in engines):
            return
        with trio.move_on_at(deadline):
            await self._client.adapters.reload()
            return
        _LOGGER.warning(
            "After new weights, not all LoRA adapters were loaded again in time; engines load the "
            "others with the first request for each, which takes longer for that"
        )

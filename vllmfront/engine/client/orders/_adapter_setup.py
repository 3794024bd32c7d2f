"""Which engine has which adapter, and making them load and forget; a ``RankSetup``."""

import logging
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from vllmfront.engine._request import LoraRequest
from vllmfront.engine.client.membership import EngineRank, Membership
from vllmfront.engine.client.orders._utility import UtilityCalls
from vllmfront.engine.wire import encode_lora
from vllmfront.errors import (
    EngineDied,
    UtilityCallFailed,
    UtilityCallTimeout,
    VllmFrontError,
)

_LOGGER = logging.getLogger(__name__)

REMOVAL_SECONDS = 60.0
"""For an engine to forget an adapter, between two steps of its."""

Unusable = Callable[[LoraRequest, int, VllmFrontError], None]
"""Told which adapter an engine cannot load again, of what rank, and why."""


class AdapterSetup:
    """Every engine that gets requests has all adapters that the table holds."""

    def __init__(
        self,
        membership: Membership,
        calls: UtilityCalls,
        on_unusable: Unusable,
        *,
        seconds: float | None,
    ) -> None:
        """Give an engine *seconds* to load an adapter; None: it takes its time."""
        self._table = membership.adapters
        self._membership = membership
        self._calls = calls
        self._on_unusable = on_unusable
        self._seconds = seconds
        self._loaded: dict[int, dict[int, LoraRequest]] = {}
        """By rank: what its present process was made to load."""

        membership.on_loss(self._forget)
        membership.setups.append(self)

    def due(self, rank: int) -> bool:
        """Tell whether engine *rank* lacks an adapter."""
        return self._next_missing(rank) is not None

    async def apply(self, rank: int) -> None:
        """Load one adapter on engine *rank* that it lacks, unless it turns out unusable.

        Raises:
            EngineDied: The engine was lost.
        """
        lora = self._next_missing(rank)
        if lora is None:
            return
        try:
            await self.add([self._membership.ranks[rank]], lora)
        except (UtilityCallFailed, UtilityCallTimeout) as error:
            self._on_unusable(lora, rank, error)
        else:
            _LOGGER.info("Loaded LoRA adapter %r on engine %d", lora.name, rank)

    async def reload(self) -> None:
        """Load all adapters anew on the engines that serve: they have forgotten them meanwhile."""
        for engine in self.connected():
            self._forget(engine)
            while engine.state.connected and self.due(engine.rank):
                try:
                    await self.apply(engine.rank)
                except EngineDied:
                    break  # the next process is told as it joins

    async def add_everywhere(self, lora: LoraRequest) -> None:
        """Load *lora* on all engines that serve, also on those that join meanwhile.

        Raises:
            VllmFrontError: One of them could not; others may have it.
        """
        while missing := [one for one in self.connected() if self._has(one, lora) is not lora]:
            await self.add(missing, lora)

    async def add(self, engines: Sequence[EngineRank], lora: LoraRequest) -> None:
        """Load *lora* on *engines*; returns early where only one of several is lost meanwhile.

        Raises:
            VllmFrontError: One of them could not; others may have it.
        """
        # In place: an engine that served another frontend, or whose connection was broken, may
        # have another adapter under this id.
        order = encode_lora(replace(lora, load_inplace=True))
        lives = {engine: engine.incarnation for engine in engines}
        try:
            results = await self._calls.call(
                "add_lora", [order], [engine.rank for engine in engines], self._seconds
            )
        except EngineDied:
            if len(engines) == 1:
                raise
            return  # the others are asked again
        if not all(results):
            raise UtilityCallFailed(f"an engine refused LoRA adapter `{lora.name}`")
        for engine, life in lives.items():
            if engine.state.connected and engine.incarnation == life:
                self._note(engine, lora)

    async def remove(self, number: int, engines: Sequence[EngineRank]) -> None:
        """Let *engines* forget an adapter; what speaks against it is logged."""
        for engine in engines:
            self._loaded.get(engine.rank, {}).pop(number, None)
            try:
                # An engine that has evicted it says false, which comes to the same.
                await self._calls.call("remove_lora", [number], [engine.rank], REMOVAL_SECONDS)
            except VllmFrontError as error:
                _LOGGER.warning(
                    "Engine %d could not forget LoRA adapter %d: %s", engine.rank, number, error
                )

    def note_loaded(self, adapters: Iterable[LoraRequest]) -> None:
        """Take note that the engines which have joined have *adapters* already."""
        adapters = tuple(adapters)
        for engine in self.connected():
            for lora in adapters:
                self._note(engine, lora)

    def holders(self, number: int) -> list[EngineRank]:
        """Return the engines that were made to load the adapter of that id."""
        return [one for one in self.connected() if number in self._loaded.get(one.rank, {})]

    def connected(self) -> list[EngineRank]:
        """Return the engines that can be told."""
        return [engine for engine in self._membership.ranks.values() if engine.state.connected]

    def _next_missing(self, rank: int) -> LoraRequest | None:
        engine = self._membership.ranks[rank]
        return next((one for one in self._table.held if self._has(engine, one) is not one), None)

    def _has(self, engine: EngineRank, lora: LoraRequest) -> LoraRequest | None:
        return self._loaded.get(engine.rank, {}).get(lora.int_id)

    def _note(self, engine: EngineRank, lora: LoraRequest) -> None:
        self._loaded.setdefault(engine.rank, {})[lora.int_id] = lora

    def _forget(self, engine: EngineRank) -> None:
        self._loaded.pop(engine.rank, None)

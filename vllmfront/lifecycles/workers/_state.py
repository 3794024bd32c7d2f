"""The state of the service that main owns and workers mirror: engines, holds, adapters."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import trio

from vllmfront.engine import EngineClient, LoraRequest
from vllmfront.engine.pause import Hold, HoldKind, PauseMode, PausePhase
from vllmfront.lifecycles.workers._messages import HoldNews, State

Caught = Sequence[tuple[str, Any]]
"""What ``Pauses.hold`` has found in flight."""


def take_state(client: EngineClient) -> State:
    """Return how things are at main."""
    window = client.pauses.window
    return State(
        view=client.view(),
        holds=[_news_of(hold) for hold in client.gate.holds],
        adapters=list(client.adapters.served),
        standing=window is not None and window.phase is PausePhase.PAUSED,
    )


def _news_of(hold: Hold) -> HoldNews:
    return HoldNews(
        kind=hold.kind.value,
        mode=hold.mode.value,
        wall=hold.wall,
        owner=hold.owner,
        clear_cache=hold.clear_cache,
        level=hold.level,
        asleep=sorted(hold.asleep),
    )


class Mirror:
    """Brings a worker's client to where main says that things are; ``serve`` is its task."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._news: dict[str, HoldNews] = {}
        self._caught: Caught = ()
        """What was in flight when a pause began that aborts it."""

        self._standing = trio.Event()

    def take(self, state: State) -> None:
        """Take note of *state*."""
        client = self._client
        client.follow(state.view)
        client.adapters.mirror(state.adapters)
        self._take_holds(state.holds)
        if state.standing and self._caught:
            self._standing.set()

    async def serve(self) -> None:
        """End what engines have aborted without a word, until cancelled."""
        while True:
            await self._standing.wait()
            self._standing = trio.Event()
            caught, self._caught = self._caught, ()
            await self._client.pauses.standstill.end_aborted(caught)

    def _take_holds(self, news: Iterable[HoldNews]) -> None:
        wanted = {one.kind: one for one in news}
        for kind in set(self._news) - set(wanted):
            self._client.gate.open(HoldKind(kind))
        for kind, one in wanted.items():
            if self._news.get(kind) != one:
                caught = self._client.pauses.standstill.hold(_hold_of(one))
                if one.mode == PauseMode.ABORT:
                    self._caught = caught
        self._news = wanted


def _hold_of(news: HoldNews) -> Hold:
    return Hold(
        kind=HoldKind(news.kind),
        mode=PauseMode(news.mode),
        since=trio.current_time() - (time.time() - news.wall),
        wall=news.wall,
        owner=news.owner,
        clear_cache=news.clear_cache,
        level=news.level,
        asleep=frozenset(news.asleep),
    )


class Loans:
    """Adapters that main holds for as long as workers use them."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._lent: dict[int, dict[int, LoraRequest]] = {}

    def lend(self, number: int) -> None:
        """Take note that worker *number* is about to learn of all adapters that are served."""
        lent = self._lent.setdefault(number, {})
        for lora in self._client.adapters.served:
            if lora.int_id not in lent:
                self._client.adapters.lend(lora)
                lent[lora.int_id] = lora

    def take_back(self, number: int, lora_id: int) -> None:
        """Take note that worker *number* uses an adapter no more, and knows that it is gone."""
        lora = self._lent.get(number, {}).pop(lora_id, None)
        if lora is not None:
            self._client.adapters.take_back(lora)

    def end(self, number: int) -> None:
        """Take note that worker *number* is dead."""
        for lora in self._lent.pop(number, {}).values():
            self._client.adapters.take_back(lora)

"""LoRA adapters: loaded on all engines under one name, again on each that joins, and unloaded."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import trio
from msgspec.structs import replace

from vllmfront.engine._request import LoraRequest
from vllmfront.engine.client.membership import Membership
from vllmfront.engine.client.orders._adapter_setup import AdapterSetup
from vllmfront.engine.client.orders._jobs import Job, Turns
from vllmfront.engine.client.orders._utility import UtilityCalls
from vllmfront.errors import ModelNotFound, RequestRejected, StartupFailed, VllmFrontError

_LOGGER = logging.getLogger(__name__)


class Adapters:
    """What operators and routes do with adapters; ``serve`` is a task of it.

    Loading and unloading wait for each other where they name the same adapter. Every engine that
    gets requests has all adapters that are served.
    """

    def __init__(
        self,
        membership: Membership,
        calls: UtilityCalls,
        *,
        load_seconds: float | None,
    ) -> None:
        self._table = table = membership.adapters
        self._membership = membership
        self._setup = AdapterSetup(membership, calls, self._give_up, seconds=load_seconds)
        self._turns = Turns()
        self._jobs: list[Job[LoraRequest]] = []
        self._leftovers: list[int] = []
        """Ids that a load has failed under: some engine may hold them."""

        self.on_idle: Callable[[int], None] | None = None
        """Called with the id of an adapter that nobody uses here any more, in place of having the
        engines forget it: where another process does that."""

        self._fatal: StartupFailed | None = None
        self._wake = trio.Event()
        table.on_idle(self._notice)

    def __repr__(self) -> str:
        return f"<Adapters {self._table!r}>"

    @property
    def served(self) -> Sequence[LoraRequest]:
        """What requests may name, in the order of loading."""
        return self._table.served

    def find(self, name: str) -> LoraRequest | None:
        """Return the adapter that requests for the model *name* are for; None: there is none."""
        return self._table.find(name)

    def inherit(self, adapters: Iterable[LoraRequest], last_id: int) -> None:
        """Serve *adapters*, which another client has loaded on the engines that have joined.

        Args:
            adapters: With their ids.
            last_id: The highest that the other client has given to any.
        """
        self.adopt(adapters)
        self._table.last_id = max(self._table.last_id, last_id)
        self._setup.note_loaded(self._table.held)

    def mirror(self, adapters: Iterable[LoraRequest]) -> None:
        """Serve just *adapters*, which a client of another process has loaded."""
        wanted = {lora.name: lora for lora in adapters}
        for lora in self._table.served:
            if lora.name not in wanted:
                self._table.withdraw(lora.name)
        for name, lora in wanted.items():
            if self._table.find(name) != lora:
                self._table.serve(lora)

    def lend(self, lora: LoraRequest) -> None:
        """Hold *lora* for requests of another process, until ``take_back``."""
        self._table.begin(lora)

    def take_back(self, lora: LoraRequest) -> None:
        """Hold *lora* no longer for another process; ``lend`` was called before."""
        self._table.end(lora)

    def adopt(self, adapters: Iterable[LoraRequest]) -> None:
        """Serve *adapters* without asking the engines, which load them as they join.

        An id of 0 stands for a new one.
        """
        for one in adapters:
            lora = one if one.int_id else replace(one, int_id=self._table.new_id())
            self._table.serve(lora)

    async def load(self, lora: LoraRequest) -> LoraRequest:
        """Load an adapter on all engines and serve it.

        Cancelled, it is done all the same: engines cannot be stopped halfway.

        Args:
            lora: Its id does not count. With ``load_inplace`` it may replace one of its name.

        Returns:
            It, with the id that it has.

        Raises:
            RequestRejected: The name is taken, or the engines were started without adapters.
            EngineUnavailable: No engine serves.
            UtilityCallFailed: An engine could not load it; it is served by none then, or still
                the one that it was to replace.
            UtilityCallTimeout: An engine took too long for it; as above.
        """
        job = Job(partial(self._load, lora))
        self._jobs.append(job)
        self._notice()
        return await job.result()

    async def _load(self, lora: LoraRequest) -> LoraRequest:
        async with self._turns.of(lora.name):
            before = self._table.find(lora.name)
            if before is not None and not lora.load_inplace:
                raise RequestRejected(
                    f"LoRA adapter `{lora.name}` is already loaded. If you want to load the "
                    "adapter in place, set 'load_inplace' to true.",
                    param="lora_name",
                )
            self.check_enabled()
            if not self._membership.ready:
                raise self._membership.unavailable()
            number = self._table.new_id() if before is None else before.int_id
            lora = replace(lora, int_id=number, load_inplace=False)
            try:
                await self._setup.add_everywhere(lora)
            except VllmFrontError:
                await self._undo(lora, before)  # noqa: ASYNC120 (cancelled: the client ends)
                raise
            self._table.serve(lora)
        if before is not None and before.path == lora.path:
            _LOGGER.warning(
                "LoRA adapter %r was loaded anew from the same path %r: what the engines' prefix "
                "caches hold was computed with its old weights, and is used until it is evicted or "
                "reset; load changed weights from another path instead",
                lora.name,
                lora.path,
            )
        _LOGGER.info("Loaded LoRA adapter %r (id %d) from %r", lora.name, number, lora.path)
        return lora

    async def unload(self, name: str, int_id: int | None = None) -> None:
        """Serve an adapter no longer; what runs with it goes on, then engines forget it.

        Args:
            name: Of the adapter.
            int_id: Its id, for who wants to be sure.

        Raises:
            ModelNotFound: There is none of that name.
            RequestRejected: It has another id, or the engines were started without adapters.
        """
        async with self._turns.of(name):
            lora = self._table.find(name)
            if lora is None:
                self.check_enabled()
                raise ModelNotFound(f"The model `{name}` does not exist.", param="model")
            if int_id is not None and int_id != lora.int_id:
                raise RequestRejected(
                    f"requested lora_int_id {int_id} does not match loaded adapter `{name}` with "
                    f"id {lora.int_id}",
                    param="lora_int_id",
                )
            self._table.withdraw(name)
        uses = self._table.uses(lora.int_id)
        _LOGGER.info(
            "Unloaded LoRA adapter %r (id %d)%s",
            name,
            lora.int_id,
            f"; {uses} requests that run with it go on" if uses else "",
        )

    def check_enabled(self) -> None:
        """Refuse adapters where an engine has no support for them.

        Raises:
            RequestRejected: One was started without.
        """
        known = self._membership.info.registrations.values()
        if known and not all(one.supports_lora for one in known):
            raise RequestRejected("engine was not started with LoRA enabled")

    async def reload(self) -> None:
        """Load all adapters anew on the engines that serve: they have forgotten them meanwhile.

        One that cannot be loaded any more is served no more.
        """
        await self._setup.reload()

    async def serve(self) -> None:
        """Load and unload what is asked for, and let engines forget, until cancelled.

        Raises:
            StartupFailed: An adapter of the start could not be loaded.
        """
        async with trio.open_nursery() as nursery:
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                if self._fatal is not None:
                    raise self._fatal
                jobs, self._jobs = self._jobs, []
                for job in jobs:
                    nursery.start_soon(job.run)
                for number in self._table.take_idle():
                    if self.on_idle is not None:
                        self.on_idle(number)
                        continue
                    nursery.start_soon(self._setup.remove, number, self._setup.holders(number))
                leftovers, self._leftovers = self._leftovers, []
                for number in leftovers:
                    nursery.start_soon(self._setup.remove, number, self._setup.connected())

    def _give_up(self, lora: LoraRequest, rank: int, error: VllmFrontError) -> None:
        """Serve *lora* no more: engine *rank* could not load it and would die of its requests."""
        if not self._membership.has_served:
            why = f"LoRA adapter {lora.name!r} could not be loaded from {lora.path!r}: {error}"
            self._fatal = StartupFailed(why)
            self._membership.give_up(self._fatal)
            self._notice()
            return
        _LOGGER.error(
            "LoRA adapter %r could not be loaded again on engine %d, and is not served any more; "
            "load it anew once its files at %r are in order: %s",
            lora.name,
            rank,
            lora.path,
            error,
        )
        self._table.drop(lora.int_id)

    async def _undo(self, lora: LoraRequest, before: LoraRequest | None) -> None:
        """Let the engines forget *lora*, or give them back what it was to replace."""
        engines = self._setup.connected()
        if before is None:
            self._leftovers.append(lora.int_id)
            self._notice()
        elif len(engines) > 1:  # a lone engine keeps the old one when it cannot load the new one
            try:
                await self._setup.add(engines, before)
            except VllmFrontError as error:
                # What each engine has under this name, nobody knows.
                self._table.drop(before.int_id)
                _LOGGER.warning(
                    "LoRA adapter %r is not served any more: engines could neither load it in "
                    "place nor go back to what they had; load it anew: %s",
                    lora.name,
                    error,
                )

    def _notice(self) -> None:
        self._wake.set()

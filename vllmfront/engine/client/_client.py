"""The client: requests and calls go in, outputs come out of the streams."""

from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Any

import trio

from vllmfront.engine._output import OutputSink
from vllmfront.engine._request import EngineRequest
from vllmfront.engine.client._following import Following
from vllmfront.engine.client._overview import take_levels, take_snapshot
from vllmfront.engine.client._pulse import Pulse
from vllmfront.engine.client.entrance import Introduction, Recorder, Succession, WorkerSlots
from vllmfront.engine.client.membership import (
    ClientSnapshot,
    EngineInfo,
    EngineRank,
    EngineState,
    EngineView,
    Membership,
    RankState,
    take_view,
)
from vllmfront.engine.client.orders import (
    DEFAULT_CALL_SECONDS,
    Adapters,
    Outcome,
    Pauses,
    Sleeping,
    UtilityCalls,
)
from vllmfront.engine.client.reading import OutputReader, PushObserver
from vllmfront.engine.client.requests import (
    Books,
    Dispatch,
    OutputBuffer,
    Preparation,
    RequestChecks,
    RequestStream,
)
from vllmfront.engine.coordinator import Waves
from vllmfront.engine.guard import GuardLimits
from vllmfront.engine.handshake import Roster
from vllmfront.engine.metrics import EngineMetrics, TerminalCause
from vllmfront.engine.pause import HoldGate, PauseMode, PausePhase, PauseWindow
from vllmfront.errors import EngineDied, EngineUnavailable, VllmFrontError

RESUME_BUDGET = 10.0
"""Seconds that the end of a pause block waits for the engines to go on; the order stands."""


class EngineClient:
    """One link to one or more engines. Opened by ``open_engine_client``."""

    def __init__(
        self,
        *,
        adapters: Adapters,
        books: Books,
        calls: UtilityCalls,
        checks: RequestChecks,
        dispatch: Dispatch,
        gate: HoldGate,
        introduction: Introduction,
        membership: Membership,
        metrics: EngineMetrics,
        pauses: Pauses,
        preparation: Preparation,
        reader: OutputReader,
        recorder: Recorder | None = None,
        roster: Roster,
        sleeping: Sleeping,
        succession: Succession | None,
        waves: Waves,
        following: Following | None = None,
        worker_slots: WorkerSlots | None = None,
    ) -> None:
        self.adapters = adapters
        self.metrics = metrics
        self.introduced = introduction.done
        """Set once all frontends of the deployment know of each other: engines that are started
        before would wait for that."""

        self.waves = waves
        """What has engines that step together begin together; nothing for others."""

        self.succession = succession
        """How the client of another process takes over; None where somebody else does the
        handshake."""

        self.recorder = recorder
        """Keeps engines for a process that is started after this one; None where none are kept."""

        self.gate = gate
        """What every request passes; closed while generation is held back."""

        self.pauses = pauses
        """The present pause window, for who opens it here and ends it there; else ``pause``."""

        self.sleeping = sleeping
        """Sends engines to sleep and wakes them up."""

        self.worker_slots = worker_slots
        """What other processes of this server get; None where it has none."""

        entrance = None if succession is None else succession.entrance
        self.handshake_address = None if entrance is None else entrance.handshake_address
        """Where engines say HELLO; None where somebody else does the handshake."""

        self.socket_files: Sequence[str] = () if entrance is None else entrance.files()
        """Paths that a process which dies without closing its client leaves behind."""

        self._books = books
        self._calls = calls
        self._checks = checks
        self._dispatch = dispatch
        self._membership = membership
        self._preparation = preparation
        self._reader = reader
        self._roster = roster
        self._following = following
        self._changes = Pulse()
        membership.on_change(self._changes.beat)
        metrics.watch(partial(take_levels, membership, books, gate))

    def __repr__(self) -> str:
        return f"<EngineClient {self.state.value}, {self.num_in_flight} requests in flight>"

    @property
    def state(self) -> EngineState:
        """READY while any engine serves, once all have loaded or failed."""
        return self._membership.state.value

    @property
    def since(self) -> float:
        """When ``state`` became what it is, by ``trio.current_time()``."""
        return self._membership.state.since

    @property
    def error(self) -> VllmFrontError | None:
        """Why the state is not READY: the first cause, until it is READY again."""
        return self._membership.state.error

    @property
    def seconds_until_ready(self) -> float | None:
        """An estimate of when an engine that does not serve will, from the last time it loaded.

        None where nothing is known, or all engines serve.
        """
        return self._membership.seconds_until_ready()

    async def wait_ready(self) -> None:
        """Return once requests can be sent.

        Raises:
            VllmFrontError: Somebody has given up; what they said, or a StartupFailed where the
                engines did not come up in time.
        """
        state = await self.wait_state(lambda state: state in _SETTLED)
        if state is EngineState.FAILED:
            assert self.error is not None
            raise self.error.twin()

    async def wait_lost(self) -> VllmFrontError:
        """Return the cause once no engine is left that serves or loads; others may come."""
        return (await self._membership.state.wait_lost()).twin()

    async def wait_state(self, predicate: Callable[[EngineState], bool]) -> EngineState:
        """Return the first state that satisfies *predicate*; for observers of every change."""
        return await self._membership.state.wait(predicate)

    async def wait_change(self) -> None:
        """Return when the state of any engine has changed, as ``rank_state`` tells."""
        await self._changes.wait()

    def rank_state(self, rank: int) -> tuple[RankState, VllmFrontError | None]:
        """Return how engine *rank* is, and why, where it does not serve and that is known."""
        engine = self._membership.ranks[rank]
        return engine.state, engine.error

    @property
    def info(self) -> EngineInfo:
        """What the engines that have joined said about themselves."""
        return self._membership.info

    @property
    def max_model_len(self) -> int | None:
        """The least of all engines; None until one has joined."""
        return self.info.max_model_len

    @property
    def engine_version(self) -> str | None:
        """The engines' version of vLLM; None until one has joined."""
        return self.info.vllm_version

    @property
    def limits(self) -> GuardLimits:
        """What requests are checked against: what was configured, and what the engines said."""
        return self._checks.limits

    def set_limits(self, limits: GuardLimits) -> None:
        """Check requests against *limits* from now on; the engines' own are added."""
        self._checks.set_limits(limits)

    @property
    def num_in_flight(self) -> int:
        """Streams that have not ended; a request with several choices counts once."""
        return self._books.num_requests

    @property
    def num_waiting(self) -> int:
        """Streams that wait for an engine in place of a lost one; ``num_in_flight`` has them."""
        return self._books.room.num_streams

    @property
    def waiting_streams(self) -> Sequence[RequestStream]:
        """Those that wait for an engine in place of a lost one, as a copy."""
        return self._books.room.streams

    def submit(
        self, request: EngineRequest, sinks: Sequence[OutputSink] | None = None
    ) -> RequestStream:
        """Prepare *request*, to be sent by ``async with client.submit(...) as stream``.

        Args:
            request: With ``sampling.n`` above 1 it becomes as many engine requests.
            sinks: One for each choice, in order; None lets the stream collect the outputs.

        Raises:
            RequestRejected: An engine could not survive it; ``param`` names the field.
        """
        return self.submit_all([request], None if sinks is None else [sinks])

    def submit_one(self, request: EngineRequest, sink: OutputSink) -> RequestStream:
        """Prepare a request of one choice, as ``submit`` does, for less."""
        stream = RequestStream(self._books, self._dispatch, None)
        self._preparation.prepare_one(stream, request, sink)
        return stream

    def submit_all(
        self,
        requests: Sequence[EngineRequest],
        sinks: Sequence[Sequence[OutputSink]] | None = None,
    ) -> RequestStream:
        """Prepare several requests that begin and end together; as ``submit`` otherwise."""
        buffer = OutputBuffer() if sinks is None else None
        stream = RequestStream(self._books, self._dispatch, buffer)
        for _pause in self._preparation.prepare(stream, requests, sinks, buffer):
            pass
        return stream

    async def prepare_all(
        self,
        requests: Sequence[EngineRequest],
        sinks: Sequence[Sequence[OutputSink]] | None = None,
    ) -> RequestStream:
        """Do as ``submit_all``; a checkpoint only where there are very many choices."""
        buffer = OutputBuffer() if sinks is None else None
        stream = RequestStream(self._books, self._dispatch, buffer)
        for _pause in self._preparation.prepare(stream, requests, sinks, buffer):
            await trio.lowlevel.checkpoint()
        return stream

    def pushes_observed_by(self, observer: PushObserver) -> AbstractContextManager[None]:
        """Tell *observer* when sinks are called, for as long as the block runs."""
        return self._reader.observed_by(observer)

    def abort(self, public_ids: Collection[str]) -> int:
        """End requests by their public ids, as aborted, with the tokens they have so far.

        Returns:
            How many were running; a request with several choices counts once.
        """
        return self._books.abort_requests(public_ids, TerminalCause.ADMIN_ABORTED)

    def abort_all(self, cause: TerminalCause = TerminalCause.ADMIN_ABORTED) -> int:
        """End all requests as ``abort`` does; returns how many were running."""
        return self._books.abort_requests(None, cause)

    async def call_utility(
        self,
        method: str,
        *args: Any,
        timeout: float | None = DEFAULT_CALL_SECONDS,  # noqa: ASYNC109 (names who is silent)
        ranks: Collection[int] | None = None,
    ) -> list[Any]:
        """Call an engine's *method*; one result for each engine, in the order of ranks.

        Args:
            method: Its name; must never come from outside.
            args: Positional, plain data.
            timeout: Seconds until the call is given up, None waits as long as the engine lives.
            ranks: Which engines; None means all that serve.

        Raises:
            UtilityCallFailed: An engine answered with a failure text.
            UtilityCallTimeout: An engine did not answer in time.
            EngineDied: An engine ended, or had before.
            EngineUnavailable: No engine serves, and none was named.
            RequestRejected: There is no such rank, or an argument cannot be sent.
        """
        return await self._calls.call(method, args, ranks, timeout)

    async def call_each(
        self,
        method: str,
        *args: Any,
        timeout: float | None = DEFAULT_CALL_SECONDS,  # noqa: ASYNC109 (names who is silent)
        ranks: Collection[int] | None = None,
        wait_for_all: bool = False,
    ) -> list[Outcome]:
        """Do as ``call_utility``, and tell of each engine what became of it, instead of raising.

        Unless *wait_for_all*, it is over with the first failure; who has not answered by then
        counts as timed out.

        Raises:
            EngineUnavailable: No engine serves, and none was named.
            RequestRejected: There is no such rank, or an argument cannot be sent.
        """
        return await self._calls.call_each(method, args, ranks, timeout, wait_for_all=wait_for_all)

    @asynccontextmanager
    async def pause(
        self,
        mode: PauseMode | str = PauseMode.ABORT,
        *,
        clear_cache: bool = True,
        owner: str | None = None,
        lease: float | None = None,
    ) -> AsyncGenerator[PauseWindow]:
        """Have all engines stand still for as long as the block runs; nothing reaches them.

        Requests in flight end, are waited for, or freeze, as *mode* says. A block inside another
        one of the same *owner* shares its window, and leaves it to that one to end it.

        Args:
            mode: What becomes of requests in flight, and of new ones.
            clear_cache: Whether cached prefixes are forgotten.
            owner: Who pauses; others are told.
            lease: Seconds that the window lasts unless ``renew`` is called; None: as the block.

        Raises:
            StateConflict: Generation is paused already, by somebody else.
            EngineUnavailable: No engine has ever served, or none will.
            ControlCallFailed: An engine refused to pause, or to go on.
        """
        shared = self.pauses.window
        window = self.pauses.open(
            PauseMode(mode), clear_cache=clear_cache, owner=owner, lease=lease
        )
        try:
            await window.wait_paused()
            yield window
        finally:
            if window is not shared and self.pauses.window is window:
                self.pauses.end(force=True)
                with trio.move_on_after(RESUME_BUDGET, shield=True):
                    await window.wait(lambda phase: phase is not PausePhase.RESUMING)

    def unavailable(self) -> EngineUnavailable:
        """Return why no engine takes orders now."""
        return self._membership.unavailable()

    @property
    def ranks(self) -> list[int]:
        """All engines that are known of, whether they serve or not."""
        return list(self._membership.ranks)

    @property
    def serving_ranks(self) -> list[int]:
        """Engines that messages can be sent to."""
        ranks = self._membership.ranks.values()
        return [engine.rank for engine in ranks if engine.state.connected]

    def delay_engine(self, seconds: float, rank: int | None = None) -> None:
        """Take note that in so many seconds a process will be started for one *rank*, or for all.

        For who manages processes: estimates of when engines are back count from there.
        """
        start_at = trio.current_time() + seconds
        for engine in self._engines(rank):
            self._membership.engine_delayed(engine.rank, start_at)

    def expect_engine(self, rank: int | None = None) -> None:
        """Take note that a process was started for one *rank*, or for all: they load now.

        For who manages processes. One that does not get on for ``ready_timeout`` seconds, until
        it has joined, is lost again, with a named reason.
        """
        for engine in self._engines(rank):
            self._roster.expect(engine.rank, trio.current_time())
            self._membership.engine_expected(engine.rank)

    def give_up(self, error: VllmFrontError) -> None:
        """Take note that nobody will start another engine: the state is FAILED from now on.

        What is in flight, or waits, ends; *error* says why and becomes ``error``.
        """
        self._membership.give_up(error)

    def expect_end(self) -> None:
        """Take note that the engines are about to be stopped, until ``expect_engine``.

        What is lost now is no error, and nobody waits for another.
        """
        self._membership.note_ending()

    def report_death(self, reason: str | VllmFrontError, rank: int | None = None) -> None:
        """Take note that an engine's process ended, of one *rank* or of all.

        For who watches processes. Calls of theirs end with that error; requests go on elsewhere,
        or wait for another engine, where that is safe.
        """
        error = EngineDied(reason) if isinstance(reason, str) else reason
        for engine in self._engines(rank):
            self._membership.lose(engine, error)

    def view(self) -> EngineView:
        """Return how the engines stand, for clients of other processes that ``follow`` this one."""
        return take_view(self._membership)

    def follow(self, view: EngineView) -> None:
        """Take note of how the engines stand at the client that does the handshake."""
        assert self._following is not None, "this client was not opened to follow another"
        self._following.take(view)

    def on_change(self, observer: Callable[[], None]) -> None:
        """Call *observer* after each change of what ``view`` returns."""
        self._membership.on_change(observer)

    def on_loss(self, observer: Callable[[int, VllmFrontError], None]) -> None:
        """Call *observer* with the rank of each engine that is lost here, and why."""

        def lost(engine: EngineRank) -> None:
            if engine.error is not None:
                observer(engine.rank, engine.error)

        self._membership.on_loss(lost)

    def snapshot(self) -> ClientSnapshot:
        """Return how everything stands now."""
        return take_snapshot(self._membership, self._books, self._calls, self.pauses)

    def _engines(self, rank: int | None) -> Iterator[EngineRank]:
        for engine in self._membership.ranks.values():
            if rank is None or engine.rank == rank:
                yield engine


_SETTLED = (EngineState.READY, EngineState.FAILED)

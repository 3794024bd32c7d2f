"""The client: requests and calls go in, outputs come out of the streams."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import attrs
import trio
from msgspec.structs import replace

from vllmfront.engine._fan_out import fan_out
from vllmfront.engine._output import OutputSink
from vllmfront.engine._request import EngineRequest, SamplingParams
from vllmfront.engine.client._books import Books
from vllmfront.engine.client._buffer import OutputBuffer
from vllmfront.engine.client._child import Child
from vllmfront.engine.client._info import ClientSnapshot, EngineInfo, RankSnapshot
from vllmfront.engine.client._known import KnownParams
from vllmfront.engine.client._membership import Membership
from vllmfront.engine.client._rank import EngineRank
from vllmfront.engine.client._state import EngineState
from vllmfront.engine.client._stream import CHOICES_A_TURN, RequestStream
from vllmfront.engine.client._succession import Succession
from vllmfront.engine.client._utility import DEFAULT_CALL_SECONDS, UtilityCalls
from vllmfront.engine.guard import GuardLimits, adapt_request, check_request
from vllmfront.engine.metrics import EngineMetrics, RequestRecord, TerminalCause
from vllmfront.errors import EngineDied, RequestRejected, VllmFrontError


class EngineClient:
    """One link to one or more engines. Opened by ``open_engine_client``."""

    def __init__(
        self,
        *,
        books: Books,
        calls: UtilityCalls,
        membership: Membership,
        metrics: EngineMetrics,
        limits: GuardLimits,
        succession: Succession | None,
    ) -> None:
        self.metrics = metrics
        self.succession = succession
        """How the client of another process takes over; None where somebody else does the
        handshake."""

        entrance = None if succession is None else succession.entrance
        self.handshake_address = None if entrance is None else entrance.handshake_address
        """Where engines say HELLO; None where somebody else does the handshake."""

        self.socket_files: Sequence[str] = () if entrance is None else entrance.files()
        """Paths that a process which dies without closing its client leaves behind."""

        self._books = books
        self._calls = calls
        self._membership = membership
        self._configured_limits = limits
        self._limits = limits
        self._limits_basis: EngineInfo | None = None
        self._known_params = KnownParams()

    def __repr__(self) -> str:
        return f"<EngineClient {self.state.value}, {self.num_in_flight} requests in flight>"

    @property
    def state(self) -> EngineState:
        """READY while any engine serves, once all have loaded or failed. DEAD may end again."""
        return self._membership.state.value

    @property
    def error(self) -> VllmFrontError | None:
        """Why the state is DEAD: the first cause."""
        return self._membership.state.error

    async def wait_ready(self) -> None:
        """Return once requests can be sent.

        Raises:
            EngineDied: No engine is left.
            StartupFailed: The engines did not come up in time.
        """
        await self._membership.state.wait(lambda state: state is not EngineState.LOADING)
        if self.state is EngineState.DEAD:
            raise self._membership.unavailable()

    async def wait_dead(self) -> VllmFrontError:
        """Return the cause once no engine is left that serves or loads."""
        await self._membership.state.wait(lambda state: state is EngineState.DEAD)
        return self._membership.unavailable()

    async def wait_state(self, predicate: Callable[[EngineState], bool]) -> EngineState:
        """Return the first state that satisfies *predicate*; for observers of every change."""
        return await self._membership.state.wait(predicate)

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
        info = self._membership.info
        if self._limits_basis is not info:
            self._limits_basis = info
            self._known_params.clear()
            least = [info.max_model_len, self._configured_limits.max_model_len]
            self._limits = attrs.evolve(
                self._configured_limits,
                max_model_len=min((one for one in least if one is not None), default=None),
                num_ranks=max(self._membership.ranks) + 1,
            )
        return self._limits

    def set_limits(self, limits: GuardLimits) -> None:
        """Check requests against *limits* from now on; the engines' own are added."""
        self._configured_limits = limits
        self._limits_basis = None

    @property
    def num_in_flight(self) -> int:
        """Streams that have not ended; a request with several choices counts once."""
        return self._books.num_requests

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

    def submit_all(
        self,
        requests: Sequence[EngineRequest],
        sinks: Sequence[Sequence[OutputSink]] | None = None,
    ) -> RequestStream:
        """Prepare several requests that begin and end together; as ``submit`` otherwise."""
        buffer = OutputBuffer() if sinks is None else None
        stream = RequestStream(self._books, [], buffer)
        for _pause in self._prepare(stream, requests, sinks, buffer):
            pass
        return stream

    async def prepare_all(
        self,
        requests: Sequence[EngineRequest],
        sinks: Sequence[Sequence[OutputSink]] | None = None,
    ) -> RequestStream:
        """Do as ``submit_all``; a checkpoint only where there are very many choices."""
        buffer = OutputBuffer() if sinks is None else None
        stream = RequestStream(self._books, [], buffer)
        for _pause in self._prepare(stream, requests, sinks, buffer):
            await trio.lowlevel.checkpoint()
        return stream

    def _prepare(
        self,
        stream: RequestStream,
        requests: Sequence[EngineRequest],
        sinks: Sequence[Sequence[OutputSink]] | None,
        buffer: OutputBuffer | None,
    ) -> Iterator[None]:
        """Add a child for each choice; yield where other tasks should get a turn."""
        taken = set[str]()
        children = stream.children
        try:
            limits = self.limits
            for number, request in enumerate(requests):
                encoded = self._check(request, limits)
                choices = fan_out(adapt_request(request, self.engine_version), limits.max_choices)
                own = None if sinks is None else _fitting(sinks[number], request)
                for place, choice in enumerate(choices):
                    index = len(children)
                    if own is not None:
                        sink = own[place]
                    else:
                        assert buffer is not None
                        sink = buffer.sink(index)
                    child = _child(stream, index, request.request_id, choice, sink)
                    if choice.sampling is request.sampling:
                        child.encoded_sampling = encoded
                    self._books.prepare(child, taken)
                    children.append(child)
                    if index % CHOICES_A_TURN == CHOICES_A_TURN - 1:
                        yield
        except RequestRejected:
            self.metrics.count_cause(TerminalCause.REFUSED)
            raise

    def _check(self, request: EngineRequest, limits: GuardLimits) -> bytes | None:
        """Pass *request* through the guard; return the wire form of its sampling if it is known."""
        sampling = request.sampling
        encoded = self._known_params.find(sampling)
        if encoded is not None:
            check_request(request, limits, sampling_passed=True)
        else:
            check_request(_one_choice(request), limits)
            if sampling is not None and sampling.n == 1 and not request.prompt_embeds:
                encoded = self._known_params.add(sampling)
        return encoded

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
            EngineUnavailable: The engines are loading.
        """
        if self.state is not EngineState.READY:
            raise self._membership.unavailable()
        engines = self._membership.ready()
        if ranks is not None:
            engines = [self._serving(rank) for rank in sorted(ranks)]
        return await self._calls.call(engines, method, args, timeout)

    def expect_end(self) -> None:
        """Take note that the engines are about to be stopped: what is lost now is no error."""
        self._membership.ending = True

    def report_death(self, reason: str | VllmFrontError, rank: int | None = None) -> None:
        """Take note that an engine's process ended, of one *rank* or of all.

        For who watches processes. Every stream and call of theirs ends with one named error.
        """
        error = EngineDied(reason) if isinstance(reason, str) else reason
        for engine in self._membership.ranks.values():
            if rank is None or engine.rank == rank:
                self._membership.lose(engine, error)

    def snapshot(self) -> ClientSnapshot:
        """Return how everything stands now."""
        now, error = time.monotonic(), self.error
        return ClientSnapshot(
            state=self.state,
            error=None if error is None else str(error),
            ranks=tuple(
                RankSnapshot(
                    rank=engine.rank,
                    state=engine.state,
                    error=None if engine.error is None else str(engine.error),
                    incarnation=engine.incarnation,
                    in_flight=engine.load.in_flight,
                    seconds_since_output=now - engine.last_heard if engine.last_heard else None,
                )
                for engine in self._membership.ranks.values()
            ),
            requests=self._books.num_requests,
            engine_requests=len(self._books.children),
            pending_calls=self._calls.num_pending,
        )

    def _serving(self, rank: int) -> EngineRank:
        engine = self._membership.ranks.get(rank)
        if engine is None:
            raise RequestRejected(f"there is no engine {rank}")
        if engine.state is not EngineState.READY:
            raise engine.death()
        return engine


def _one_choice(request: EngineRequest) -> EngineRequest:
    """Return *request* as its choices are sent, for the guard to look at; their seeds differ."""
    sampling = request.sampling
    if not isinstance(sampling, SamplingParams) or sampling.n == 1:
        return request
    return replace(request, sampling=replace(sampling, n=1))


def _fitting(sinks: Sequence[OutputSink], request: EngineRequest) -> Sequence[OutputSink]:
    choices = 1 if request.sampling is None else request.sampling.n
    if len(sinks) != choices:
        raise ValueError(f"{choices} choices need as many sinks, not {len(sinks)}")
    return sinks


def _child(
    stream: RequestStream, index: int, public_id: str, request: EngineRequest, sink: OutputSink
) -> Child:
    arrival = request.arrival_time
    waited = max(0.0, time.time() - arrival) if arrival else 0.0
    record = RequestRecord(
        arrival=time.monotonic() - waited,
        prompt_tokens=len(request.prompt_token_ids),
        max_tokens=None if request.sampling is None else request.sampling.max_tokens,
    )
    return Child(stream, index, request=request, public_id=public_id, sink=sink, record=record)

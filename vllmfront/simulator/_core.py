"""A simulated engine core: messages in, messages out, and time in between. Pure."""

from collections import deque
from collections.abc import Iterator

import attrs

from vllmfront.engine import EngineError, EngineOutput, EngineRequest, FinishReason
from vllmfront.engine.wire import Abort, Add, StartWave, Utility
from vllmfront.simulator._arrivals import Arrivals
from vllmfront.simulator._config import SimulatorConfig
from vllmfront.simulator._endings import PAUSED, ended, failure, finished_ids, pooled
from vllmfront.simulator._judge import fatal_fault
from vllmfront.simulator._messages import (
    Answer,
    Death,
    LoadNotice,
    Message,
    Raw,
    StepOutput,
    StepStats,
    Vanishing,
)
from vllmfront.simulator._pooling import embed
from vllmfront.simulator._prefix import PrefixCache
from vllmfront.simulator._scheduler import Pause, Scheduler
from vllmfront.simulator._script import Act
from vllmfront.simulator._structured import constraint_fault
from vllmfront.simulator._tokens import TokenSource
from vllmfront.simulator._utility import Utilities, WhenIdle


@attrs.define(eq=False, init=False)
class SimulatedCore:
    """One rank. ``receive`` takes what came in; ``advance`` returns what there is to say."""

    config: SimulatorConfig
    dead: str | None
    """Why this core ended; it says nothing more."""

    coordinated: bool
    """Whether there is a coordinator to be told of this core's load."""

    _source: TokenSource
    _scheduler: Scheduler
    _utilities: Utilities
    _inbox: deque[Add | Abort | Utility | StartWave]
    """What came during a step: an engine's loop looks at it between steps."""

    _pending: list[tuple[Utility, WhenIdle]]
    _outbox: list[Message]
    _arrivals: Arrivals
    _owes_stats: bool
    """Whether a message with statistics alone is due: it follows the last request's end."""

    _told_load: tuple[int, int]

    def __init__(self, config: SimulatorConfig, rank: int = 0) -> None:
        self.config = config
        self.dead = None
        self.coordinated = False
        self._source = TokenSource(config.seed, config.vocab_size, config.first_token_id)
        self._scheduler = Scheduler(
            config, self._source, PrefixCache(config.block_size, config.num_gpu_blocks)
        )
        self._utilities = Utilities(
            config, self._scheduler, self._abort_all, self._holds_work, rank=rank
        )
        self._inbox = deque()
        self._pending = []
        self._outbox = []
        self._arrivals = Arrivals(config, self._source)
        self._owes_stats = False
        self._told_load = (0, 0)

    def receive(self, message: Add | Abort | Utility | StartWave, now: float) -> None:
        """Take one message; what it leads to comes out of ``advance``."""
        if self.dead is not None:
            return
        if isinstance(message, Abort):
            # Aborts overtake: they count in the step in flight, and again in their turn.
            self._scheduler.remove(message.request_ids)
        self._inbox.append(message)
        if self._listens():
            self._drain(now)

    def wake_at(self, now: float) -> float | None:
        """Return when ``advance`` is due without another message; None: never."""
        if self.dead is not None:
            return None
        if self._outbox:
            return now
        return self._scheduler.wake_at(now)

    def advance(self, now: float) -> list[Message]:
        """Do everything that is due at *now*; return what to send, in order."""
        if self.dead is None and self._scheduler.due is not None and self._scheduler.due <= now:
            self._finish_step(now)
        if self._listens():
            self._drain(now)
            self._settle(now)
            if self.dead is None and self._listens() and not self._begin(now):
                self._settle(now)
        self._tell_load(now)
        said, self._outbox = self._outbox, []
        return said

    def _listens(self) -> bool:
        """Tell whether the loop is between two steps, where it looks at what came in."""
        return self._scheduler.due is None

    def _begin(self, now: float) -> bool:
        """Start a step if there is anything to do."""
        return self._scheduler.begin(now)

    def _holds_work(self) -> bool:
        """Tell whether anything is left to do, now or later."""
        return self._scheduler.holds_work()

    def _tell_load(self, now: float) -> None:
        """Tell the coordinator of the load, whenever it has changed."""
        load = len(self._scheduler.waiting), len(self._scheduler.running)
        if self.coordinated and load != self._told_load and self.dead is None:
            self._told_load = load
            self._outbox.append(LoadNotice(timestamp=now, stats=self._levels()))

    def _levels(self) -> StepStats:
        return self._scheduler.levels()

    def _drain(self, now: float) -> None:
        while self._inbox and self.dead is None and self._listens():
            message = self._inbox.popleft()
            if isinstance(message, Add):
                self._add(message, now)
            elif isinstance(message, Abort):
                self._scheduler.remove(message.request_ids)
            elif isinstance(message, Utility):
                self._call(message, now)
            else:
                self._wake_up(message)

    def _wake_up(self, call: StartWave) -> None:
        """Take a wake-up call, which means nothing to ranks that do not step together."""

    # Requests

    def _add(self, add: Add, now: float) -> None:
        request, client, request_id = add.request, add.client_index, add.internal_id
        if self._utilities.rejects_new and not request.abort_immediately:
            self._refuse(request_id, client, now, PAUSED)
            return
        if request.sampling is None and request.pooling is None:
            self._refuse(request_id, client, now, None)
            return
        fault = fatal_fault(add, self.config, self._scheduler.find(request_id) is not None)
        if fault is not None:
            self._die(fault)
            return
        try:
            origin = self._origin(request)
        except (RuntimeError, ValueError) as error:
            self._die(str(error))
            return
        if request.abort_immediately:
            return
        if request.pooling is not None:
            self._pool(add, now)
            return
        constraint = request.sampling.structured_outputs if request.sampling else None
        reason = constraint_fault(constraint) if constraint is not None else None
        if reason is not None:
            self._refuse(request_id, client, now, EngineError("validation_error", reason))
            return
        self._scheduler.add(self._arrivals.sequence(add, now, origin), now)
        self._note_wave(add)

    def _note_wave(self, add: Add) -> None:
        """Take note of the wave that a request carries, where that means anything."""

    def _origin(self, request: EngineRequest) -> int:
        """Return where the histories of *request* begin; loads its adapter if need be.

        Raises:
            ValueError: It cannot be loaded.
            RuntimeError: There is no room for it.
        """
        lora = request.lora
        if lora is None:
            return self._source.start()
        self._utilities.loras.load(lora)
        return self._source.start(self._utilities.loras.weights(lora))

    def _pool(self, add: Add, now: float) -> None:
        vector = embed(add.request, self._source, self.config.embedding_size)
        self._outbox.append(pooled(add, vector, now))

    def _refuse(self, request_id: str, client: int, now: float, error: EngineError | None) -> None:
        if not self.config.reports_errors:
            error = None
        self._outbox.append(ended([request_id], client, now, FinishReason.ERROR, error))

    def _abort_all(self, now: float) -> list[StepOutput]:
        by_client: dict[int, list[str]] = {}
        for sequence in self._scheduler.remove():
            by_client.setdefault(sequence.client, []).append(sequence.request_id)
        return [ended(ids, client, now, FinishReason.ABORT) for client, ids in by_client.items()]

    # Utility calls

    def _call(self, call: Utility, now: float) -> None:
        self._utilities.now = now
        try:
            result = self._utilities.call(call.method, call.args)
        except Exception as error:  # noqa: BLE001  # what a call raises is its answer
            self._outbox.append(failure(call, error, now))
            return
        self._outbox += self._utilities.take_said()
        if isinstance(result, WhenIdle):
            self._pending.append((call, result))
        else:
            self._outbox.append(
                Answer(client=call.client_index, timestamp=now, call_id=call.call_id, result=result)
            )

    def _settle(self, now: float) -> None:
        """Give the answers, and the statistics, that waited until no work was left."""
        if self._owes_stats and not self._scheduler.has_requests:
            self._owes_stats = False
            stats = self._scheduler.take_stats()
            self._outbox.append(
                StepOutput(
                    client=0,
                    timestamp=now,
                    stats=stats,
                    weight_version=self._utilities.weight_version,
                )
            )
        if not self._pending or self._holds_work():
            return
        pending, self._pending = self._pending, []
        for call, waiting in pending:
            result = waiting.then(now)
            self._outbox.append(
                Answer(client=call.client_index, timestamp=now, call_id=call.call_id, result=result)
            )

    # Steps

    def _finish_step(self, now: float) -> None:
        finished = self._scheduler.finish(now)
        by_client: dict[int, list[tuple[str, list[int] | EngineOutput]]] = {}
        for sequence, row in finished.rows:
            by_client.setdefault(sequence.client, []).append((sequence.request_id, row))
        stats = self._scheduler.take_stats() if self.config.stats else None
        for act_sequence, act in finished.acts:
            if act.raw is not None:
                self._outbox.append(Raw(act_sequence.client, act.raw))
        for client, rows in by_client.items():
            self._outbox.append(
                StepOutput(
                    client=client,
                    timestamp=now,
                    rows=rows,
                    stats=stats,
                    finished=finished_ids(rows) if self.coordinated else None,
                    weight_version=self._utilities.weight_version,
                )
            )
            stats = None  # one client hears them
        self._owes_stats = self.config.stats
        self._end_by_script(act for _, act in finished.acts)

    def _end_by_script(self, acts: Iterator[Act]) -> None:
        for act in acts:
            if act.die:
                self._die("the script says so")
            elif act.vanish:
                self.dead = "the script says so"
                self._outbox.append(Vanishing())

    def _die(self, reason: str) -> None:
        self.dead = reason
        self._outbox.append(Death(reason))

    # Operators

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self._scheduler.waiting)

    @property
    def paused(self) -> bool:
        return self._scheduler.pause is not Pause.NOTHING

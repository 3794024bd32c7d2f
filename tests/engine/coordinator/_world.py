"""Ranks, a coordinator and a frontend in one place, without sockets or tasks.

Messages of one channel arrive in order; how channels relate to each other is up to the test, which
delivers them one by one. So is the time.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from tests.simulator._frontend import request
from vllmfront.engine import EngineOutput
from vllmfront.engine.coordinator._follower import Follower
from vllmfront.engine.coordinator._judgement import CoordinatorJudgement
from vllmfront.engine.wire import (
    READY_GATE,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Abort,
    Add,
    Registration,
    StartWave,
    Utility,
    decode_request,
)
from vllmfront.simulator import SimulatorConfig
from vllmfront.simulator._frames import FrameWriter
from vllmfront.simulator._lockstep import LockstepGroup
from vllmfront.simulator._lockstep_core import LockstepCore
from vllmfront.simulator._messages import (
    Answer,
    Death,
    LoadNotice,
    Message,
    StepOutput,
    WaveNotice,
)

STEP_SECONDS = 0.01

Channel = tuple[str, int]
Delivery = Callable[[], None]


class World:
    """What a test does is what a frontend does; ``deliver`` and ``advance`` do the rest."""

    def __init__(self, version: str, ranks: int, *, external: bool = False) -> None:
        """Begin with idle ranks that have all subscribed.

        Args:
            version: Of vLLM.
            ranks: How many.
            external: Whether the frontend follows the coordinator of somebody else.
        """
        self.now = 0.0
        self.channels: dict[Channel, deque[Delivery]] = {}
        self.open: dict[str, int] = {}
        """Ranks of the requests that are in flight, by id."""

        self.answered: list[tuple[int, int, object]] = []
        """Rank, call and result of each call, a failure as text."""

        self._config = SimulatorConfig(
            handshake="tcp://127.0.0.1:1",
            ranks=ranks,
            lockstep=True,
            vllm_version=version,
            step_time=STEP_SECONDS,
            sync_interval=4,
            stats=False,
        )
        self._registration = Registration(
            max_model_len=8, vllm_version=version, data_parallel_size=ranks
        )
        self._writers = [FrameWriter(self._config, rank) for rank in range(ranks)]
        self.coordinator = CoordinatorJudgement(ranks, self._publish_wake, self._publish_state)
        self.follower = Follower(range(ranks), self._send_notice) if external else None
        self.cores: list[LockstepCore] = []
        self._calls = 0
        self.restart_ranks()

    # What can happen

    def add(self, request_id: str, rank: int, tokens: int) -> None:
        """Send a request, and whatever follows from that."""
        wave = self.coordinator.state.wave if self.follower is None else self.follower.state.wave
        asked = request(request_id, (5, 6, 7), max_tokens=tokens)
        self._to_rank(
            rank, Add(internal_id=request_id, request=asked, client_index=0, current_wave=wave)
        )
        self.open[request_id] = rank
        if self.follower is not None:
            self.follower.requested(rank, self.now)
        else:
            self.coordinator.wakes.requested(self.coordinator.state)
            self.coordinator.tick(self.now)

    def abort(self, request_id: str) -> None:
        self._to_rank(self.open.pop(request_id), Abort([request_id]))

    def call(self, method: str, *args: object) -> int:
        """Call all ranks; return the number of the call."""
        self._calls += 1
        for rank in range(len(self.cores)):
            self._to_rank(
                rank, Utility(client_index=0, call_id=self._calls, method=method, args=list(args))
            )
        return self._calls

    def hold(self, *, held: bool) -> None:
        """Close the gate for wake-up calls, or open it."""
        wakes = self.coordinator.wakes if self.follower is None else self.follower.wakes
        wakes.hold(held=held)

    def reconnect(self, rank: int) -> None:
        """Break a rank's connections to the coordinator, with what is on its way, and mend them."""
        for kind in ("wake", "report"):
            self.channels.pop((kind, rank), None)
        self.coordinator.take_subscription([UNSUBSCRIBE])
        self.coordinator.take_subscription([SUBSCRIBE])

    def restart_ranks(self) -> None:
        """Kill all ranks, if there are any, and start others, which have joined on return."""
        self.open.clear()
        for core in self.cores:
            core.dead = "killed"
        for rank in range(len(self.cores)):
            self.coordinator.take_subscription([UNSUBSCRIBE])
            self.coordinator.engine_lost(rank)
            for kind in ("request", "wake", "report"):
                self.channels.pop((kind, rank), None)
        # Loading takes a minute; all that is said of the old ones arrives meanwhile.
        for kind in ("notice", "state"):
            while (kind, 0) in self.channels:
                self.deliver((kind, 0))
        group = LockstepGroup(self._config.ranks)
        self.cores = []
        for rank in range(self._config.ranks):
            core = LockstepCore(self._config, rank)
            core.coordinated = True
            group.join(rank, lambda: None)
            core.join(group)
            self.cores.append(core)
        for rank in range(self._config.ranks):
            self.coordinator.take_subscription([SUBSCRIBE])
            self.coordinator.engine_joined(rank, self._registration)
            if self.follower is not None:
                self.follower.wakes.set_wanted(wanted=not self._config.wakes_others)

    # Time and messages

    def deliver(self, channel: Channel) -> None:
        """Let the oldest message of *channel* arrive, and its receiver do what it does at once."""
        self.channels[channel].popleft()()
        if not self.channels[channel]:
            del self.channels[channel]
        self._run_cores()

    def advance(self, seconds: float) -> None:
        """Let time pass without any message arriving."""
        until = self.now + seconds
        while self.now < until:
            self._pass_time(until)

    def settle(self, seconds: float) -> None:
        """Let all arrive at once, while time passes."""
        until = self.now + seconds
        while True:
            while self.channels:
                self.deliver(next(iter(self.channels)))
            if self.now >= until:
                return
            self._pass_time(until)

    def _pass_time(self, until: float) -> None:
        """Let time pass up to the next moment at which something is due, or to *until*."""
        wakes = [core.wake_at(self.now) for core in self.cores]
        due = [wake for wake in wakes if wake is not None] + [self.coordinator.due]
        if self.follower is not None:
            due.append(self.follower.wakes.due)
        self.now = min(until, max(self.now, min(due)))
        self._run_cores()
        self._tick()

    def hung(self) -> str | None:
        """Say what has not come to rest; None: everything has."""
        if self.open:
            return f"{self.open} hang; {[core.waves for core in self.cores]}"
        if any(core.waves.running for core in self.cores) or self.coordinator.state.running:
            return f"{[core.waves for core in self.cores]}, {self.coordinator.state}"
        return None

    def answers(self, call: int) -> list[object]:
        return [result for _, number, result in self.answered if number == call]

    def _tick(self) -> None:
        self.coordinator.tick(self.now)
        if self.follower is not None:
            self.follower.tick(self.now)

    def _run_cores(self) -> None:
        """Let each core do what it can now; an event loop would, before anything else arrives."""
        busy = True
        while busy:
            busy = False
            for rank, core in enumerate(self.cores):
                said = core.advance(self.now)
                for message in said:
                    self._take(rank, message)
                wake = core.wake_at(self.now)
                busy = busy or bool(said) or (wake is not None and wake <= self.now)

    def _take(self, rank: int, message: Message) -> None:
        if isinstance(message, LoadNotice | WaveNotice):
            frames = self._writers[rank].notice(message)
            self._put(("report", rank), partial(self.coordinator.take_report, frames))
        elif isinstance(message, StepOutput):
            for request_id, row in message.rows:
                if isinstance(row, EngineOutput) and row.finish_reason is not None:
                    self.open.pop(request_id, None)
        elif isinstance(message, Answer):
            self.answered.append((rank, message.call_id, message.failure or message.result))
        else:
            assert not isinstance(message, Death), message

    def _to_rank(self, rank: int, message: Add | Abort | Utility) -> None:
        self._put(("request", rank), lambda: self.cores[rank].receive(message, self.now))

    def _publish_wake(self, frames: Sequence[bytes]) -> None:
        if frames[0] == READY_GATE:
            return
        call = decode_request(frames)
        assert isinstance(call, StartWave)
        for rank in range(len(self.cores)):
            self._put(("wake", rank), partial(self._wake_rank, rank, call))

    def _wake_rank(self, rank: int, call: StartWave) -> None:
        self.cores[rank].receive(call, self.now)

    def _publish_state(self, frames: Sequence[bytes]) -> None:
        if self.follower is not None:
            self._put(("state", 0), partial(self.follower.take, frames[0]))

    def _send_notice(self, frames: Sequence[bytes]) -> None:
        self._put(("notice", 0), lambda: self.coordinator.take_notice(frames, self.now))

    def _put(self, channel: Channel, delivery: Delivery) -> None:
        self.channels.setdefault(channel, deque()).append(delivery)

"""The calls that an engine answers besides generating; each a method of the same name.

A method returns its result, or ``WHEN_IDLE`` if the answer has to wait until no work is left;
what it raises becomes the failure text.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from vllmfront.engine.wire import decode_lora
from vllmfront.simulator._config import SimulatorConfig
from vllmfront.simulator._loras import LoraCache
from vllmfront.simulator._messages import StepOutput
from vllmfront.simulator._scheduler import Pause, Scheduler
from vllmfront.simulator._weights import WEIGHT_METHODS, WeightWorker

PAUSE_MODES = ("abort", "wait", "keep")
SINCE_0_33 = frozenset({"pause_generation"})
PROFILE_ARGUMENTS_0_32 = 4
RELEASABLE = frozenset({"weights", "kv_cache"})
"""Parts of the engine's memory that sleep lets go and ``wake_up`` brings back."""


@attrs.frozen
class WhenIdle:
    """The answer to give once no work is left: what *then* returns or raises."""

    then: Callable[[float], Any]


@attrs.define(eq=False)
class Utilities:
    """What the calls act upon. Pure; *now* is set by the caller before each call."""

    config: SimulatorConfig
    scheduler: Scheduler
    abort_all: Callable[[float], list[StepOutput]]
    """Ends every request, with an output for each."""

    holds_work: Callable[[], bool]
    """Whether the engine has anything left to do."""

    on_pause: Callable[[], None] = attrs.field(default=lambda: None)
    """Called when the scheduler was paused, before that is complete."""

    may_resume: Callable[[], bool] = attrs.field(default=lambda: True)
    """Asked before a resume; what it raises is the answer, and False ignores the call."""

    on_resume: Callable[[], None] = attrs.field(default=lambda: None)
    rank: int = 0

    now: float = 0.0
    said: list[StepOutput] = attrs.field(factory=list)
    """What a call makes the engine say before its answer; the caller takes it."""

    weight_version: str = "default"
    weights: WeightWorker = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda self: WeightWorker(
                self.scheduler.source,
                place=self.rank,
                enabled=self.config.weight_transfer,
                draft_model=self.config.draft_model,
            ),
            takes_self=True,
        ),
    )
    rejects_new: bool = False
    """Whether new requests are refused, not queued: a user's pause since 0.33."""

    asleep: set[str] = attrs.field(factory=set)
    profiling: bool = False
    loras: LoraCache = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda self: LoraCache(self.config.max_loras, self.config.missing_loras),
            takes_self=True,
        ),
    )

    def take_said(self) -> list[StepOutput]:
        """Return, and forget, what the last call said."""
        said, self.said = self.said, []
        return said

    def find(self, method: str) -> Callable[..., Any]:
        """Return the call of that name.

        Raises:
            AttributeError: this engine's release has no such call.
        """
        if method not in CALLS or (method in SINCE_0_33 and self.config.vllm_version == "0.32.0"):
            raise AttributeError(f"'EngineCoreProc' object has no attribute '{method}'")
        found: Callable[..., Any] = getattr(self, method)
        return found

    def call(self, method: str, args: list[Any]) -> Any:
        """Make one call; what it raises is the engine's failure."""
        found = self.find(method)
        limit = len(inspect.signature(found).parameters)
        if method == "profile" and self.config.vllm_version == "0.32.0":
            limit = PROFILE_ARGUMENTS_0_32
        if len(args) > limit:
            raise ValueError  # noqa: TRY003, RUF100  # the real one says nothing either
        return found(*args)

    def get_supported_tasks(self) -> list[str]:
        return list(self.config.supported_tasks)

    def is_sleeping(self) -> bool:
        return self.is_scheduler_paused() or bool(self.asleep)

    def is_scheduler_paused(self) -> bool:
        return self.scheduler.pause is not Pause.NOTHING

    def pause_scheduler(self, mode: str = "abort", clear_cache: bool = True) -> Any:
        if mode not in PAUSE_MODES:
            raise ValueError(f"Invalid pause mode: {mode}")
        if mode == "abort":
            self.said += self.abort_all(self.now)
        self.scheduler.pause = Pause.ALL if mode == "keep" else Pause.NEW
        self.on_pause()

        def finish(now: float) -> None:
            if clear_cache:
                self.scheduler.reset_prefix_cache(now, preempt=True)

        return self._when_idle(finish)

    def pause_generation(self, mode: str = "abort", clear_cache: bool = True) -> Any:
        answer = self.pause_scheduler(mode, clear_cache)
        self.rejects_new = mode != "keep"
        return answer

    def resume_scheduler(self) -> None:
        if not self.may_resume():
            return
        self.rejects_new = False
        self.scheduler.pause = Pause.NOTHING
        self.on_resume()

    def sleep(self, level: int = 1, mode: str = "abort") -> Any:
        paused = self.pause_scheduler(mode, level >= 1)

        def finish(now: float) -> None:
            if isinstance(paused, WhenIdle):
                paused.then(now)
            if level >= 1:
                self.asleep = set(RELEASABLE)

        return self._when_idle(finish)

    def wake_up(self, tags: list[str] | None = None) -> bool:
        self.asleep -= RELEASABLE if tags is None else set(tags)
        if not self.asleep:
            self.resume_scheduler()
        return not self.asleep

    def release_kv_cache_memory(self) -> None:
        if not self.is_scheduler_paused() or self.scheduler.has_requests:
            raise RuntimeError("release_kv_cache_memory() requires a completed pause first")
        if self.asleep:
            raise RuntimeError(
                "release_kv_cache_memory() requires all executor memory to be resident"
            )
        self.scheduler.reset_prefix_cache(self.now, preempt=True)
        self.asleep = {"kv_cache"}

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        del reset_connector  # there is none
        return self.scheduler.reset_prefix_cache(self.now, preempt=reset_running_requests)

    def reset_mm_cache(self) -> None:
        """Nothing multimodal is kept."""

    def reset_encoder_cache(self) -> None:
        """Nothing encoded is kept."""

    def add_lora(self, lora: list[Any]) -> bool:
        self.loras.load(decode_lora(lora))
        return True

    def remove_lora(self, lora_id: int) -> bool:
        return self.loras.remove(lora_id)

    def pin_lora(self, lora_id: int) -> bool:
        self.loras.pin(lora_id)
        return True

    def list_loras(self) -> list[int]:
        self.loras.require()
        return self.loras.ids

    def profile(
        self,
        is_start: bool = True,
        profile_prefix: str | None = None,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
        profiler_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        del profile_prefix, delay_iterations, max_iterations, profiler_kwargs
        self.profiling = is_start

    def get_weight_version(self) -> str:
        return self.weight_version

    def set_weight_version(self, weight_version: str) -> None:
        self.weight_version = weight_version

    def save_sharded_state(
        self, path: str, pattern: str | None = None, max_size: int | None = None
    ) -> None:
        """There is no state to save."""

    def execute_dummy_batch(self) -> None:
        """A step without requests changes nothing."""

    def compute_weight_checksums(self) -> list[dict[str, str]]:
        """One worker, whose only weights are those of its token source."""
        return [self.weights.checksums()]

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: list[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        del timeout  # the one worker answers at once
        if method == "compute_weight_checksums":
            return list(self.compute_weight_checksums())
        if method in WEIGHT_METHODS:
            return [getattr(self.weights, method)(*(args or []), **(kwargs or {}))]
        if method not in WORKER_METHODS:
            raise NotImplementedError(f"Method {method!r} is not implemented.")
        return [None]

    def _when_idle(self, finish: Callable[[float], None]) -> Any:
        if self.holds_work():
            return WhenIdle(finish)
        return finish(self.now)


CALLS: Final = frozenset(
    name
    for name, value in vars(Utilities).items()
    if inspect.isfunction(value)
    and not name.startswith("_")
    and name not in ("find", "call", "take_said")
)
WORKER_METHODS: Final = frozenset({"check_health", "checkpoint_prepare", "checkpoint_restore"})

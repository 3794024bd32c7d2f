"""What a simulated engine is told about itself."""

import attrs
from attrs import validators

from vllmfront.simulator._script import Script

VLLM_VERSIONS = ("0.32.0", "0.33.0")
"""Releases whose behaviour at the boundary is imitated."""

RANKS = 2**16
"""How many there can be: a rank is two bytes on the wire."""


@attrs.frozen(kw_only=True)
class SimulatorConfig:
    """One set of ranks that join one frontend's handshake; all times are in seconds."""

    handshake: str
    """The ZeroMQ address of the frontend's handshake socket: ``tcp://HOST:PORT``."""

    ranks: int = attrs.field(default=1, validator=validators.ge(1))
    start_rank: int = attrs.field(default=0, validator=validators.ge(0))

    lockstep: bool = False
    """Whether the ranks step together, as those of a mixture of experts do."""

    sync_interval: int = attrs.field(default=16, validator=validators.ge(1))
    """Steps after which such ranks agree whether to go on."""

    step_time: float = attrs.field(default=0.01, validator=validators.ge(0))
    """How long one decoding step takes, however many requests take part."""

    prefill_time_per_token: float = attrs.field(default=0.0, validator=validators.ge(0))
    """Added to a step for each prompt token that it computes and the prefix cache lacks."""

    max_batch: int = attrs.field(default=256, validator=validators.ge(1))
    """Requests that run together; more of them wait."""

    tokens_per_output: int = attrs.field(default=1, validator=validators.ge(1))
    """Tokens a request gets in one step, as with speculative decoding."""

    seed: int = 0
    vocab_size: int = attrs.field(default=32000, validator=validators.ge(2))
    first_token_id: int = attrs.field(default=0, validator=validators.ge(0))
    """Ids below it are never generated of the engine's own accord (control tokens, say)."""

    eos_chance: float = attrs.field(default=0.0, validator=[validators.ge(0), validators.le(1)])
    """How likely a request's EOS id is the next token; 0 lets requests run to their length."""

    max_model_len: int = attrs.field(default=32768, validator=validators.ge(2))
    block_size: int = attrs.field(default=16, validator=validators.ge(1))
    num_gpu_blocks: int = attrs.field(default=16384, validator=validators.ge(1))
    prefix_caching: bool = True
    priority_scheduling: bool = False
    """Whether ``priority`` orders the waiting requests; otherwise first come, first served."""

    vllm_version: str = attrs.field(default="0.33.0", validator=validators.in_(VLLM_VERSIONS))
    dtype: str = "bfloat16"
    stats: bool = True
    """Whether scheduler statistics and request events are sent."""

    local: bool = False
    headless: bool = True
    supported_tasks: tuple[str, ...] = ("generate",)
    embedding_size: int = attrs.field(default=64, validator=validators.ge(1))
    max_loras: int = attrs.field(default=0, validator=validators.ge(0))
    """Adapters that fit; 0 means that the engine was started without support for them."""

    missing_loras: tuple[str, ...] = ()
    """Paths where engines find no adapter; all others hold one."""

    weight_transfer: bool = True
    """Whether the engine was started with a backend that takes new weights."""

    draft_model: bool = False
    """Whether it has a draft model, which can get new weights of its own."""

    sleep_mode: bool = False
    start_delay: float = attrs.field(default=0.0, validator=validators.ge(0))
    """Between INIT and registration: the time that a model takes to load."""

    rejoin_after: float | None = attrs.field(
        default=None, validator=validators.optional(validators.ge(0))
    )
    """How long a rank that has ended stays away before it joins anew; None: for ever."""

    first_life: int = attrs.field(default=0, validator=validators.ge(0))
    """Which life of its ranks this is, for a supervisor that starts them again itself."""

    script: Script = attrs.field(factory=Script)

    def __attrs_post_init__(self) -> None:
        if self.first_token_id >= self.vocab_size:
            raise ValueError("first_token_id must be below vocab_size")
        if self.start_rank + self.ranks > RANKS:
            raise ValueError(f"start_rank and ranks go beyond rank {RANKS - 1}")

    @property
    def wakes_others(self) -> bool:
        """Whether a rank that gets a request has idle ones woken that step with it (since 0.33)."""
        return self.vllm_version != "0.32.0"

    @property
    def reports_errors(self) -> bool:
        """Whether outputs carry an ``error`` map (since 0.33)."""
        return self.vllm_version != "0.32.0"

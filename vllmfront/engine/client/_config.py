"""How a client finds its engines."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
from attrs import validators

from vllmfront.engine._request import LoraRequest
from vllmfront.engine.guard import GuardLimits
from vllmfront.engine.pause import LeaseAction
from vllmfront.engine.routing import RankLoad, RoutingPolicy


@attrs.frozen(kw_only=True)
class Deployment:
    """Engines of which other frontends serve some, or that several programs start."""

    size: int
    """All of them."""

    lockstep: bool = False
    """Whether they step together."""

    first_frontend: str | None = None
    """Where the frontend is that does the handshake and coordinates; None: it is ours."""


@attrs.frozen(kw_only=True)
class EngineClientConfig:
    """Who the engines are, where they find us, and what they can bear."""

    engine_count: int = attrs.field(default=1, validator=[validators.ge(1), validators.le(65536)])
    start_rank: int = attrs.field(default=0, validator=validators.ge(0))
    """The lowest of the expected ranks; the others follow it."""

    handshake_host: str = "127.0.0.1"
    """Where the handshake socket is bound, and with it the data sockets where they use TCP."""

    handshake_port: int = 0
    """0 takes any free port; see ``EngineClient.handshake_address``."""

    deployment: Deployment | None = None
    """What our engines are a part of; None: of nothing, and one program starts them all."""

    state_file: Path | None = None
    """Where engines are kept for the next client, in a process that is started when this one has
    stopped or was killed; None keeps none. It takes TCP and a ``handshake_port``."""

    advertised_host: str | None = None
    """What engines connect to, where that is not the host that we bind to."""

    all_local: bool = False
    """Every engine runs on this host and is ours: data travels over Unix sockets."""

    watch_loading: bool = True
    """Whether an engine is lost when its connection ends while it loads. False where somebody
    watches its process, and will know better why it ended."""

    ready_timeout: float = attrs.field(default=600.0, validator=validators.gt(0))
    """Seconds in which some engine must do a step of the first start-up (HELLO, READY, and the
    registration), and later each process that takes another's place."""

    input_fd: int | None = None
    """With ``output_fd``: listening descriptors to take over. Somebody else does the handshake
    then, and only registrations are awaited."""

    output_fd: int | None = None
    coordinated: bool = False
    """Whether the engines step together, and we coordinate them. Only for who does the handshake,
    for a mixture of experts on more than one engine."""

    coordinator_address: str | None = None
    """Where the coordinator of somebody else publishes, for who does not do the handshake. None:
    engines tell, if there is one."""

    client_index: int = attrs.field(default=0, validator=validators.ge(0))
    """The place of ``input_fd`` and ``output_fd`` among the pairs that engines were told."""

    follows: bool = False
    """With those descriptors: a client of another process of this server does the handshake, and
    tells all about the engines: see ``EngineClient.follow``."""

    loads: Callable[[int], RankLoad] | None = None
    """Makes the load of each rank, where other processes of this server know of it as well."""

    workers: int = attrs.field(default=0, validator=validators.ge(0))
    """How many other processes of this server have clients that follow ours."""

    routing: RoutingPolicy = RoutingPolicy.LEAST_LOADED
    """By what an engine is chosen for a request that names none."""

    sharers: int = attrs.field(default=1, validator=validators.ge(1))
    """How many clients send requests to these engines, ours included."""

    first_id: int | None = None
    """Where the count of request ids begins; None begins anywhere."""

    limits: GuardLimits = attrs.field(
        factory=lambda: GuardLimits(vocab_size=None, max_model_len=None)
    )
    """What is known of the engines' limits; ``EngineClient.set_limits`` tells more later, and
    the engines themselves tell their ``max_model_len``."""

    adapters: Sequence[LoraRequest] = ()
    """LoRA adapters that every engine loads before it serves; an id of 0 stands for a new one."""

    adapter_seconds: float | None = None
    """Within which an engine must have loaded an adapter; None: it takes its time."""

    randomize_ids: bool = True
    """Whether internal ids get a suffix. False where clients promise unique ids."""

    stall_timeout: float = attrs.field(default=60.0, validator=validators.gt(0))
    """Seconds of silence, with requests in flight, after which an engine counts as STALLED."""

    stall_restart: float | None = attrs.field(
        default=None, validator=validators.optional(validators.gt(0))
    )
    """Seconds of such silence after which it is lost, so that whoever manages it restarts it."""

    recovery_wait: float = attrs.field(default=30.0, validator=validators.ge(0))
    """Seconds that a request may wait for an engine in place of one that was lost; 0 waits for
    none, and a request of a lost engine ends with it unless another engine serves."""

    request_retries: int = attrs.field(default=2, validator=validators.ge(0))
    """How often one engine request may be sent again after its engine was lost."""

    continuation: bool = True
    """Whether a request that has delivered tokens goes on elsewhere when its engine is lost."""

    pause_lease_action: LeaseAction = LeaseAction.RESUME
    """What ends a pause window whose owner has not renewed its lease."""

    count_metrics: bool = True
    """False counts terminal causes and faults alone."""

    histogram_bounds: Mapping[str, tuple[float, ...]] = attrs.field(factory=dict)
    """Bucket bounds by family, where they are not the reference's."""

    def __attrs_post_init__(self) -> None:
        if (self.input_fd is None) != (self.output_fd is None):
            raise ValueError("input_fd and output_fd go together")
        if self.state_file is not None and (self.all_local or not self.handshake_port):
            raise ValueError("state_file is for engines that find us by a TCP port")

    @property
    def others(self) -> list[int]:
        """The ranks that other frontends serve; their engines connect to us as well."""
        size = 0 if self.deployment is None else self.deployment.size
        return [rank for rank in range(size) if rank not in self.ranks]

    @property
    def ranks(self) -> range:
        """The expected ranks."""
        return range(self.start_rank, self.start_rank + self.engine_count)

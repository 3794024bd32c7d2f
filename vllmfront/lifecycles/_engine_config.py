"""What a person asks for about engines, and about those that end, as frozen values."""

import enum
from collections.abc import Sequence

import attrs

from vllmfront.errors import ConfigurationError
from vllmfront.supervisor import Backoff, RestartPolicy


@attrs.frozen
class RestartIntensity:
    """So many restarts within so many seconds."""

    restarts: int = 3
    seconds: float = 600.0

    def __str__(self) -> str:
        return f"{self.restarts}/{self.seconds:g}"


@attrs.frozen(kw_only=True)
class RestartConfig:
    """What follows the end of the managed engine, when nobody has asked for it."""

    kind: str = "permanent"
    """``permanent`` and ``transient``: it is started again, since any such end is a failure;
    ``never``: the server ends with it."""

    intensity: RestartIntensity = attrs.field(factory=RestartIntensity)
    """Restarts that are tolerated, in a clock that stands still while the engine loads."""

    backoff: float = 1.0
    """Seconds before the first restart; doubled at each that follows."""

    backoff_cap: float = 60.0
    """The longest pause, in seconds."""

    backoff_reset: float = 60.0
    """Seconds that an engine must have served for the pauses to start over."""

    @property
    def enabled(self) -> bool:
        """Whether there are restarts at all."""
        return self.kind != "never" and self.intensity.restarts > 0

    def policy(self) -> RestartPolicy:
        """Return what the engine's supervisor goes by.

        Raises:
            ConfigurationError: Restarts would go on for ever.
        """
        try:
            return RestartPolicy(
                intensity=self.intensity.restarts if self.enabled else 0,
                period=self.intensity.seconds,
                backoff=Backoff(
                    base=self.backoff, cap=self.backoff_cap, reset_after=self.backoff_reset
                ),
            )
        except ValueError as error:
            raise ConfigurationError(
                f"--engine-restart-intensity {self.intensity}, --engine-restart-backoff "
                f"{self.backoff:g} and --engine-restart-backoff-cap {self.backoff_cap:g} do not "
                f"go together: {error}"
            ) from None


class Balancing(enum.Enum):
    """Who shares requests out among the engines of a deployment."""

    INTERNAL = "internal"
    """One frontend, among all of them."""

    HYBRID = "hybrid"
    """One frontend a node, among those of its node."""

    EXTERNAL = "external"
    """Somebody else: each engine has a frontend of its own."""

    MULTI_PORT = "multi-port"
    """Somebody else: each engine has a port of its own, all of a node in one process."""


DEFAULT_HANDSHAKE_PORT = 29550
"""vLLM's, where several programs have to agree on one."""

DEFAULT_SUPERVISOR_PORT = 9256
"""vLLM's."""


@attrs.frozen(kw_only=True)
class EngineConfig:
    """Where engines come from, and how they find us."""

    python: str = "python3"
    """The interpreter that runs the managed engine."""

    host: str = "127.0.0.1"
    """Where the handshake socket is bound, and what engines are told to connect to."""

    handshake_port: int | None = None
    """None takes any free port, which is logged."""

    data_parallel_size: int = 1
    """Engines expected, in the whole deployment."""

    data_parallel_size_local: int | None = None
    """Engines that we start on this node: 0 none, None all."""

    data_parallel_start_rank: int | None = None
    """The lowest rank of this node; None: 0."""

    data_parallel_rank: int | None = None
    """The only rank of this frontend, where each has its own."""

    hybrid_lb: bool = False
    external_lb: bool = False
    multi_port_lb: bool = False
    supervisor_port: int = DEFAULT_SUPERVISOR_PORT
    """Where the health of all ports is told; 0 takes any free port."""

    ready_timeout: float = 600.0
    """Seconds for each phase of the start-up."""

    routing: str = "least-loaded"
    """By what an engine is chosen for a request that names none: see ``RoutingPolicy``."""

    state_dir: str | None = None
    """Folder in which engines that run elsewhere are kept for the next start; None: the usual."""

    restart: RestartConfig = attrs.field(factory=RestartConfig)
    stall_timeout: float = 60.0
    """Seconds of silence, with requests in flight, after which an engine counts as stalled."""

    stall_restart: float | None = None
    """Seconds of such silence after which the managed engine is restarted; None: never."""

    arguments: Sequence[str] = ()
    """Words that we hand to the managed engine untouched."""

    shared_arguments: Sequence[str] = ()
    """Options that both sides need, as words for the managed engine; they follow the others."""

    @property
    def managed(self) -> bool:
        """Whether we start engines ourselves."""
        return self.data_parallel_size_local != 0

    @property
    def balancing(self) -> Balancing:
        """Who shares requests out."""
        if self.multi_port_lb:
            return Balancing.MULTI_PORT
        if self.external_lb or self.data_parallel_rank is not None:
            return Balancing.EXTERNAL
        return Balancing.HYBRID if self.hybrid_lb else Balancing.INTERNAL

    @property
    def local_ranks(self) -> range:
        """The engines that we start."""
        start, count = self.data_parallel_start_rank or 0, self.data_parallel_size_local
        if self.balancing is Balancing.EXTERNAL:
            start, count = self.data_parallel_rank or 0, 1
        elif count is None:
            count = self.data_parallel_size - start
        return range(start, start + count)

    @property
    def ranks(self) -> range:
        """The engines that get our requests."""
        if self.balancing is Balancing.INTERNAL:
            return range(self.data_parallel_size)
        return self.local_ranks

    @property
    def shared(self) -> bool:
        """Whether other frontends serve other engines of the deployment."""
        return len(self.ranks) < self.data_parallel_size

    @property
    def owns_handshake(self) -> bool:
        """Whether all engines find each other through us, rather than through the first node."""
        return not self.shared or self.ranks.start == 0

    @property
    def meeting_port(self) -> int:
        """Where engines say HELLO; 0 takes any free port, where nobody else must know it."""
        return self.handshake_port or (DEFAULT_HANDSHAKE_PORT if self.shared else 0)

    def check(self) -> None:
        """Look for options that do not fit together.

        Raises:
            ConfigurationError: Names the options.
        """
        if self.state_dir is not None and (self.managed or not self.handshake_port):
            raise ConfigurationError(
                "--state-dir keeps engines that are started elsewhere (--data-parallel-size-local "
                "0) and find us on a fixed port (--data-parallel-rpc-port): give both, or remove it"
            )
        self.restart.policy()
        if self.stall_restart is None:
            return
        if not self.managed:
            raise ConfigurationError(
                "--engine-stall-restart restarts an engine that we started; this one is started "
                "elsewhere (--data-parallel-size-local 0): remove the option"
            )
        if self.stall_restart < self.stall_timeout:
            raise ConfigurationError(
                f"--engine-stall-restart {self.stall_restart:g} must not be below "
                f"--engine-stall-timeout {self.stall_timeout:g}"
            )

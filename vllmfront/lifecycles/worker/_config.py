"""What a supervisor hands down, as frozen values."""

import attrs

from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles._config import ServeConfig

_MOST_RANKS = 65_536
"""An engine says in two bytes which one it is."""


@attrs.frozen(kw_only=True)
class Bootstrap:
    """Descriptors that we have inherited, and the engines that will connect to them."""

    listen_fd: int
    """Of clients: bound, and not listening yet."""

    input_fd: int
    """Where engines register and get requests; it listens."""

    output_fd: int
    """Where engines send outputs; it listens."""

    grpc_fd: int | None = None
    start_rank: int = 0
    """The lowest of the engines; the others follow it."""

    engine_count: int = 1
    data_parallel_size: int = 1
    """Engines in the whole deployment, those of other frontends included."""

    coordinator_address: str | None = None
    """Where the coordinator publishes how busy engines are, if the supervisor runs it."""

    def check(self) -> None:
        """Look for what does not fit together, or is not served.

        Raises:
            ConfigurationError: Names the options.
        """
        if self.grpc_fd is not None:
            raise ConfigurationError(
                f"--grpc-listen-fd {self.grpc_fd}: gRPC is not part of this build yet; start "
                "vLLM without --grpc-port"
            )
        end = self.start_rank + self.engine_count
        if not 1 <= self.engine_count <= self.data_parallel_size:
            raise ConfigurationError(
                f"--engine-count {self.engine_count} must be from 1 to "
                f"--data-parallel-size {self.data_parallel_size}"
            )
        if end > min(self.data_parallel_size, _MOST_RANKS):
            raise ConfigurationError(
                f"engines {self.start_rank} to {end - 1} (--engine-start-index, --engine-count) "
                f"are not all below --data-parallel-size {self.data_parallel_size}, or are more "
                f"than {_MOST_RANKS}"
            )


@attrs.frozen(kw_only=True)
class WorkerConfig:
    """Everything that ``vllmfront frontend`` needs to know."""

    bootstrap: Bootstrap
    settings: ServeConfig
    """What it has in common with ``serve``; where to listen and how to find engines is unused."""

    def check(self) -> None:
        """Look for what does not fit together.

        Raises:
            ConfigurationError: Names the options.
        """
        self.bootstrap.check()
        self.settings.check_answers()

"""Which options about data parallelism go together: pure."""

from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles._engine_config import Balancing, EngineConfig

_ADVICE = (
    "choose one of --data-parallel-hybrid-lb, --data-parallel-external-lb (or "
    "--data-parallel-rank), --data-parallel-multi-port-external-lb"
)


def check_parallel(engine: EngineConfig) -> None:
    """Look for options about the deployment that do not fit together.

    Raises:
        ConfigurationError: Names the options.
    """
    size, local, start = (
        engine.data_parallel_size,
        engine.data_parallel_size_local,
        engine.data_parallel_start_rank,
    )
    if size < 1:
        raise ConfigurationError("--data-parallel-size must be at least 1")
    external = engine.external_lb or engine.data_parallel_rank is not None
    if sum((engine.hybrid_lb, external, engine.multi_port_lb)) > 1:
        raise ConfigurationError(f"more than one mode of load balancing is asked for: {_ADVICE}")
    if local is not None and local > size:
        raise ConfigurationError(
            f"--data-parallel-size-local {local} exceeds --data-parallel-size {size}"
        )
    if external:
        _check_external(engine)
        return
    if start and local is None:
        raise ConfigurationError(
            f"--data-parallel-start-rank {start} needs --data-parallel-size-local, the number of "
            "engines on this node"
        )
    if start is not None and start + (local or 0) > size:
        raise ConfigurationError(
            f"--data-parallel-start-rank {start} and --data-parallel-size-local {local} exceed "
            f"--data-parallel-size {size}"
        )
    if engine.balancing is Balancing.INTERNAL:
        return
    if local is None or local < 1:
        raise ConfigurationError(
            f"{mode_option(engine)} needs --data-parallel-size-local, the number of engines that "
            "this node runs, at least 1"
        )
    if engine.balancing is Balancing.MULTI_PORT and local < 2:  # noqa: PLR2004 - ports need two
        raise ConfigurationError(
            f"{mode_option(engine)} needs --data-parallel-size-local 2 or more; one engine is "
            "served by --data-parallel-rank"
        )
    if size % local or (start or 0) % local:
        raise ConfigurationError(
            f"{mode_option(engine)} needs nodes of one size: --data-parallel-size {size} and "
            f"--data-parallel-start-rank {start or 0} must be multiples of "
            f"--data-parallel-size-local {local}"
        )


def mode_option(engine: EngineConfig) -> str:
    """Return the option that has asked for the mode of load balancing; empty for none."""
    match engine.balancing:
        case Balancing.HYBRID:
            return "--data-parallel-hybrid-lb"
        case Balancing.MULTI_PORT:
            return "--data-parallel-multi-port-external-lb"
        case Balancing.EXTERNAL:
            named = engine.data_parallel_rank is not None and not engine.external_lb
            return "--data-parallel-rank" if named else "--data-parallel-external-lb"
        case Balancing.INTERNAL:
            return ""


def check_ports(engine: EngineConfig, port: int, *, elsewhere: bool) -> None:
    """Look whether a port a rank can be had.

    Args:
        engine: What else is asked for.
        port: The first of them; 0 takes free ones.
        elsewhere: Whether HTTP is served on other sockets than a host's ports.

    Raises:
        ConfigurationError: Names the options.
    """
    if engine.balancing is not Balancing.MULTI_PORT:
        return
    if elsewhere:
        raise ConfigurationError(
            f"{mode_option(engine)} serves one port a rank: remove --uds and --listen-fd"
        )
    last = port + len(engine.local_ranks) - 1
    if port and last > 65535:  # noqa: PLR2004 - the highest port
        raise ConfigurationError(
            f"--port {port} leaves no room for {len(engine.local_ranks)} ports"
        )
    if port and port <= engine.supervisor_port <= last:
        raise ConfigurationError(
            f"--data-parallel-supervisor-port {engine.supervisor_port} is among the ports of the "
            f"ranks, {port} to {last}"
        )


def check_workers(engine: EngineConfig, count: int | None) -> None:
    """Look whether as many processes may serve HTTP; None leaves their number open.

    Raises:
        ConfigurationError: Names the options.
    """
    if count != 1 and (engine.shared or engine.balancing is Balancing.MULTI_PORT):
        raise ConfigurationError(
            f"{mode_option(engine)} serves with one process a node: remove --api-server-count"
        )


def check_headless(engine: EngineConfig) -> None:
    """Look whether a node can run these engines without a frontend.

    Raises:
        ConfigurationError: Names the options.
    """
    if engine.balancing in {Balancing.HYBRID, Balancing.MULTI_PORT}:
        raise ConfigurationError(
            f"{mode_option(engine)} is about frontends, --headless runs none: remove one of them"
        )
    if not engine.managed:
        raise ConfigurationError(
            "--headless runs engines alone, --data-parallel-size-local 0 runs none: nothing is left"
        )


def _check_external(engine: EngineConfig) -> None:
    rank, option = engine.data_parallel_rank, mode_option(engine)
    if rank is None:
        raise ConfigurationError(f"{option} needs --data-parallel-rank, the rank of this frontend")
    if rank >= engine.data_parallel_size:
        raise ConfigurationError(
            f"--data-parallel-rank {rank} is not below --data-parallel-size "
            f"{engine.data_parallel_size}"
        )
    if engine.data_parallel_size_local not in {None, 1}:
        raise ConfigurationError(
            f"{option} serves one engine: remove --data-parallel-size-local "
            f"{engine.data_parallel_size_local}"
        )
    if engine.data_parallel_start_rank is not None:
        raise ConfigurationError(
            f"{option} says which engine is served: remove --data-parallel-start-rank "
            f"{engine.data_parallel_start_rank}"
        )

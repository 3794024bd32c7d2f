"""From what a person asks for to how a client finds its engines, and what it does for requests."""

import os
from collections.abc import Mapping

import attrs

from vllmfront.engine import Deployment, EngineClientConfig, RoutingPolicy
from vllmfront.engine.pause import LeaseAction
from vllmfront.engine.transport import tcp_address
from vllmfront.environment import switch
from vllmfront.lifecycles._adapters import adapters_of
from vllmfront.lifecycles._config import ServeConfig
from vllmfront.lifecycles._engine_config import EngineConfig
from vllmfront.lifecycles._state_dir import engine_state_file


def shared_client_config(config: ServeConfig, environ: Mapping[str, str]) -> EngineClientConfig:
    """Make what is the same whoever starts the engines, and wherever they are."""
    engine = config.engine
    return EngineClientConfig(
        adapters=adapters_of(config),
        adapter_seconds=config.control.timeout,
        ready_timeout=engine.ready_timeout,
        stall_timeout=engine.stall_timeout,
        recovery_wait=config.requests.recovery_wait,
        request_retries=config.requests.retries,
        continuation=config.requests.continuation,
        pause_lease_action=LeaseAction(config.control.lease_action),
        randomize_ids=not switch(environ, "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION"),
        count_metrics=config.server.log_stats,
        histogram_bounds={
            family: tuple(bounds) for family, bounds in config.server.histogram_buckets.items()
        },
    )


def client_config(config: ServeConfig, *, lockstep: bool) -> EngineClientConfig:
    """Make the configuration of ``serve``'s client.

    Args:
        config: What a person asks for.
        lockstep: Whether the engines step together.
    """
    engine = config.engine
    ours = len(engine.local_ranks) == len(engine.ranks)
    return attrs.evolve(
        shared_client_config(config, os.environ),
        start_rank=engine.ranks.start,
        engine_count=len(engine.ranks),
        handshake_host=engine.host,
        handshake_port=engine.meeting_port,
        deployment=_deployment(engine, lockstep=lockstep),
        coordinated=lockstep and engine.owns_handshake,
        state_file=engine_state_file(engine),
        routing=RoutingPolicy(engine.routing),
        all_local=ours and not engine.shared,
        watch_loading=not ours,
        stall_restart=engine.stall_restart,
    )


def _deployment(engine: EngineConfig, *, lockstep: bool) -> Deployment | None:
    """Return what our engines are a part of, unless they are all, and one program starts them."""
    partly_ours = 0 < len(engine.local_ranks) < engine.data_parallel_size
    if not engine.shared and not (lockstep and partly_ours):
        return None
    first = None if engine.owns_handshake else tcp_address(engine.host, engine.meeting_port)
    return Deployment(size=engine.data_parallel_size, lockstep=lockstep, first_frontend=first)

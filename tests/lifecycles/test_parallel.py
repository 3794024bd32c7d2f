"""Modes of data parallelism: which options make which, and which are refused."""

from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from tests.lifecycles.rig import config
from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles import EngineConfig, ListenConfig, ServeConfig, ServerConfig
from vllmfront.lifecycles._engine_config import Balancing

HYBRID = {"hybrid_lb": True}
MULTI = {"multi_port_lb": True}


def engine(
    size: int = 1,
    local: int | None = None,
    start: int | None = None,
    rank: int | None = None,
    **fields: object,
) -> EngineConfig:
    return EngineConfig(
        data_parallel_size=size,
        data_parallel_size_local=local,
        data_parallel_start_rank=start,
        data_parallel_rank=rank,
        **fields,  # type: ignore[arg-type]
    )


def settings(
    engines: EngineConfig,
    *,
    listen: ListenConfig | None = None,
    server: ServerConfig | None = None,
    headless: bool = False,
) -> ServeConfig:
    made = config(engine=engines, listen=listen, server=server)
    return attrs.evolve(made, headless=headless)


@pytest.mark.parametrize(
    ("engines", "balancing", "local", "served", "shared", "owner"),
    [
        # All ranks behind one frontend: on this node, partly, or not at all.
        (engine(), Balancing.INTERNAL, range(1), range(1), False, True),
        (engine(4), Balancing.INTERNAL, range(4), range(4), False, True),
        (engine(4, 2), Balancing.INTERNAL, range(2), range(4), False, True),
        (engine(4, 0), Balancing.INTERNAL, range(0), range(4), False, True),
        (engine(4, 2, 2), Balancing.INTERNAL, range(2, 4), range(4), False, True),
        # One frontend a node; where there is one node, nobody else is awaited.
        (engine(4, 2, 0, **HYBRID), Balancing.HYBRID, range(2), range(2), True, True),
        (engine(4, 2, 2, **HYBRID), Balancing.HYBRID, range(2, 4), range(2, 4), True, False),
        (engine(4, 2, **HYBRID), Balancing.HYBRID, range(2), range(2), True, True),
        (engine(2, 2, **HYBRID), Balancing.HYBRID, range(2), range(2), False, True),
        # One frontend a rank, whichever way that is asked for.
        (engine(4, rank=0), Balancing.EXTERNAL, range(1), range(1), True, True),
        (engine(4, rank=3), Balancing.EXTERNAL, range(3, 4), range(3, 4), True, False),
        (engine(4, 1, rank=3), Balancing.EXTERNAL, range(3, 4), range(3, 4), True, False),
        (
            engine(4, rank=3, external_lb=True),
            Balancing.EXTERNAL,
            range(3, 4),
            range(3, 4),
            True,
            False,
        ),
        (engine(1, rank=0), Balancing.EXTERNAL, range(1), range(1), False, True),
        # One port a rank.
        (engine(2, 2, **MULTI), Balancing.MULTI_PORT, range(2), range(2), False, True),
        (engine(4, 2, 2, **MULTI), Balancing.MULTI_PORT, range(2, 4), range(2, 4), True, False),
    ],
)
def test_options_make_a_mode(
    engines: EngineConfig,
    balancing: Balancing,
    local: range,
    served: range,
    shared: bool,
    owner: bool,
) -> None:
    settings(engines).check()

    assert engines.balancing is balancing
    assert engines.local_ranks == local
    assert engines.ranks == served
    assert (engines.shared, engines.owns_handshake) == (shared, owner)


@pytest.mark.parametrize(
    ("engines", "message"),
    [
        (engine(0), "--data-parallel-size must be at least 1"),
        (engine(2, 3), "--data-parallel-size-local 3 exceeds --data-parallel-size 2"),
        (engine(4, None, 2), "--data-parallel-start-rank 2 needs --data-parallel-size-local"),
        (engine(4, 2, 3), "--data-parallel-start-rank 3 and --data-parallel-size-local 2 exceed"),
        (engine(4, 2, rank=1, hybrid_lb=True), "more than one mode of load balancing"),
        (engine(4, 2, hybrid_lb=True, external_lb=True), "more than one mode of load balancing"),
        (engine(4, 2, hybrid_lb=True, **MULTI), "more than one mode of load balancing"),
        (engine(4, 2, rank=1, **MULTI), "more than one mode of load balancing"),
        (engine(4, **HYBRID), "--data-parallel-hybrid-lb needs --data-parallel-size-local"),
        (engine(4, 0, **HYBRID), "--data-parallel-hybrid-lb needs --data-parallel-size-local"),
        (engine(4, 3, **HYBRID), "--data-parallel-hybrid-lb needs nodes of one size"),
        (engine(4, 2, 1, **HYBRID), "--data-parallel-hybrid-lb needs nodes of one size"),
        (engine(4, external_lb=True), "--data-parallel-external-lb needs --data-parallel-rank"),
        (engine(4, rank=4), "--data-parallel-rank 4 is not below --data-parallel-size 4"),
        (engine(4, 2, rank=0), "--data-parallel-rank serves one engine: remove"),
        (engine(4, None, 1, 1), "remove --data-parallel-start-rank 1"),
        (engine(4, **MULTI), "--data-parallel-multi-port-external-lb needs"),
        (engine(4, 1, **MULTI), "needs --data-parallel-size-local 2 or more"),
        (engine(5, 2, **MULTI), "--data-parallel-multi-port-external-lb needs nodes of one size"),
    ],
)
def test_options_that_make_none_are_refused(engines: EngineConfig, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        settings(engines).check()


@pytest.mark.parametrize(
    ("listen", "fields", "message"),
    [
        ({"uds": "/s"}, {}, "serves one port a rank: remove --uds and --listen-fd"),
        ({"fds": (3,)}, {}, "serves one port a rank: remove --uds and --listen-fd"),
        ({"port": 65535}, {}, "--port 65535 leaves no room for 2 ports"),
        ({"port": 9255}, {}, "--data-parallel-supervisor-port 9256 is among the ports"),
        ({"port": 80}, {"supervisor_port": 80}, "among the ports of the ranks, 80 to 81"),
    ],
)
def test_a_port_a_rank_has_to_be_there(
    listen: Mapping[str, Any], fields: Mapping[str, Any], message: str
) -> None:
    made = settings(
        engine(2, 2, **MULTI, **fields),
        listen=ListenConfig(**listen),
    )
    with pytest.raises(ConfigurationError, match=message):
        made.check()


@pytest.mark.parametrize("engines", [engine(4, 2, **HYBRID), engine(2, 2, **MULTI)])
@pytest.mark.parametrize("count", [2, None])
def test_several_frontends_have_one_process_each(engines: EngineConfig, count: int | None) -> None:
    made = settings(engines, server=ServerConfig(api_server_count=count))
    with pytest.raises(ConfigurationError, match="remove --api-server-count"):
        made.check()


@pytest.mark.parametrize(
    ("engines", "message"),
    [
        (engine(4, 2, **HYBRID), "--data-parallel-hybrid-lb is about frontends, --headless runs"),
        (engine(4, 2, **MULTI), "--data-parallel-multi-port-external-lb is about frontends"),
        (engine(4, 0), "--data-parallel-size-local 0 runs none: nothing is left"),
    ],
)
def test_a_node_without_a_frontend_only_runs_engines(engines: EngineConfig, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        settings(engines, headless=True).check()


@pytest.mark.parametrize("engines", [engine(4, 2, 2), engine(4), engine(4, rank=3)])
def test_a_node_without_a_frontend_may_run_any_of_them(engines: EngineConfig) -> None:
    settings(engines, headless=True).check()


def test_programs_that_have_to_agree_on_a_port_take_vllms() -> None:
    assert engine(2, rank=1).meeting_port == 29550
    assert engine(2, rank=1, handshake_port=7).meeting_port == 7
    assert engine(2).meeting_port == 0

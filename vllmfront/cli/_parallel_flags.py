"""Options of ``serve`` about several nodes, and about who shares requests out among engines."""

from vllmfront.cli import _values as values
from vllmfront.cli._flag import Arity, Flag, Group

_RANK = values.integer(0, 65535)

PARALLEL = Group(
    title="data parallelism over several nodes or frontends",
    flags=(
        Flag(
            name="--headless",
            target="headless",
            arity=Arity.SWITCH,
            help="run engines alone, for a frontend on another node",
        ),
        Flag(
            name="--data-parallel-start-rank",
            target="engine.data_parallel_start_rank",
            parse=_RANK,
            metavar="RANK",
            help="lowest rank of the engines on this node",
        ),
        Flag(
            name="--data-parallel-hybrid-lb",
            target="engine.hybrid_lb",
            arity=Arity.SWITCH,
            help="one frontend a node, for the engines of its node; the first node's brings all "
            "together",
        ),
        Flag(
            name="--data-parallel-rank",
            target="engine.data_parallel_rank",
            parse=_RANK,
            metavar="RANK",
            env="VLLM_DP_RANK",
            help="one frontend an engine: the rank of this one",
        ),
        Flag(
            name="--data-parallel-external-lb",
            target="engine.external_lb",
            arity=Arity.SWITCH,
            help="one frontend an engine; needs --data-parallel-rank",
        ),
        Flag(
            name="--data-parallel-multi-port-external-lb",
            target="engine.multi_port_lb",
            arity=Arity.SWITCH,
            help="one port an engine, counted up from --port, all in one frontend a node",
        ),
        Flag(
            name="--data-parallel-supervisor-port",
            target="engine.supervisor_port",
            parse=values.integer(0, 65535),
            metavar="PORT",
            help="port that tells the health of all ranks, where each has a port of its own",
        ),
    ),
)

"""Options of ``serve`` about orders to all engines: pauses, new weights, sleep."""

from vllmfront.cli import _values as values
from vllmfront.cli._flag import Arity, Flag, Group

CONTROL = Group(
    title="control",
    flags=(
        Flag(
            name="--control-timeout",
            target="control.timeout",
            parse=values.positive_seconds,
            metavar="SECONDS",
            help=(
                "until an order to the engines (a pause, new weights, sleep) that is not answered "
                "is given up with 504"
            ),
        ),
        Flag(
            name="--pause-lease-action",
            target="control.lease_action",
            parse=values.one_of("resume", "keep-paused", "shutdown"),
            metavar="ACTION",
            help=(
                "what ends a pause whose owner has not renewed its lease: resume lets generation "
                "go on (unless weights are incomplete), keep-paused leaves it to whoever comes, "
                "shutdown ends the server"
            ),
        ),
        Flag(
            name="--profiler-config",
            target="control.profiler",
            parse=values.json_object,
            convert=lambda config: config.get("profiler"),
            metavar="JSON",
            help="how the engines are profiled; with a profiler in it, /start_profile and "
            "/stop_profile are served",
        ),
        Flag(
            name="--unsafe-weight-sync",
            target="control.unsafe_weight_sync",
            arity=Arity.SWITCH,
            help=(
                "pass orders about weights on in any order, as vLLM does, although engines may "
                "fail of it"
            ),
        ),
    ),
)

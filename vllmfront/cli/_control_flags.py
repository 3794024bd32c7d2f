"""Options of ``serve`` about orders to all engines: pauses, new weights, sleep."""

from vllmfront.cli import _values as values
from vllmfront.cli._flag import Arity, Flag, Group
from vllmfront.engine.pause import LeaseAction

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
            parse=values.one_of(*(action.value for action in LeaseAction)),
            metavar="ACTION",
            help=(
                "what ends a pause whose owner has not renewed its lease: resume lets generation "
                "go on (unless weights are incomplete), keep-paused leaves it to whoever comes, "
                "shutdown ends the server"
            ),
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

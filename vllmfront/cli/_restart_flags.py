"""Options of ``serve`` about a managed engine that ends, and about one that falls silent."""

from vllmfront.cli import _values as values
from vllmfront.cli._flag import Flag, Group
from vllmfront.lifecycles import RestartIntensity


def _intensity(text: str) -> RestartIntensity:
    """Read so many restarts within so many seconds, as ``3/600``."""
    restarts, slash, span = text.partition("/")
    if not slash:
        raise ValueError("expected N/SECONDS, as 3/600")
    return RestartIntensity(values.integer(0, 1_000_000)(restarts), values.positive_seconds(span))


RESTARTS = Group(
    title="engine restarts",
    flags=(
        Flag(
            name="--engine-restart",
            target="engine.restart.kind",
            parse=values.one_of("permanent", "transient", "never"),
            metavar="KIND",
            help=(
                "what follows the end of the managed engine: permanent and transient start it "
                "again (any end that nobody asked for is a failure), never ends the server"
            ),
        ),
        Flag(
            name="--engine-restart-intensity",
            target="engine.restart.intensity",
            parse=_intensity,
            metavar="N/SECONDS",
            help=(
                "restarts tolerated within so many seconds, those in which the engine loads not "
                "counted; one more ends the server"
            ),
        ),
        Flag(
            name="--engine-restart-backoff",
            target="engine.restart.backoff",
            parse=values.positive_seconds,
            metavar="SECONDS",
            help="pause before the first restart; doubled at each that follows",
        ),
        Flag(
            name="--engine-restart-backoff-cap",
            target="engine.restart.backoff_cap",
            parse=values.positive_seconds,
            metavar="SECONDS",
            help="longest pause before a restart",
        ),
        Flag(
            name="--engine-restart-backoff-reset",
            target="engine.restart.backoff_reset",
            parse=values.positive_seconds,
            metavar="SECONDS",
            help="how long an engine must have served for the pauses to start over",
        ),
        Flag(
            name="--engine-stall-timeout",
            target="engine.stall_timeout",
            parse=values.positive_seconds,
            metavar="SECONDS",
            help="silence, with requests in flight, after which an engine counts as stalled",
        ),
        Flag(
            name="--engine-stall-restart",
            target="engine.stall_restart",
            parse=values.positive_seconds,
            metavar="SECONDS",
            help="silence after which the managed engine is restarted; never when not given",
        ),
    ),
)

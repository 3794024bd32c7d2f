"""Options of ``serve`` about how much is let in, how long it may take, and what survives."""

from vllmfront.cli import _values as values
from vllmfront.cli._flag import Arity, Flag, Group

REQUESTS = Group(
    title="requests",
    flags=(
        Flag(
            name="--default-request-timeout",
            target="requests.default_timeout",
            parse=values.positive_seconds,
            metavar="SECONDS",
            help=(
                "limit from a request's arrival to its end, for those that name none themselves "
                "(header X-Request-Timeout, field timeout)"
            ),
        ),
        Flag(
            name="--max-num-queued-reqs",
            target="requests.max_queued",
            parse=values.count,
            metavar="N",
            help=(
                "refuse requests with 503 where more than N would be in flight, waiting and "
                "running; one with n choices counts n times"
            ),
        ),
        Flag(
            name="--max-num-queued-tokens",
            target="requests.max_queued_tokens",
            parse=values.count,
            metavar="N",
            help=(
                "refuse requests with 503 while N prompt tokens or more wait for their first "
                "answer; 32k is 32000, 32K is 32768"
            ),
        ),
        Flag(
            name="--max-loop-lag",
            target="requests.max_loop_lag",
            parse=values.seconds,
            metavar="SECONDS",
            help=(
                "refuse requests with 503 while this server is late with its own work by more "
                "than so long, again and again; 0: never"
            ),
        ),
        Flag(
            name="--request-recovery-wait",
            target="requests.recovery_wait",
            parse=values.seconds,
            metavar="SECONDS",
            help="how long requests wait for an engine in place of one that was lost",
        ),
        Flag(
            name="--request-retries",
            target="requests.retries",
            parse=values.integer(0, 1000),
            metavar="N",
            help="how often a request is sent again after its engine was lost",
        ),
        Flag(
            name="--no-request-continuation",
            target="requests.continuation",
            arity=Arity.SWITCH,
            convert=lambda off: not off,
            help="end streams whose engine was lost after their first token, with an error",
        ),
    ),
)

"""How a client and its engines stand at one moment, for operators and for metrics."""

import trio

from vllmfront.engine.client.membership import ClientSnapshot, EngineState, Membership, RankState
from vllmfront.engine.client.orders import Pauses, UtilityCalls
from vllmfront.engine.client.requests import Books
from vllmfront.engine.metrics import EngineLevels
from vllmfront.engine.pause import HoldGate, HoldKind


def take_snapshot(
    membership: Membership, books: Books, calls: UtilityCalls, pauses: Pauses
) -> ClientSnapshot:
    """Return everything that operators may ask about."""
    state = membership.state
    return ClientSnapshot(
        state=state.value,
        seconds_in_state=trio.current_time() - state.since,
        error=None if state.error is None else str(state.error),
        seconds_until_ready=membership.seconds_until_ready(),
        ranks=tuple(engine.snapshot() for engine in membership.ranks.values()),
        requests=books.num_requests,
        waiting=books.room.num_streams,
        engine_requests=len(books.children) + len(books.room),
        pending_calls=calls.num_pending,
        deadlines=len(books.deadlines),
        resent_requests=books.metrics.num_resent,
        continued_requests=books.metrics.num_continued,
        holds=pauses.snapshots(),
    )


def take_levels(membership: Membership, books: Books, gate: HoldGate) -> EngineLevels:
    """Return what the metrics of a client show of its present."""
    asleep = gate.find(HoldKind.SLEEP)
    return EngineLevels(
        state=membership.state.value.value,
        states=tuple(state.value for state in EngineState),
        rank_states={n: engine.state.value for n, engine in membership.ranks.items()},
        all_rank_states=tuple(state.value for state in RankState),
        waiting_requests=books.room.num_streams,
        holds=tuple((hold.kind.value, hold.mode.value, hold.wall) for hold in gate.holds),
        sleep_level=None if asleep is None else asleep.level,
        weight_versions={n: engine.weight_version for n, engine in membership.ranks.items()},
    )

"""The order in which weights may be transferred, as a table.

Engines take a connection to a trainer (*init*), then any number of updates (*start*, *update* as
often as it takes, *finish*), and give the connection up (*shutdown*). They would take some orders
at the wrong time, and break: a second start finds layers half replaced, a chunk without a start
is loaded into whatever is there. So what the table does not have is refused here.

Whatever goes wrong leads to *failed*, from which *shutdown* is the way out, and *init* the way on;
*shutdown* also gives up an update that nobody will finish.
"""

import enum

from vllmfront.errors import StateConflict


class SyncState(enum.StrEnum):
    """Of the weight transfer of all engines together."""

    UNINITIALIZED = "uninitialized"
    """No trainer is connected, as far as we know."""

    INITIALIZED = "initialized"
    STARTED = "started"
    """An update has begun, and no weights have come yet."""

    UPDATING = "updating"
    """Some of the weights have come."""

    FAILED = "failed"
    """Some engine failed, or did not answer, or is not the one that was connected."""


class SyncOrder(enum.StrEnum):
    """What a trainer may ask for."""

    INIT = "init"
    START = "start"
    START_DRAFT = "start_draft"
    UPDATE = "update"
    FINISH = "finish"
    SHUTDOWN = "shutdown"

    @property
    def path(self) -> str:
        """The route that it comes by."""
        return _PATHS[self]


_PATHS = {
    SyncOrder.INIT: "/init_weight_transfer_engine",
    SyncOrder.START: "/start_weight_update",
    SyncOrder.START_DRAFT: "/start_draft_weight_update",
    SyncOrder.UPDATE: "/update_weights",
    SyncOrder.FINISH: "/finish_weight_update",
    SyncOrder.SHUTDOWN: "/shutdown_weight_transfer_engine",
}

_NEXT = {
    (SyncState.UNINITIALIZED, SyncOrder.INIT): SyncState.INITIALIZED,
    (SyncState.UNINITIALIZED, SyncOrder.SHUTDOWN): SyncState.UNINITIALIZED,
    # A trainer that has died comes back: its old connection is replaced.
    (SyncState.INITIALIZED, SyncOrder.INIT): SyncState.INITIALIZED,
    (SyncState.INITIALIZED, SyncOrder.START): SyncState.STARTED,
    (SyncState.INITIALIZED, SyncOrder.START_DRAFT): SyncState.STARTED,
    (SyncState.INITIALIZED, SyncOrder.SHUTDOWN): SyncState.UNINITIALIZED,
    (SyncState.STARTED, SyncOrder.UPDATE): SyncState.UPDATING,
    (SyncState.STARTED, SyncOrder.FINISH): SyncState.INITIALIZED,
    (SyncState.STARTED, SyncOrder.SHUTDOWN): SyncState.UNINITIALIZED,
    (SyncState.UPDATING, SyncOrder.UPDATE): SyncState.UPDATING,
    (SyncState.UPDATING, SyncOrder.FINISH): SyncState.INITIALIZED,
    (SyncState.UPDATING, SyncOrder.SHUTDOWN): SyncState.UNINITIALIZED,
    (SyncState.FAILED, SyncOrder.SHUTDOWN): SyncState.UNINITIALIZED,
}

_UNGUARDED = {
    SyncOrder.INIT: SyncState.INITIALIZED,
    SyncOrder.START: SyncState.STARTED,
    SyncOrder.START_DRAFT: SyncState.STARTED,
    SyncOrder.UPDATE: SyncState.UPDATING,
    SyncOrder.FINISH: SyncState.INITIALIZED,
    SyncOrder.SHUTDOWN: SyncState.UNINITIALIZED,
}
"""Where an order leads that no table has looked at."""


def orders_after(state: SyncState) -> tuple[SyncOrder, ...]:
    """Return what may be ordered in *state*."""
    return tuple(order for order in SyncOrder if (state, order) in _NEXT)


def next_sync_state(state: SyncState, order: SyncOrder, *, guarded: bool = True) -> SyncState:
    """Return the state once *order* is done.

    Raises:
        StateConflict: It is not allowed in *state*, and *guarded*.
    """
    if not guarded:
        return _NEXT.get((state, order), _UNGUARDED[order])
    try:
        return _NEXT[state, order]
    except KeyError:
        paths = " or ".join(each.path for each in orders_after(state))
        raise StateConflict(
            f"{order.path} does not go with a weight transfer that is {state.value}: what can come "
            f"next is {paths}",
            state=state.value,
        ) from None

"""Every pair of state and order: where it leads, or the conflict that names the state."""

import itertools

import pytest

from vllmfront.control import SyncOrder as O
from vllmfront.control import SyncState as S
from vllmfront.control import next_sync_state, orders_after
from vllmfront.errors import StateConflict

LEGAL = {
    (S.UNINITIALIZED, O.INIT): S.INITIALIZED,
    (S.UNINITIALIZED, O.SHUTDOWN): S.UNINITIALIZED,
    (S.INITIALIZED, O.INIT): S.INITIALIZED,
    (S.INITIALIZED, O.START): S.STARTED,
    (S.INITIALIZED, O.START_DRAFT): S.STARTED,
    (S.INITIALIZED, O.SHUTDOWN): S.UNINITIALIZED,
    (S.STARTED, O.UPDATE): S.UPDATING,
    (S.STARTED, O.FINISH): S.INITIALIZED,
    (S.STARTED, O.SHUTDOWN): S.UNINITIALIZED,
    (S.UPDATING, O.UPDATE): S.UPDATING,
    (S.UPDATING, O.FINISH): S.INITIALIZED,
    (S.UPDATING, O.SHUTDOWN): S.UNINITIALIZED,
    (S.FAILED, O.SHUTDOWN): S.UNINITIALIZED,
}


@pytest.mark.parametrize(("pair", "after"), list(LEGAL.items()))
def test_an_order_at_its_time_leads_on(pair: tuple[S, O], after: S) -> None:
    assert next_sync_state(*pair) is after


@pytest.mark.parametrize("pair", [x for x in itertools.product(S, O) if x not in LEGAL])
def test_an_order_at_another_time_names_the_state_and_what_may_come(pair: tuple[S, O]) -> None:
    state, order = pair
    with pytest.raises(StateConflict) as caught:
        next_sync_state(state, order)

    assert caught.value.state == state.value
    assert order.path in str(caught.value)
    assert all(allowed.path in str(caught.value) for allowed in orders_after(state))


@pytest.mark.parametrize("pair", list(itertools.product(S, O)))
def test_without_the_guard_every_order_leads_somewhere(pair: tuple[S, O]) -> None:
    assert next_sync_state(*pair, guarded=False) in S


@pytest.mark.parametrize("state", list(S))
def test_shutdown_and_init_lead_out_of_every_state(state: S) -> None:
    after = next_sync_state(state, O.SHUTDOWN)

    assert next_sync_state(after, O.INIT) is S.INITIALIZED

"""Every pair of phase and event: where it leads, or that it cannot be."""

import itertools

import pytest

from vllmfront.engine.pause import PauseEvent as E
from vllmfront.engine.pause import PausePhase as P
from vllmfront.engine.pause import next_pause_phase

LEGAL = {
    (P.PAUSING, E.STANDING): P.PAUSED,
    (P.PAUSING, E.WIDENED): P.PAUSING,
    (P.PAUSING, E.RESUME): P.RESUMING,
    (P.PAUSING, E.REFUSED): P.RESUMING,
    (P.PAUSED, E.WIDENED): P.PAUSING,
    (P.PAUSED, E.RESUME): P.RESUMING,
    (P.RESUMING, E.RESUME): P.RESUMING,
    (P.RESUMING, E.REFUSED): P.PAUSED,
    (P.RESUMING, E.RESUMED): P.CLOSED,
}


@pytest.mark.parametrize(("pair", "after"), list(LEGAL.items()))
def test_a_legal_event_leads_on(pair: tuple[P, E], after: P) -> None:
    assert next_pause_phase(*pair) is after


@pytest.mark.parametrize("pair", [x for x in itertools.product(P, E) if x not in LEGAL])
def test_an_illegal_event_is_a_bug(pair: tuple[P, E]) -> None:
    with pytest.raises(ValueError, match="cannot see that"):
        next_pause_phase(*pair)


def test_nothing_leads_out_of_a_closed_window() -> None:
    assert not [pair for pair in LEGAL if pair[0] is P.CLOSED]

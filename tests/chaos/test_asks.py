from tests.chaos._asks import DEADLINE, draw_asks
from tests.chaos._round import draw_stops
from vllmfront.testing import ClientFaultKind


def test_a_seed_and_a_round_mean_the_same_requests() -> None:
    assert draw_asks(1, 2, 50) == draw_asks(1, 2, 50)
    assert draw_asks(1, 2, 50) != draw_asks(1, 3, 50)
    assert draw_stops(1, 2, 500, 2) == draw_stops(1, 2, 500, 2)


def test_ids_tell_requests_of_all_rounds_apart() -> None:
    asks = [ask for number in range(3) for ask in draw_asks(1, number, 100)]

    assert len({ask.id for ask in asks}) == 300


def test_the_mix_has_everything() -> None:
    asks = draw_asks(1, 0, 500)

    for part in (
        [ask for ask in asks if ask.streamed],
        [ask for ask in asks if not ask.streamed],
        [ask for ask in asks if ask.is_chat],
        [ask for ask in asks if ask.choices > 1],
        [ask for ask in asks if ask.stop is not None],
        [ask for ask in asks if ask.logprobs],
        [ask for ask in asks if ask.min_tokens],
        [ask for ask in asks if not ask.greedy and ask.choices == 1],
        [ask for ask in asks if ask.deadline == DEADLINE],
    ):
        assert len(part) >= 15
    faults = [ask.fault.kind for ask in asks if ask.fault is not None]
    assert set(faults) == set(ClientFaultKind)
    assert not any(ask.greedy and ask.choices > 1 for ask in asks)

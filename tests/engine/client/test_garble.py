"""How many unreadable messages are too many."""

from vllmfront.engine.client.reading._garble import MOST_GARBLED, WINDOW, GarbleCount


def test_one_more_in_a_row_than_is_borne() -> None:
    count = GarbleCount()
    slowly = [count.add(number * WINDOW * 2) for number in range(MOST_GARBLED + 1)]

    assert slowly == [False] * MOST_GARBLED + [True]
    assert count.describe() == "sent 17 unreadable messages in a row"


def test_one_more_within_the_window_among_sound_ones() -> None:
    count = GarbleCount()
    verdicts = []
    for number in range(MOST_GARBLED + 1):
        verdicts.append(count.add(float(number)))
        count.sound()

    assert verdicts == [False] * MOST_GARBLED + [True]
    assert count.describe() == "sent 17 unreadable messages within 60 seconds"


def test_few_now_and_then_are_borne_for_ever() -> None:
    count = GarbleCount()
    for number in range(10 * MOST_GARBLED):
        assert not count.add(number * WINDOW / (MOST_GARBLED - 1))
        count.sound()

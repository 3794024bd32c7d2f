import pytest

from vllmfront.supervisor._window import RestartWindow, ServiceClock


def test_as_many_restarts_as_tolerated_are_admitted() -> None:
    window = RestartWindow(intensity=2, period=10.0)

    assert [window.admit(now) for now in (0.0, 1.0, 2.0)] == [True, True, False]


def test_what_is_older_than_the_period_is_forgotten() -> None:
    window = RestartWindow(intensity=1, period=10.0)

    assert window.admit(0.0)
    assert not window.admit(10.0)
    assert window.count(10.5) == 1
    assert window.admit(20.5)


@pytest.mark.parametrize(("late", "admitted"), [(0.04, False), (0.06, True)])
def test_an_entry_counts_a_little_longer_than_the_period_because_timers_are_late(
    late: float, *, admitted: bool
) -> None:
    window = RestartWindow(intensity=1, period=0.3)
    window.admit(1e6)

    assert window.admit(1e6 + 0.1 + 0.2 + late) is admitted


def test_counting_forgets_nothing() -> None:
    window = RestartWindow(intensity=1, period=10.0)
    window.admit(0.0)

    assert window.count(20.0) == 0
    assert window.forget(20.0) == 1
    assert window.forget(20.0) == 0


def test_restarts_are_counted_by_their_causes() -> None:
    window = RestartWindow(intensity=9, period=10.0)
    window.admit(0.0, "one", "two")
    window.admit(1.0, "one")

    assert [window.count(1.0, name) for name in ("one", "two", "three", None)] == [2, 1, 0, 2]


def test_no_intensity_gives_up_at_once() -> None:
    assert not RestartWindow(intensity=0, period=1.0).admit(0.0)


def test_a_held_clock_stands_still() -> None:
    clock = ServiceClock()
    shown = [clock.read(5.0)]
    clock.hold(10.0)
    clock.hold(11.0)
    shown += [clock.read(10.0), clock.read(100.0)]
    clock.release(110.0)
    clock.release(111.0)
    shown += [clock.read(110.0), clock.read(112.0)]

    assert shown == [5.0, 10.0, 10.0, 10.0, 12.0]


@pytest.mark.parametrize("now", [0.0, 3.0])
def test_a_clock_that_was_never_held_shows_the_time(now: float) -> None:
    assert ServiceClock().read(now) == now

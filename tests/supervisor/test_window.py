import pytest

from vllmfront.supervisor import RestartWindow


def test_as_many_restarts_as_tolerated_are_admitted() -> None:
    window = RestartWindow(intensity=2, period=10.0)

    assert [window.admit(now) for now in (0.0, 1.0, 2.0)] == [True, True, False]


def test_what_is_older_than_the_period_is_forgotten() -> None:
    window = RestartWindow(intensity=1, period=10.0)

    assert window.admit(0.0)
    assert not window.admit(10.0)
    assert window.count(10.5) == 1
    assert window.admit(20.5)


def test_no_intensity_gives_up_at_once() -> None:
    assert not RestartWindow(intensity=0, period=1.0).admit(0.0)


@pytest.mark.parametrize(("intensity", "period"), [(-1, 1.0), (1, 0.0)])
def test_nonsense_is_refused(intensity: int, period: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        RestartWindow(intensity=intensity, period=period)

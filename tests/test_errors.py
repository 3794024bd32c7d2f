import pytest

from vllmfront.errors import EngineDied, Overloaded, Reason, VllmFrontError


@pytest.mark.parametrize(
    "error", [EngineDied("gone"), Overloaded("full", reason=Reason.QUEUE_FULL, limit=3, current=4)]
)
def test_a_twin_says_the_same_and_has_its_own_traceback(error: VllmFrontError) -> None:
    with pytest.raises(VllmFrontError):
        raise error
    twin = error.twin()

    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)
    assert twin.__traceback__ is None
    assert error.__traceback__ is not None

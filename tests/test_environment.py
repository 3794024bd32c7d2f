import pytest

from vllmfront.environment import positive_number, switch, whole_number
from vllmfront.errors import ConfigurationError


@pytest.mark.parametrize("text", ["x", "-1", "1", "1.5", "\u0663", "9" * 5000 + "x"])
def test_what_is_no_whole_number_or_too_low_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="VARIABLE must be a whole number of at least 2"):
        whole_number({"VARIABLE": text}, "VARIABLE", 7, low=2)


def test_a_number_without_an_end_is_cut() -> None:
    assert whole_number({"VARIABLE": "9" * 5000}, "VARIABLE", 7) == 10**18 - 1


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "x"])
def test_a_number_that_is_not_positive_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="VARIABLE must be a positive number"):
        positive_number({"VARIABLE": text}, "VARIABLE", 1.0)


def test_an_empty_variable_is_unset() -> None:
    assert positive_number({"VARIABLE": ""}, "VARIABLE", 7.5) == 7.5
    assert positive_number({"VARIABLE": "2.5"}, "VARIABLE", 7.5) == 2.5
    assert whole_number({"VARIABLE": ""}, "VARIABLE", 7) == 7
    assert not switch({}, "VARIABLE")
    assert switch({"VARIABLE": "True"}, "VARIABLE")

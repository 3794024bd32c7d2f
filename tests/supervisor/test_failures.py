import pytest

from vllmfront.errors import EngineDied
from vllmfront.supervisor._failures import failure_text, is_bug


@pytest.mark.parametrize(
    ("error", "text", "bug"),
    [
        (EngineDied("the engine died"), "the engine died", False),
        (EngineDied(), "EngineDied", False),
        (KeyError("x"), "KeyError: 'x'", True),
        (RuntimeError(), "RuntimeError", True),
        (ExceptionGroup("g", [EngineDied("a"), EngineDied("b")]), "a; b", False),
        (ExceptionGroup("g", [EngineDied("a"), EngineDied("a")]), "a", False),
        (ExceptionGroup("g", [ExceptionGroup("h", [OSError("b")])]), "OSError: b", True),
        (ExceptionGroup("g", [EngineDied("a"), ValueError("b")]), "a; ValueError: b", True),
    ],
)
def test_failures_are_told_in_one_text(error: Exception, text: str, *, bug: bool) -> None:
    assert failure_text(error) == text
    assert is_bug(error) is bug

from pathlib import Path

import pytest

from vllmfront.engine import EngineError, FinishReason
from vllmfront.errors import ConfigurationError
from vllmfront.simulator import Act, Rule, load_script


def load(folder: Path, text: str) -> list[Rule]:
    path = folder / "script.json"
    path.write_text(text)
    return list(load_script(path).rules)


def test_a_script_is_read(tmp_path: Path) -> None:
    rules = load(
        tmp_path,
        """{"rules": [
            {"prompt": [1, 2], "times": 1, "tokens": [3, 4]},
            {"request_id": "^x", "nth": 2, "acts": [
                {"after": 0.5, "tokens": [5], "raw": "00ff"},
                {"finish": "repetition", "stop_reason": "because"},
                {"finish": 9, "error": {"code": "c", "message": "m", "retryable": true}},
                {"silence": true}, {"die": true}, {"vanish": true}
            ]}
        ]}""",
    )

    assert rules[0] == Rule(prompt=(1, 2), times=1, tokens=(3, 4))
    assert rules[1].acts == (
        Act(after=0.5, tokens=(5,), raw=b"\0\xff"),
        Act(finish=FinishReason.REPETITION, stop_reason="because"),
        Act(finish=9, error=EngineError("c", "m", retryable=True)),
        Act(silence=True),
        Act(die=True),
        Act(vanish=True),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ('{"rules": [{"promt": [1]}]}', "promt"),
        ('{"rules": [{"acts": [{"finish": "never"}]}]}', "finish must be a number or one of"),
        ('{"rules": [{"acts": [{"stop_reason": []}]}]}', "stop_reason must be"),
        ('{"rules": [{"acts": [{"raw": 7}]}]}', "raw must be"),
        ('{"rules": 7}', "makes no sense"),
    ],
)
def test_a_bad_script_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(tmp_path, text)


def test_a_missing_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read"):
        load_script(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        (Rule(), True),
        (Rule(prompt=(1, 2)), True),
        (Rule(prompt=(1,)), False),
        (Rule(request_id="b-"), True),
        (Rule(request_id="^b"), False),
        (Rule(nth=3), True),
        (Rule(nth=0), False),
        (Rule(prompt=(1, 2), nth=0), False),
    ],
)
def test_all_conditions_of_a_rule_count(rule: Rule, matches: bool) -> None:
    assert rule.matches("ab-c", [1, 2], 3) is matches

from typing import Any

import pytest

from vllmfront.chat import (
    NamedTemplates,
    clean_template_file,
    is_inline_template,
    templates_from_config,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("t", NamedTemplates("t")),
        (None, NamedTemplates(None)),
        (
            [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "u"}],
            NamedTemplates("d", "u"),
        ),
        ([{"name": "chat", "template": "c"}], NamedTemplates("c")),
        ({"default": "d", "rag": "r"}, NamedTemplates("d")),
        ([{"name": "a", "template": "a"}, {"name": "b", "template": "b"}, 3], NamedTemplates(None)),
    ],
)
def test_configs_hold_one_template_or_named_ones(value: Any, expected: NamedTemplates) -> None:
    assert templates_from_config(value) == expected


def test_the_tool_template_is_chosen_for_tools() -> None:
    named = NamedTemplates("d", "u")

    assert named.choose(with_tools=False) == "d"
    assert named.choose(with_tools=True) == "u"
    assert NamedTemplates("d").choose(with_tools=True) == "d"


def test_braces_or_a_line_end_make_an_inline_template() -> None:
    assert is_inline_template("{{ x }}")
    assert is_inline_template("a\nb")
    assert not is_inline_template("./template.jinja")


def test_template_files_are_trimmed_and_unescaped() -> None:
    assert clean_template_file("\n  a\\nb \n\n") == "a\nb"

from vllmfront.chat import (
    NamedTemplates,
    clean_template_file,
    is_inline_template,
)


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

# ruff: noqa: E501 - rows of a table are easier to compare than broken lines

import jinja2
import pytest

from vllmfront.chat import ContentFormat
from vllmfront.chat._format_detection import detect_content_format

LOOP = "{% for p in c %}{{ p }}{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% for p in m['content'] if p.type == 'text' %}{% endfor %}{% endfor %}",
        "{% for m in messages[1:] %}{% for p in m.content | list %}{% endfor %}{% endfor %}",
        "{% set ms = messages | list %}{% for m in ms %}{% for p in m.content %}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% set c = m.content %}" + LOOP + "{% endfor %}",
        "{% for m in messages %}{% set c = m.content or [] %}" + LOOP + "{% endfor %}",
        "{% for m in messages %}{% set c = m.content if m.content else '' %}"
        + LOOP
        + "{% endfor %}",
        "{% macro show(c) %}"
        + LOOP
        + "{% endmacro %}{% for m in messages %}{{ show(m.content) }}{% endfor %}",
        "{% macro show(c) %}"
        + LOOP
        + "{% endmacro %}{% for m in messages %}{{ show(c=m.content) }}{% endfor %}",
        "{% macro show(m) %}{% for p in m.content %}{% endfor %}{% endmacro %}{{ show(messages[0]) }}",
        "{% set first = messages[0] %}{% for p in first.content %}{% endfor %}",
    ],
)
def test_loops_over_content_ask_for_parts(template: str) -> None:
    parsed = jinja2.Environment().parse(template)

    assert detect_content_format(parsed) is ContentFormat.OPENAI


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content }}",
        "{% for m in messages %}{{ m.content[0].text }}{% endfor %}",
        "{% for m in messages %}{{ m.content | selectattr('type', 'equalto', 'text') }}{% endfor %}",
        "{% for m in messages %}{% for line in m.content.split('\n') %}{% endfor %}{% endfor %}",
        "{% for t in tools %}{% for p in t.content %}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% for call in m.tool_calls %}{% endfor %}{% endfor %}",
    ],
)
def test_everything_else_asks_for_strings(template: str) -> None:
    parsed = jinja2.Environment().parse(template)

    assert detect_content_format(parsed) is ContentFormat.STRING

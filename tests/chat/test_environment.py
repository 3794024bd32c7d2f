# ruff: noqa: E501 - rows of a table are easier to compare than broken lines
"""What templates of the wild expect of their environment, in both kinds of it."""

import re

import pytest

from vllmfront.chat import ChatOptions, ChatPrompt, ChatRenderer, Message, NamedTemplates

MESSAGES = [Message(role="user", content="Hello there"), Message(role="assistant", content="b")]


def render(template: str, *, as_request: bool) -> str:
    chat = ChatPrompt(messages=MESSAGES, chat_template=template if as_request else None)
    options = ChatOptions(trust_request_template=True)
    return ChatRenderer(NamedTemplates(template), options=options).render(chat).text


@pytest.mark.parametrize("as_request", [False, True], ids=["model", "request"])
@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("  {% if true %}\n  x\n  {% endif %}\ny\n", "  x\ny"),
        (
            (
                "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 2 %}{% break %}"
                "{% endif %}{{ i }}{% endfor %}"
            ),
            "02",
        ),
        ("{% for x in [] %}a{% else %}none{% endfor %}", "none"),
        (
            "{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}/{{ loop.length }} {% endfor %}",
            "1/2 2/2 ",
        ),
        (
            (
                "{% for x in [1, 2] %}{{ loop.previtem }}-{{ loop.nextitem }} {{ loop.first }}{{ loop.last }}"
                "{% endfor %}"
            ),
            "-2 TrueFalse1- FalseTrue",
        ),
        (
            "{% for x in [1, [2, [3]]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}",
            "123",
        ),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}", "b"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}", "a1"),
        ("{% filter upper %}abc{% endfilter %}", "ABC"),
        ("{% raw %}{{ x }}{% endraw %}", "{{ x }}"),
        ("{% with a = 1 %}{{ a }}{% endwith %}", "1"),
        ("{% block b %}x{% endblock %}", "x"),
        (
            (
                "{% macro m(a, b='d') %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}"
                "{{ m('x') }}{% call m(1, 2) %}c{% endcall %}"
            ),
            "xd12c",
        ),
        ("{% do messages[0].get('x') %}{{ messages[0].get('nokey', 'q') }}", "q"),
        (
            (
                "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
                "{{ ns.n }}"
            ),
            "2",
        ),
        ("{{ dict([['a', 1]], b=2) }}{{ dict({'a': 1}) }}", "{'a': 1, 'b': 2}{'a': 1}"),
        (
            (
                "{{ 'xaxbx'.strip('x') }}{{ ' a '.lstrip() }}{{ 'ab' | trim('b') }}{{ 'a.b.c'.rsplit('.', 1) }}"
                "{{ 'abca'.rfind('a') }}{{ ' a '.rstrip(none) }}"
            ),
            "axba a['a.b', 'c']3 a",
        ),
        ("{{ dict(a=1).a }}{{ {'a': 1}.items() | list }}", "1[('a', 1)]"),
        ("{{ messages[::-1] | map(attribute='role') | join(',') }}", "assistant,user"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        (
            "{{ messages | rejectattr('role', 'in', ['user']) | map(attribute='content') | first }}",
            "b",
        ),
        ("{{ [3, 1, 2] | sort | join('-') }}{{ 'abc' | list | last }}", "1-2-3c"),
        (
            "{{ 'a,b' | split(',') }}{{ [1] | zip(['x']) }}{{ [1] | chain([2]) }}{{ 'a\nb' | lines }}{{ '' | bool }}",
            "['a', 'b'][(1, 'x')][1, 2]['a', 'b']False",
        ),
        ("{{ {'b': '<é>', 'a': 1e-7} | tojson }}", '{"b": "<é>", "a": 1e-07}'),
        (
            "{{ {'b': 1, 'a': [1]} | tojson(indent=2, sort_keys=true) }}",
            '{\n  "a": [\n    1\n  ],\n  "b": 1\n}',
        ),
        ("{{ ['é', 1] | tojson(ensure_ascii=true, separators=(',', ':')) }}", '["\\u00e9",1]'),
        (
            (
                "{{ 'x y z'.rsplit(' ', 1)[0] }}{{ 'abc'.removeprefix('a') }}{{ 'a'.ljust(3) }}|{{ '7'.zfill(3) }}"
                "{{ 'a-b'.partition('-')[2] }}{{ 'ABC'.casefold() }}{{ 'abc'.index('c') }}"
            ),
            "x ybca  |007babc2",
        ),
        (
            "{{ 'a'.center(3) }}|{{ 'ab' | center(4) }}|{{ 'a b c' | wordcount }}|{{ 'long text' | truncate(5, true, '.', 0) }}",
            " a | ab |3|long.",
        ),
        (
            "{{ '{}-{a}'.format(1, a=2) }}{{ '%s %d' % ('a', 3) }}{{ '%s' | format('b') }}{{ 'é' | urlencode }}",
            "1-2a 3b%C3%A9",
        ),
        (
            "{{ 'ab' * 2 }}{{ 2 * [1] }}{{ [1] + [2] }}{{ 2 ** 3 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 'a' ~ 1 ~ none }}",
            "abab[1, 1][1, 2]833a1None",
        ),
        (
            "{{ 'hello'[1:3] }}{{ (1, 2, 3)[::-1] }}{{ 'a' if 1 < 2 <= 2 and 'x' not in ['y'] else 'b' }}",
            "el(3, 2, 1)a",
        ),
        (
            "{{ none }}{{ true }}{{ [1, 'a', none] }}{{ {'a': none} }}{{ 1.0 }}",
            "NoneTrue[1, 'a', None]{'a': None}1.0",
        ),
        (
            (
                "{{ x is undefined }}{{ messages is sequence }}{{ messages[0] is mapping }}"
                "{{ 'a' is string }}{{ range is callable }}"
            ),
            "TrueTrueTrueTrueTrue",
        ),
        ("{{ nothing }}|{{ messages[0].nothing }}|{{ messages[9] }}", "||"),
        ("{{ '<' | e }}{{ '<' }}{{ ' x ' | trim }}{{ 'a\nb' | indent(2) }}", "&lt;<xa\n  b"),
        (
            "{% set j = joiner(', ') %}{{ j() }}a{{ j() }}b{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}",
            "a, b12",
        ),
    ],
)
def test_templates_find_what_they_expect(template: str, expected: str, *, as_request: bool) -> None:
    assert render(template, as_request=as_request) == expected


def test_the_date_is_todays() -> None:
    assert re.fullmatch(
        r"\d{2} \w{3} \d{4}", render("{{ strftime_now('%d %b %Y') }}", as_request=True)
    )

"""Templates that come with a request must not hurt the server."""

import resource
from collections.abc import Iterator
from typing import Any

import pytest

from vllmfront.chat import (
    ChatOptions,
    ChatPrompt,
    ChatRenderer,
    Message,
    NamedTemplates,
    TemplateFailed,
    Tool,
    ToolCall,
    fuel_from_environment,
)
from vllmfront.chat._template import compile_request_template
from vllmfront.errors import ConfigurationError

MEMORY_LIMIT_KIB = 150 << 10
TRUSTING = ChatOptions(trust_request_template=True)

LOOP = "{% for i in range(90000) %}"
END = "{% endfor %}"
LONG = "{% set s = 'a' * 1000000 %}"
NS = "{% set ns = namespace(v=V) %}{% for i in range(100) %}{% set ns.v = X %}{% endfor %}"


def grow(start: str, step: str, use: str = "{{ ns.v }}") -> str:
    return NS.replace("V", start).replace("X", step) + use


BOMBS = {
    "loops": LOOP + LOOP + "x" + END + END,
    "filtered loops": LOOP + "{% for j in range(90000) if false %}" + END + END,
    "endless range": "{% for i in range(10**12) %}x{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "doubling recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
    "{% endmacro %}{{ m(60) }}",
    "recursive block": "{% block a %}{{ self.a() }}{% endblock %}",
    "recursive loop": "{% for x in [[[[]]]] recursive %}{{ loop([[x]]) }}{% endfor %}",
    "repetition": "{{ 'a' * 10**9 }}",
    "list repetition": "{{ ([1] * 10**9) | length }}",
    "doubling +": grow("'a'", "ns.v + ns.v"),
    "doubling ~": grow("'a'", "ns.v ~ ns.v"),
    "doubling by format": grow("'a'", "'{}{}'.format(ns.v, ns.v)"),
    "doubling by percent": grow("'a'", "'%s%s' % (ns.v, ns.v)"),
    "doubling by replace": grow("'a'", "ns.v.replace('a', 'aa')"),
    "doubling by join": grow("'a'", "[ns.v, ns.v] | join"),
    "doubling list": grow("[1]", "ns.v + ns.v"),
    "nested lists": grow("[1]", "[ns.v, ns.v]"),
    "nested lists compared": grow("[1]", "[ns.v, ns.v]", "{{ ns.v == ns.v }}"),
    "nested tuples hashed": grow("(1,)", "(ns.v, ns.v)", "{{ {ns.v: 1} }}"),
    "nested dicts": grow("{}", "dict(a=ns.v, b=ns.v)", "{{ ns.v | tojson }}"),
    "nested varargs": "{% macro m() %}{{ m(varargs, varargs) }}{% endmacro %}{{ m(1, 1) }}",
    "deep tuples": "{% set ns = namespace(v=()) %}" + LOOP + "{% set ns.v = (ns.v,) %}" + END,
    "squaring": grow("3", "ns.v * ns.v"),
    "power": "{{ 2 ** 1000000000 }}",
    "join": "{{ range(90000) | join('x' * 100000) }}",
    "join method": "{{ ('x' * 100000).join(('a' * 100000).split('a')) }}",
    "replace nothing": "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
    "replace filter": "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "translate": "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
    "tabs": "{{ '\t'.expandtabs(10**9) }}",
    "format width": "{{ '{:>999999999}'.format('a') }}",
    "format width argument": "{{ '{:{w}}'.format('a', w=999999999) }}",
    "format width text": "{{ '{0:{1}}'.format('a', '999999999') }}",
    "format map": "{{ '{a:>999999999}'.format_map({'a': 1}) }}",
    "format of nested": grow("[1]", "[ns.v, ns.v]", "{{ '{}'.format(ns.v) }}"),
    "percent width": "{{ '%999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "percent precision": "{{ '%.999999999f' % 1.5 }}",
    "percent filter": "{{ '%999999999d' | format(1) }}",
    "percent by name": "{{ '%(a)999999999d' | format(a=1) }}",
    "center": "{{ 'a' | center(10**9) }}",
    "center method": "{{ 'a'.center(10**9) }}",
    "center by attr": "{{ ('a' | attr('center'))(10**9) }}",
    "center by item": "{{ 'a'['center'](10**9) }}",
    "center by map": "{{ 'x' | map('center', 10**9) | list }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "indent": "{{ 'a\nb' | indent(10**9) }}",
    "indent with text": "{{ ('\n' * 100000) | indent('x' * 100000) }}",
    "batch": "{{ [1] | batch(10**9, 'x') | list }}",
    "slice": "{{ [1] | slice(10**9) | list }}",
    "sum of lists": "{{ ([range(90000) | list] * 10) | sum(start=[]) }}",
    "round": "{{ 1.5 | round(10**9, 'ceil') }}",
    "json indent": "{{ {'a': 1} | tojson(indent=10**9) }}",
    "json indent text": "{{ [[[[1]]]] | tojson(indent='x' * 1000000) }}",
    "json separators": "{{ range(90000) | list | tojson(separators=('x' * 100000, ':')) }}",
    "search backwards": "{{ ('a' * 1000000).rfind('ab' + 'a' * 500000) }}",
    "split backwards": "{{ ('a' * 1000000).rsplit('ab' + 'a' * 500000) }}",
    "strip": "{{ ('\u4e00' * 300000).strip('\u4e01' * 300000 + '\u4e00') }}",
    "trim": "{{ ('\u4e00' * 300000) | trim('\u4e01' * 300000 + '\u4e00') }}",
    "colliding keys": "{{ dict(range(0, (2**61 - 1) * 90000, 2**61 - 1) | zip(range(90000))) }}",
    "colliding keys of a method": "{{ dict.fromkeys(range(0, (2**61 - 1) * 90000, 2**61 - 1)) }}",
    "bytes": "{{ 'a'.encode().ljust(10**9) }}",
    "int to bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "lorem": "{{ lipsum(n=10**6) }}",
    "printing": LONG + LOOP + "{{ s }}" + END,
    "printing in a macro": LONG
    + "{% macro m() %}"
    + LOOP
    + "{{ s }}"
    + END
    + "{% endmacro %}{{ m() }}",
    "printing in set": LONG + "{% set x %}" + LOOP + "{{ s }}" + END + "{% endset %}",
    "printing text": LOOP + "t" * 10000 + END,
    "statements": LOOP + "{% if x %}a{% endif %}" * 4000 + END,
    "slices kept": LONG
    + "{% set ns = namespace(l=[]) %}"
    + LOOP
    + "{% set ns.l = ns.l + [s[1:]] %}"
    + END,
    "lists made": LOOP + "{% set l = range(90000) | list %}" + END,
    "searches": LONG + LOOP + "{{ s.find('b') }}" + END,
    "searches by in": LONG + LOOP + "{{ 'b' in s }}" + END,
    "words": LONG + LOOP + "{{ s | wordcount }}" + END,
    "sums": LOOP + "{{ range(90000) | sum }}" + END,
    "autoescape": "{% autoescape 'a' | center(10**9) %}x{% endautoescape %}",
    "escapes": "{% autoescape true %}{{ ('&' * 1000000) | e | e | e }}{% endautoescape %}",
    "nested source": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested blocks": "{% if true %}" * 300 + "{% endif %}" * 300,
    "long sum": "{{ " + "1 + " * 20000 + "1 }}",
    "long source": "x" * 100_000,
    "many parts": "{{a}}" * 12_500,
    "many operands": "{{ " + "a ~ " * 12000 + "a }}",
    "many statements": "{% set a = 1 %}" * 4300,
}


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < MEMORY_LIMIT_KIB


def render(template: str) -> str:
    chat = ChatPrompt(messages=[Message(role="user", content="hi")], chat_template=template)
    return ChatRenderer(options=TRUSTING).render(chat).text


@pytest.mark.usefixtures("bounded_memory")
@pytest.mark.parametrize("template", BOMBS.values(), ids=BOMBS)
def test_a_bomb_ends_early_and_small(template: str) -> None:
    with pytest.raises(TemplateFailed):
        render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ '{0.__class__}'.format('') }}",
        "{{ '{a.__class__}'.format_map({'a': ''}) }}",
        "{{ [''] | map(attribute='__class__') | list }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
    ],
)
def test_the_way_out_of_the_sandbox_is_shut(template: str) -> None:
    try:
        text = render(template)
    except TemplateFailed:
        return

    assert "class" not in text
    assert "globals" not in text


def test_what_holds_itself_prints_nothing_of_it() -> None:
    text = render("{% set ns = namespace(n=1) %}{% set ns.a = [ns, ns] %}{{ ns }}{{ ns.a }}")

    assert text == "<Namespace>[<Namespace>, <Namespace>]"


def test_a_models_template_has_fuel_for_long_conversations_only() -> None:
    many = [Message(role="user", content="hi")] * 3000
    loop = (
        "{% for m in messages %}{% for i in range(200) %}{{ i if false }}{% endfor %}{% endfor %}"
    )
    endless = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"

    assert ChatRenderer(NamedTemplates(loop)).render(ChatPrompt(messages=many)).text == ""
    with pytest.raises(TemplateFailed, match="ran out of fuel"):
        ChatRenderer(NamedTemplates(endless)).render(ChatPrompt(messages=many[:1]))


def test_fuel_is_set_by_the_operator() -> None:
    chat = ChatPrompt(messages=[])
    template = NamedTemplates("{% for i in range(1000) %}{% endfor %}")

    assert ChatRenderer(template).render(chat).text == ""
    with pytest.raises(TemplateFailed, match="ran out of fuel"):
        ChatRenderer(template, options=ChatOptions(fuel=100)).render(chat)


@pytest.mark.parametrize(
    ("environ", "fuel"),
    [
        ({}, 500_000),
        ({"VLLM_CHAT_TEMPLATE_FUEL": ""}, 500_000),
        ({"VLLM_CHAT_TEMPLATE_FUEL": "7"}, 7),
        ({"VLLM_CHAT_TEMPLATE_FUEL": "9" * 5000}, 10**18 - 1),
    ],
)
def test_fuel_comes_from_the_environment(environ: dict[str, str], fuel: int) -> None:
    assert fuel_from_environment(environ) == fuel


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "\u0663"])
def test_fuel_must_be_a_positive_number(text: str) -> None:
    with pytest.raises(ConfigurationError, match="VLLM_CHAT_TEMPLATE_FUEL must be"):
        fuel_from_environment({"VLLM_CHAT_TEMPLATE_FUEL": text})


def test_long_arguments_and_tools_may_be_printed() -> None:
    call = ToolCall(id="c", name="f", arguments={"text": "a" * 3_000_000})
    tool = Tool(name="f", parameters={"enum": ["b" * 3_000_000]})
    template = "{{ messages | tojson }}{{ tools | tojson(indent=2) }}"
    chat = ChatPrompt(
        messages=[Message(role="assistant", content="", tool_calls=[call])],
        tools=[tool],
        chat_template=template,
    )

    assert len(ChatRenderer(options=TRUSTING).render(chat).text) > 6_000_000


def test_arguments_nested_without_end_are_refused() -> None:
    arguments: list[Any] = []
    for _ in range(500):
        arguments = [arguments]
    call = ToolCall(id="c", name="f", arguments=arguments)
    chat = ChatPrompt(
        messages=[Message(role="assistant", content="", tool_calls=[call])],
        chat_template="{{ messages | tojson }}",
    )

    with pytest.raises(TemplateFailed, match="too deeply"):
        ChatRenderer(options=TRUSTING).render(chat)


def test_long_texts_of_the_client_may_be_worked_on() -> None:
    template = (
        "{% for m in messages %}{{ m.content.replace('a', 'ab') | trim }}"
        "{{ m.content.split('x')[-1] | upper }}{% endfor %}"
    )
    chat = ChatPrompt(
        messages=[Message(role="user", content="a" * 2_000_000)], chat_template=template
    )

    assert len(ChatRenderer(options=TRUSTING).render(chat).text) == 6_000_000


def test_request_templates_are_compiled_once_and_only_some_are_kept() -> None:
    compile_request_template.cache_clear()

    for number in range(100):
        assert render(f"{number}") == render(f"{number}")

    info = compile_request_template.cache_info()
    assert (info.hits, info.misses, info.currsize) == (100, 100, 32)

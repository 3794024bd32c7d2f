from typing import Any

import pytest

from vllmfront.chat import (
    ChatOptions,
    ChatPrompt,
    ChatRenderer,
    ContentFormat,
    Message,
    NamedTemplates,
    TemplateFailed,
    Tool,
    ToolCall,
)
from vllmfront.errors import RequestRejected

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHOW = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}"
USER = Message(role="user", content="hi")


def render(
    template: str, *messages: Message, options: ChatOptions | None = None, **chat: Any
) -> str:
    renderer = ChatRenderer(NamedTemplates(template), options=options)
    return renderer.render(ChatPrompt(messages=messages or (USER,), **chat)).text


def test_a_chat_becomes_a_prompt() -> None:
    prompt = render(CHATML, Message(role="system", content="Be kind."), USER)

    assert prompt == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_generation_prompt_can_be_left_out() -> None:
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_templates_see_messages_in_the_openai_shape() -> None:
    prompt = render(
        SHOW,
        Message(role="developer", content="x", tools=[Tool(name="g", strict=False)]),
        Message(role="user", content=["a", "b"]),
        Message(
            role="assistant",
            content="",
            reasoning="r",
            tool_calls=[ToolCall(id="c", name="f", arguments={"é": 1})],
        ),
        Message(role="tool", content="<ok>", tool_call_id="c"),
    )

    assert prompt == (
        '{"role": "developer", "content": "x", "tools": [{"type": "function", "function":'
        ' {"name": "g", "description": null, "parameters": null, "strict": false}}]}\n'
        '{"role": "user", "content": "ab"}\n'
        '{"role": "assistant", "content": "", "reasoning": "r", "reasoning_content": "r",'
        ' "tool_calls": [{"id": "c", "type": "function", "function":'
        ' {"name": "f", "arguments": {"é": 1}}}]}\n'
        '{"role": "tool", "content": "<ok>", "tool_call_id": "c"}\n'
    )


def test_tools_and_documents_are_undefined_when_absent() -> None:
    template = "{{ tools is defined }}{{ documents is defined }}{{ bos_token is defined }}"

    assert render(template) == "FalseFalseFalse"
    assert render(template, tools=[Tool(name="f")], documents=[]) == "TrueTrueFalse"


def test_tools_keep_the_order_of_their_schema() -> None:
    tool = Tool(name="f", description="d", parameters={"z": 1, "a": {"y": 1, "b": 2}}, strict=True)

    assert render("{{ tools | tojson }}", tools=[tool]) == (
        '[{"type": "function", "function": {"name": "f", "description": "d",'
        ' "parameters": {"z": 1, "a": {"y": 1, "b": 2}}, "strict": true}}]'
    )


def test_tools_are_hidden_from_tool_choice_none_only_on_request() -> None:
    hiding = ChatOptions(exclude_tools_when_tool_choice_none=True)
    chat: dict[str, Any] = {"tools": [Tool(name="f")], "tool_choice_is_none": True}

    assert render("{{ tools is defined }}", **chat) == "True"
    assert render("{{ tools is defined }}", options=hiding, **chat) == "False"


def test_special_tokens_are_names_in_the_template() -> None:
    renderer = ChatRenderer(
        NamedTemplates("{{ bos_token }}{{ eos_token }}"), special_tokens={"eos_token": "</s>"}
    )

    assert renderer.render(ChatPrompt(messages=[USER])).text == "</s>"


def test_request_kwargs_beat_everything_but_the_effort() -> None:
    options = ChatOptions(default_template_kwargs={"x": "server", "enable_thinking": "server"})
    template = "{{ x }} {{ enable_thinking }} {{ reasoning_effort }} {{ messages[0].content }}"

    assert render(template, options=options) == "server server  hi"
    assert render(template, options=options, reasoning_effort="none") == "server False none hi"
    assert render(template, options=options, reasoning_effort="low") == "server True low hi"
    assert (
        render(
            template,
            options=options,
            reasoning_effort="high",
            chat_template_kwargs={
                "x": None,
                "enable_thinking": 0,
                "reasoning_effort": "z",
                "messages": [{"content": "q"}],
            },
        )
        == "None 0 high q"
    )


def test_the_kwargs_in_force_are_reported() -> None:
    renderer = ChatRenderer(
        NamedTemplates(CHATML), options=ChatOptions(default_template_kwargs={"a": 1})
    )

    rendered = renderer.render(
        ChatPrompt(messages=[USER], reasoning_effort="low", chat_template_kwargs={"b": 2})
    )

    assert rendered.template_kwargs == {
        "a": 1,
        "enable_thinking": True,
        "b": 2,
        "reasoning_effort": "low",
    }


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (ContentFormat.AUTO, '"ab"'),
        (ContentFormat.STRING, '"ab"'),
        (ContentFormat.OPENAI, '[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]'),
    ],
)
def test_the_content_format_can_be_forced(wanted: ContentFormat, expected: str) -> None:
    parts = Message(role="user", content=["a", "b"])
    options = ChatOptions(content_format=wanted)

    assert render("{{ messages[0].content | tojson }}", parts, options=options) == expected


def test_a_template_that_loops_over_content_gets_parts() -> None:
    template = (
        "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}"
    )

    assert render(template, USER, Message(role="assistant", content="")) == "<hi><>"


def test_without_a_template_chats_fail_and_say_so() -> None:
    renderer = ChatRenderer()

    assert renderer.problem == "chat template is required but none was configured"
    with pytest.raises(TemplateFailed) as caught:
        renderer.render(ChatPrompt(messages=[USER]))
    assert str(caught.value) == (
        "failed to submit chat request: chat template is required but none was configured"
    )


def test_a_broken_template_fails_each_chat_but_not_the_start() -> None:
    renderer = ChatRenderer(NamedTemplates("{% for %}"))

    assert renderer.problem is not None
    for _ in range(2):
        with pytest.raises(TemplateFailed, match=r"syntax error: .* \(in chat:1\)"):
            renderer.render(ChatPrompt(messages=[USER]))


def test_the_tool_template_serves_chats_with_tools() -> None:
    renderer = ChatRenderer(NamedTemplates("plain", tool_use="tools"))

    assert renderer.problem is None
    assert renderer.render(ChatPrompt(messages=[USER])).text == "plain"
    assert renderer.render(ChatPrompt(messages=[USER], tools=[Tool(name="f")])).text == "tools"


def test_a_request_template_needs_trust() -> None:
    trusting = ChatOptions(trust_request_template=True)

    assert render("x", chat_template="{{ messages[0].content }}", options=trusting) == "hi"
    with pytest.raises(RequestRejected, match="--trust-request-chat-template is not set"):
        render("x", chat_template="y")


def test_what_a_template_refuses_is_said_in_its_words() -> None:
    with pytest.raises(RequestRejected) as caught:
        render("{{ raise_exception('Roles must alternate') }}")

    assert str(caught.value) == "Roles must alternate"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\n{{ x.y.z }}", "'x' is undefined (in chat:2)"),
        ("{{ 1 / 0 }}", "division by zero (in chat:1)"),
        ("{{ 'a' | nofilter }}", "syntax error: No filter named 'nofilter'. (in chat:1)"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "it calls itself too deeply"),
        ("{% include 'x' %}", "no loader for this environment specified (in chat:1)"),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe."),
        (
            "{{ ''.__class__.__mro__ }}",
            "access to attribute '__class__' of 'str' object is unsafe.",
        ),
    ],
)
def test_other_faults_of_templates_are_told_with_their_line(template: str, message: str) -> None:
    with pytest.raises(TemplateFailed) as caught:
        render(template)

    assert str(caught.value).startswith(
        "failed to submit chat request: chat template error: failed to render jinja template: "
        + message
    )


def test_one_renderer_serves_several_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    renderer = ChatRenderer(NamedTemplates(CHATML))

    def prompt(number: int) -> str:
        return renderer.render(
            ChatPrompt(messages=[Message(role="user", content=str(number))] * 20)
        ).text

    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(prompt, range(200)))

    assert texts == [prompt(number) for number in range(200)]

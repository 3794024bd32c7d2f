from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmfront.chat import Message, Tool, ToolCall, available_tools, parse_messages, parse_tools
from vllmfront.errors import MalformedRequest, RequestRejected

USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "http://x/y"}}
NO_VARIANT = "messages[0]: data did not match any variant of untagged enum MessageContent"
NOTHING_SAID = "Assistant messages must contain text, reasoning content, or tool_calls."


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"id": "c1", "type": "function", "function": function, **more}


def function_tool(name: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (USER, Message(role="user", content="hi")),
        (
            {"role": "user", "content": [text("a"), text("b")]},
            Message(role="user", content=["a", "b"]),
        ),
        ({"role": "system", "content": ""}, Message(role="system", content="")),
        ({"role": "system", "content": []}, Message(role="system", content=[])),
        ({"role": "", "content": "x"}, Message(role="", content="x")),
        (
            {"role": "critic", "content": "x", "name": "n", "k": 1},
            Message(role="critic", content="x"),
        ),
        (
            {"role": "tool", "content": "x", "tool_call_id": "t"},
            Message(role="tool", content="x", tool_call_id="t"),
        ),
        (
            {"role": "developer", "content": "x", "tools": [function_tool("f")]},
            Message(role="developer", content="x", tools=[Tool(name="f")]),
        ),
        (
            {"role": "assistant", "content": [text("a"), text("b")]},
            Message(role="assistant", content="ab", tool_calls=[]),
        ),
        (
            {"role": "assistant", "content": "", "refusal": "no"},
            Message(role="assistant", content="", tool_calls=[]),
        ),
        (
            {"role": "assistant", "reasoning_content": "r"},
            Message(role="assistant", content="", reasoning="r", tool_calls=[]),
        ),
        (
            {"role": "assistant", "content": "c", "reasoning": "r", "reasoning_content": "q"},
            Message(role="assistant", content="c", reasoning="r", tool_calls=[]),
        ),
        (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call('{"b": 1, "a": [1.5, null]}')],
            },
            Message(
                role="assistant",
                content="",
                tool_calls=[ToolCall(id="c1", name="f", arguments={"b": 1, "a": [1.5, None]})],
            ),
        ),
    ],
)
def test_messages_become_values(raw: dict[str, Any], expected: Message) -> None:
    assert parse_messages([raw]) == [expected]


@pytest.mark.parametrize("arguments", ["", None])
def test_absent_arguments_are_an_empty_object(arguments: str | None) -> None:
    (message,) = parse_messages([{"role": "assistant", "tool_calls": [call(arguments)]}])

    assert message.tool_calls[0].arguments == {}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("x", 'messages: invalid type: string "x", expected a sequence'),
        (None, "messages: invalid type: null, expected a sequence"),
        (
            ["x"],
            'messages[0]: invalid type: string "x", expected internally tagged enum ChatMessage',
        ),
        ([{}], "messages[0]: missing field `role`"),
        ([USER, {"role": "user"}], "messages[1]: missing field `content`"),
        (
            [{"role": 3, "content": "x"}],
            "messages[0]: invalid type: integer `3`, expected variant identifier",
        ),
        ([{"role": "user", "content": None}], NO_VARIANT),
        ([{"role": "user", "content": 1.5}], NO_VARIANT),
        ([{"role": "user", "content": ["x"]}], NO_VARIANT),
        ([{"role": "user", "content": [{"type": "text"}]}], NO_VARIANT),
        ([{"role": "user", "content": [{"type": "input_text", "text": "x"}]}], NO_VARIANT),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}], NO_VARIANT),
        ([{"role": "user", "content": [{**IMAGE, "uuid": 3}]}], NO_VARIANT),
        (
            [{"role": "user", "content": "x", "name": 3}],
            "messages[0]: invalid type: integer `3`, expected a string",
        ),
        ([{"role": "tool", "content": "x"}], "messages[0]: missing field `tool_call_id`"),
        (
            [{"role": "tool", "content": "x", "tool_call_id": True}],
            "messages[0]: invalid type: boolean `true`, expected a string",
        ),
        (
            [{"role": "developer", "content": "x", "tools": "y"}],
            'messages[0]: invalid type: string "y", expected a sequence',
        ),
        (
            [{"role": "developer", "content": "x", "tools": [{"type": "x"}]}],
            "messages[0]: missing field `function`",
        ),
        (
            [{"role": "assistant", "reasoning": 3}],
            "messages[0]: invalid type: integer `3`, expected a string",
        ),
        (
            [{"role": "assistant", "tool_calls": "x"}],
            'messages[0]: invalid type: string "x", expected a sequence',
        ),
        (
            [{"role": "assistant", "tool_calls": ["x"]}],
            'messages[0]: invalid type: string "x", expected struct ToolCall',
        ),
        ([{"role": "assistant", "tool_calls": [{"id": "x"}]}], "messages[0]: missing field `type`"),
        (
            [{"role": "assistant", "tool_calls": [call({"a": 1})]}],
            "messages[0]: invalid type: map, expected a string",
        ),
    ],
)
def test_wrong_types_are_named_by_place(raw: Any, message: str) -> None:
    with pytest.raises(MalformedRequest) as caught:
        parse_messages(raw)

    assert (
        str(caught.value) == f"Failed to deserialize the JSON body into the target type: {message}"
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], 'messages: Validation error: messages cannot be empty [{"value": Array []}]'),
        (
            [{"role": "user", "content": ""}],
            (
                "messages: Validation error: message content cannot be empty"
                ' [{"value": Array [Object {"role": String("user"), "content": String("")}]}]'
            ),
        ),
        (
            [{"role": "user", "content": []}],
            (
                "messages: Validation error: message content parts cannot be empty"
                ' [{"value": Array [Object {"role": String("user"), "content": Array []}]}]'
            ),
        ),
        (
            [{"role": "function", "content": "x", "name": "f"}],
            "Function messages are not supported.",
        ),
        ([{"role": "user", "content": [IMAGE]}], "unsupported multimodal content: image_url"),
        (
            [{"role": "tool", "content": [text("a"), IMAGE], "tool_call_id": "t"}],
            "unsupported multimodal content: image_url",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_audio", "input_audio": {"data": "aa", "format": "wav"}}
                    ],
                }
            ],
            "unsupported multimodal content: audio",
        ),
        (
            [{"role": "assistant", "content": [IMAGE]}],
            "Only text content parts are supported for assistant messages.",
        ),
        ([{"role": "assistant"}], NOTHING_SAID),
        ([{"role": "assistant", "content": []}], NOTHING_SAID),
        ([{"role": "assistant", "content": None, "reasoning": "", "tool_calls": []}], NOTHING_SAID),
        (
            [{"role": "assistant", "tool_calls": [call(type="custom")]}],
            "Only function tool calls are supported.",
        ),
    ],
)
def test_conversations_that_cannot_be_served_are_refused(raw: Any, message: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        parse_messages(raw)

    assert not isinstance(caught.value, MalformedRequest)
    assert str(caught.value) == message


@pytest.mark.parametrize("arguments", ["{bad", " ", "NaN", "[" * 100_000])
def test_arguments_that_are_no_json_are_the_clients_fault(arguments: str) -> None:
    with pytest.raises(RequestRejected, match="tool call `c1` has invalid JSON arguments"):
        parse_messages([{"role": "assistant", "tool_calls": [call(arguments)]}])


def test_an_error_repeats_only_the_head_of_a_long_conversation() -> None:
    with pytest.raises(RequestRejected) as caught:
        parse_messages(
            [{"role": "user", "content": "x" * 100_000}, {"role": "user", "content": ""}]
        )

    assert len(str(caught.value)) < 3000


def test_tools_keep_what_templates_show() -> None:
    schema = {"z": 1, "a": {"y": 1, "b": 2}}
    raw = [
        function_tool("f", description="d", strict=True, parameters=schema, extra=1),
        {"function": {"name": "g"}},
    ]

    tools = parse_tools(raw)

    assert tools == [
        Tool(name="f", description="d", parameters=schema, strict=True),
        Tool(name="g"),
    ]
    assert parse_tools(None) is None


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("x", 'tools: invalid type: string "x", expected a sequence'),
        (["x"], 'tools[0]: invalid type: string "x", expected struct Tool'),
        ([{"type": "function"}], "tools[0]: missing field `function`"),
        (
            [{"function": "x"}],
            'tools[0].function: invalid type: string "x", expected struct Function',
        ),
        ([{"function": {}}], "tools[0].function: missing field `name`"),
        (
            [function_tool("a"), function_tool(3)],
            "tools[1].function.name: invalid type: integer `3`, expected a string",
        ),
        (
            [function_tool("a", description=3)],
            "tools[0].function.description: invalid type: integer `3`, expected a string",
        ),
        (
            [function_tool("a", strict="x")],
            'tools[0].function.strict: invalid type: string "x", expected a boolean',
        ),
    ],
)
def test_malformed_tools_are_named_by_place(raw: Any, message: str) -> None:
    with pytest.raises(MalformedRequest) as caught:
        parse_tools(raw)

    assert str(caught.value).endswith(f"target type: {message}")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "`tools` must not be an empty array"),
        ([{"type": "custom", "function": {"name": "a"}}], "Only function tools are supported."),
    ],
)
def test_unusable_tools_are_refused_by_field(raw: Any, message: str) -> None:
    with pytest.raises(RequestRejected, match=message) as caught:
        parse_tools(raw)

    assert caught.value.param == "tools"


def test_tools_of_developer_messages_count_too() -> None:
    developer = Message(role="developer", content="x", tools=[Tool(name="b")])

    assert available_tools([Tool(name="a")], [developer]) == [Tool(name="a"), Tool(name="b")]
    with pytest.raises(RequestRejected, match="duplicate tool name `b`"):
        available_tools([Tool(name="b")], [developer])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "type",
                    "text",
                    "tool_calls",
                    "id",
                    "function",
                    "name",
                    "tools",
                    "image_url",
                    "url",
                    "arguments",
                    "reasoning",
                    "tool_call_id",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
roles = st.sampled_from(["user", "assistant", "tool", "developer", "system", "function", "x"])


@settings(deadline=None)
@given(st.lists(json_values), roles, json_values, json_values)
def test_any_json_gives_messages_or_a_clean_error(
    values: list[Any], role: str, content: Any, calls: Any
) -> None:
    for raw in (values, [{"role": role, "content": content, "tool_calls": calls, "tools": calls}]):
        try:
            messages = parse_messages(raw)
        except RequestRejected:
            continue
        assert len(messages) == len(raw)

"""Messages and tools out of decoded JSON, strictly.

Types are checked first, for all messages, then what the types allow and the chat layer does
not: the order, and the words, in which clients learn of their faults.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from msgspec import Struct

from vllmfront.chat._errors import InvalidMessages
from vllmfront.chat._message import Message, Tool, ToolCall
from vllmfront.chat._type_errors import (
    check_optional_string,
    malformed,
    require_list,
    require_map,
    require_member,
    wrong_type,
)
from vllmfront.errors import RequestRejected

_NO_CONTENT_VARIANT = "data did not match any variant of untagged enum MessageContent"

_PLAIN_ROLES = ("user", "assistant", "system")

_SHOWN_CHARACTERS = 2048
"""Of a conversation that an error repeats."""

# Part type -> (the member that must be there, the kind that a refusal names).
_MEDIA_PARTS = {
    "image_url": ("image_url", "image_url"),
    "video_url": ("video_url", "video_url"),
    "audio_url": ("audio_url", "audio"),
    "input_audio": ("input_audio", "audio"),
}


class _Draft(Struct, frozen=True):
    """A message of sound types, before it is judged."""

    raw: Mapping[str, Any]
    role: str
    content: str | list[str] | None
    media: str | None
    tools: Sequence[Tool] = ()


def parse_messages(raw: Any) -> list[Message]:
    """Turn decoded JSON messages into values.

    Raises:
        MalformedRequest: A member is missing or of a wrong type; names ``messages[i]``.
        RequestRejected: The types are right and the conversation is not servable.
    """
    if not require_list(raw, "messages"):
        _invalid("messages cannot be empty", raw)
    plain = [_plain(value) for value in raw]
    if all(plain):
        return plain  # type: ignore[return-value] # none of them is None
    drafts = [_draft(value, f"messages[{index}]") for index, value in enumerate(raw)]
    for draft in drafts:
        if draft.role == "user" and not draft.content:
            what = "message content" if draft.content == "" else "message content parts"
            if draft.media is None:
                _invalid(f"{what} cannot be empty", raw)
    return [_judge(draft) for draft in drafts]


def parse_tools(raw: Any) -> list[Tool] | None:
    """Turn decoded JSON tools into values; None stays None.

    Raises:
        MalformedRequest: A member is missing or of a wrong type.
        RequestRejected: The list is empty, or a tool is no function.
    """
    if raw is None:
        return None
    values = require_list(raw, "tools")
    tools = [_tool(value, f"tools[{index}]") for index, value in enumerate(values)]
    if not tools:
        raise RequestRejected(
            "`tools` must not be an empty array. Either provide at least one tool or omit the"
            " field entirely.",
            param="tools",
        )
    return tools


def available_tools(tools: Sequence[Tool] | None, messages: Sequence[Message]) -> list[Tool]:
    """Return the request's tools and those that its developer messages bring.

    Raises:
        RequestRejected: Two of them have one name.
    """
    found = list(tools or ())
    for message in messages:
        if message.tools:
            found += message.tools
    if not found:
        return found
    names: set[str] = set()
    for tool in found:
        if tool.name in names:
            raise RequestRejected(f"duplicate tool name `{tool.name}`")
        names.add(tool.name)
    return found


def _plain(value: Any) -> Message | None:
    """Read a message that says who and what, and no more; None: it has to be looked at closely."""
    if type(value) is not dict or len(value) != 2:  # noqa: PLR2004 (role and content)
        return None
    role, content = value.get("role"), value.get("content")
    if content and type(content) is str and role in _PLAIN_ROLES:
        return Message(role=role, content=content)
    return None


def _draft(value: Any, where: str) -> _Draft:
    message = require_map(value, where, "internally tagged enum ChatMessage")
    role = require_member(message, "role", where)
    if not isinstance(role, str):
        wrong_type(role, where, "variant identifier")
    if role == "assistant":
        _check_assistant(message, where)
        content, media = _content(message.get("content"), where, optional=True)
        return _Draft(message, role, content, media)
    check_optional_string(message, "name", where)
    content, media = _content(require_member(message, "content", where), where)
    tools: Sequence[Tool] = ()
    if role == "tool":
        identifier = require_member(message, "tool_call_id", where)
        if not isinstance(identifier, str):
            wrong_type(identifier, where, "a string")
    elif role == "developer" and message.get("tools") is not None:
        members = require_list(message["tools"], where)
        tools = [_tool(member, where, nested=False) for member in members]
    return _Draft(message, role, content, media, tools)


def _content(
    value: Any, where: str, *, optional: bool = False
) -> tuple[str | list[str] | None, str | None]:
    """Return the texts of a content and the kind of its first part that is no text."""
    if isinstance(value, str):
        return value, None
    if value is None and optional:
        return None, None
    if not isinstance(value, list):
        malformed(where, _NO_CONTENT_VARIANT)
    texts: list[str] = []
    media: str | None = None
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(kind, str) and kind in _MEDIA_PARTS and _is_media(part, kind):
            media = media or _MEDIA_PARTS[kind][1]
        else:
            malformed(where, _NO_CONTENT_VARIANT)
        if not isinstance(part.get("uuid"), str | None):
            malformed(where, _NO_CONTENT_VARIANT)
    return texts, media


def _is_media(part: Mapping[str, Any], kind: str) -> bool:
    inner = part.get(_MEDIA_PARTS[kind][0])
    wanted = ("data", "format") if kind == "input_audio" else ("url",)
    return isinstance(inner, dict) and all(isinstance(inner.get(key), str) for key in wanted)


def _check_assistant(message: Mapping[str, Any], where: str) -> None:
    for name in ("name", "reasoning", "reasoning_content"):
        check_optional_string(message, name, where)
    calls = message.get("tool_calls")
    if calls is None:
        return
    for value in require_list(calls, where):
        call = require_map(value, where, "struct ToolCall")
        for name in ("id", "type"):
            if not isinstance(require_member(call, name, where), str):
                wrong_type(call[name], where, "a string")
        function = require_map(
            require_member(call, "function", where), where, "struct FunctionCallResponse"
        )
        if not isinstance(require_member(function, "name", where), str):
            wrong_type(function["name"], where, "a string")
        check_optional_string(function, "arguments", where)


def _judge(draft: _Draft) -> Message:
    if draft.role == "function":
        raise RequestRejected("Function messages are not supported.")
    if draft.role == "assistant":
        return _assistant(draft)
    if draft.media is not None:
        raise RequestRejected(f"unsupported multimodal content: {draft.media}")
    assert draft.content is not None
    return Message(
        role=draft.role,
        content=draft.content,
        tool_call_id=draft.raw["tool_call_id"] if draft.role == "tool" else None,
        tools=draft.tools,
    )


def _assistant(draft: _Draft) -> Message:
    if draft.media is not None:
        raise RequestRejected("Only text content parts are supported for assistant messages.")
    reasoning = draft.raw.get("reasoning") or draft.raw.get("reasoning_content") or None
    calls = [_tool_call(call) for call in draft.raw.get("tool_calls") or ()]
    if (draft.content is None or draft.content == []) and not reasoning and not calls:
        raise RequestRejected(
            "Assistant messages must contain text, reasoning content, or tool_calls."
        )
    content = draft.content if isinstance(draft.content, str) else "".join(draft.content or ())
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    if call["type"] != "function":
        raise RequestRejected("Only function tool calls are supported.")
    function = call["function"]
    try:
        arguments = json.loads(function.get("arguments") or "{}", parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestRejected(
            f"assistant tool call `{call['id']}` has invalid JSON arguments: {error}"
        ) from error
    return ToolCall(id=call["id"], name=function["name"], arguments=arguments)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON value")


def _tool(value: Any, where: str, *, nested: bool = True) -> Tool:
    """Read one tool; *nested*: errors name the member's own path, not its owner's."""

    def path(*names: str) -> str:
        return ".".join((where, *names)) if nested else where

    tool = require_map(value, where, "struct Tool")
    kind = tool.get("type", "function")
    if not isinstance(kind, str):
        wrong_type(kind, path("type"), "a string")
    function = require_map(
        require_member(tool, "function", where), path("function"), "struct Function"
    )
    name = require_member(function, "name", path("function"))
    if not isinstance(name, str):
        wrong_type(name, path("function", "name"), "a string")
    description = function.get("description")
    if not isinstance(description, str | None):
        wrong_type(description, path("function", "description"), "a string")
    strict = function.get("strict")
    if not isinstance(strict, bool | None):
        wrong_type(strict, path("function", "strict"), "a boolean")
    if kind != "function":
        raise RequestRejected("Only function tools are supported.", param="tools")
    return Tool(
        name=name,
        description=description,
        parameters=function.get("parameters"),
        strict=strict,
    )


def _invalid(rule: str, raw: Sequence[Any]) -> NoReturn:
    shown = _debug_form(raw)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[:_SHOWN_CHARACTERS]}..."
    raise InvalidMessages(f'messages: Validation error: {rule} [{{"value": {shown}}}]')


def _debug_form(value: Any) -> str:
    """Write a JSON value in the form in which validation errors show it."""
    if isinstance(value, dict):
        members = (f"{json.dumps(key)}: {_debug_form(member)}" for key, member in value.items())
        return f"Object {{{', '.join(members)}}}"
    if isinstance(value, list | tuple):
        return f"Array [{', '.join(_debug_form(member) for member in value)}]"
    if isinstance(value, str):
        return f"String({json.dumps(value, ensure_ascii=False)})"
    if value is None:
        return "Null"
    if isinstance(value, bool):
        return f"Bool({str(value).lower()})"
    return f"Number({value})"

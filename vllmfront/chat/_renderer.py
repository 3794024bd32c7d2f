"""Messages to prompt, by way of a chat template."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from vllmfront.chat._budget import DEFAULT_FUEL
from vllmfront.chat._content_format import ContentFormat
from vllmfront.chat._continuation import Continuation
from vllmfront.chat._errors import TemplateFailed
from vllmfront.chat._message import ChatPrompt, Message, RenderedChat, Tool
from vllmfront.chat._parse import available_tools
from vllmfront.chat._sources import NamedTemplates
from vllmfront.errors import RequestRejected

if TYPE_CHECKING:
    # The library behind templates is imported with the first of them: a server is up before.
    from vllmfront.chat._template import ChatTemplate

_NONE_CONFIGURED = "chat template is required but none was configured"

_NO_TEMPLATES = NamedTemplates(None)


@attrs.frozen(kw_only=True)
class ChatOptions:
    """How an operator wants chats rendered."""

    content_format: ContentFormat = ContentFormat.AUTO
    default_template_kwargs: Mapping[str, Any] = attrs.field(factory=dict)
    exclude_tools_when_tool_choice_none: bool = False
    trust_request_template: bool = False
    fuel: int = DEFAULT_FUEL
    """Steps that a template may take, besides some for each message."""


class ChatRenderer:
    """Turns chats into prompts. Rendering is pure and may happen in several threads at once.

    A missing or broken template is an error of each chat, not of start-up: the other routes can
    do without. ``problem`` tells of it early.
    """

    def __init__(
        self,
        templates: NamedTemplates = _NO_TEMPLATES,
        *,
        special_tokens: Mapping[str, str] | None = None,
        options: ChatOptions | None = None,
    ) -> None:
        """Compile the templates.

        Args:
            templates: The model's, or the operator's instead of them.
            special_tokens: Name, such as ``eos_token``, to text.
            options: The operator's wishes.
        """
        self._options = options or ChatOptions()
        self._special_tokens = dict(special_tokens or {})
        self._default = _compiled(templates.choose(with_tools=False))
        self._with_tools = (
            self._default
            if templates.tool_use is None
            else _compiled(templates.choose(with_tools=True))
        )

    @property
    def problem(self) -> str | None:
        """Why chats without a template of their own will fail, or None."""
        for template in (self._default, self._with_tools):
            if isinstance(template, TemplateFailed):
                return template.message
        return _NONE_CONFIGURED if self._default is None else None

    def render(self, chat: ChatPrompt) -> RenderedChat:
        """Return the prompt of *chat*. Takes 20 us and more: long ones belong in a thread.

        Raises:
            RequestRejected: The chat breaks a rule, or the template refuses it in its own words.
            TemplateFailed: There is no template, or it failed.
        """
        _check_ends(chat)
        tools = self._visible_tools(chat)
        template = self._template_for(chat, with_tools=bool(tools))
        continuation = Continuation.of(chat.messages) if chat.continue_final_message else None
        messages = continuation.messages if continuation is not None else chat.messages
        content_format = self._options.content_format
        if content_format is ContentFormat.AUTO:
            content_format = template.content_format
        kwargs = self._effective_kwargs(chat)
        variables = {
            "messages": [_message_for_template(message, content_format) for message in messages],
            "add_generation_prompt": (
                chat.add_generation_prompt
                if chat.add_generation_prompt is not None
                else not chat.continue_final_message
            ),
            "continue_final_message": chat.continue_final_message,
            **self._special_tokens,
        }
        if tools:
            variables["tools"] = [_tool_for_template(tool) for tool in tools]
        if chat.documents is not None:
            variables["documents"] = chat.documents
        variables.update(kwargs)
        text = template.render(
            variables,
            fuel=self._options.fuel,
            items=len(messages) + len(tools) + len(chat.documents or ()),
        )
        if continuation is not None:
            text = continuation.cut(text)
        return RenderedChat(text, kwargs)

    def _visible_tools(self, chat: ChatPrompt) -> Sequence[Tool]:
        if chat.tool_choice_is_none and self._options.exclude_tools_when_tool_choice_none:
            return ()
        return available_tools(chat.tools, chat.messages)

    def _template_for(self, chat: ChatPrompt, *, with_tools: bool) -> "ChatTemplate":
        if chat.chat_template is not None:
            if not self._options.trust_request_template:
                raise RequestRejected(
                    "Chat template is passed with request, but --trust-request-chat-template is"
                    " not set. Refused request with untrusted chat template."
                )
            from vllmfront.chat._template import compile_request_template

            return compile_request_template(chat.chat_template)
        template = self._with_tools if with_tools else self._default
        if template is None:
            raise TemplateFailed(_NONE_CONFIGURED)
        if isinstance(template, TemplateFailed):
            raise TemplateFailed(template.reason) from template
        return template

    def _effective_kwargs(self, chat: ChatPrompt) -> dict[str, Any]:
        """Merge keyword arguments: a later source beats an earlier one."""
        kwargs = dict(self._options.default_template_kwargs)
        if chat.reasoning_effort is not None:
            kwargs["enable_thinking"] = chat.reasoning_effort != "none"
        kwargs.update(chat.chat_template_kwargs)
        if chat.reasoning_effort is not None:
            kwargs["reasoning_effort"] = chat.reasoning_effort
        return kwargs


def _compiled(source: str | None) -> "ChatTemplate | TemplateFailed | None":
    from vllmfront.chat._template import compile_template

    try:
        return None if source is None else compile_template(source)
    except TemplateFailed as error:
        return error


def _check_ends(chat: ChatPrompt) -> None:
    if not chat.continue_final_message:
        return
    if chat.add_generation_prompt:
        raise RequestRejected(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        )
    if not chat.messages or chat.messages[-1].role != "assistant":
        raise RequestRejected(
            "Cannot set `continue_final_message` to True when the last message is not from the"
            " assistant."
        )


def _message_for_template(message: Message, content_format: ContentFormat) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if content_format is ContentFormat.OPENAI:
        texts = [message.content] if isinstance(message.content, str) else message.content
        shown["content"] = [{"type": "text", "text": text} for text in texts]
    elif not isinstance(message.content, str):
        shown["content"] = message.text
    if message.tools:
        shown["tools"] = [_tool_for_template(tool) for tool in message.tools]
    if message.reasoning is not None:
        shown["reasoning"] = message.reasoning
        shown["reasoning_content"] = message.reasoning
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    return shown


def _tool_for_template(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}

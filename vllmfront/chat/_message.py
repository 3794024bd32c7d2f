"""Chat messages and tools as values, free of their JSON form."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field


class Tool(Struct, kw_only=True, frozen=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: Any = None
    """A JSON schema, passed on as it came, its keys in the client's order."""

    strict: bool | None = None


class ToolCall(Struct, kw_only=True, frozen=True):
    """A call that an assistant made earlier in the conversation."""

    id: str
    name: str
    arguments: Any
    """The decoded JSON value, nearly always an object."""


class Message(Struct, kw_only=True, frozen=True):
    """One turn of a conversation."""

    role: str
    content: str | Sequence[str]
    """A string, or the texts of a list of text parts, in order."""

    reasoning: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str | None = None
    tools: Sequence[Tool] = ()
    """Tools that a developer message brings along."""

    @property
    def text(self) -> str:
        """The content as one string: parts are joined without a separator."""
        return self.content if isinstance(self.content, str) else "".join(self.content)


class ChatPrompt(Struct, kw_only=True, frozen=True):
    """All that decides the prompt of one chat request."""

    messages: Sequence[Message]
    tools: Sequence[Tool] | None = None
    tool_choice_is_none: bool = False
    """Whether the client wrote ``tool_choice: "none"``."""

    documents: Sequence[Any] | None = None
    add_generation_prompt: bool | None = None
    """None: True, unless the final message is continued."""

    continue_final_message: bool = False
    chat_template: str | None = None
    """A template of the client's own."""

    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reasoning_effort: str | None = None


class RenderedChat(Struct, frozen=True):
    """A prompt in text form."""

    text: str
    template_kwargs: Mapping[str, Any]
    """The keyword arguments in force: server's, derived and the request's."""

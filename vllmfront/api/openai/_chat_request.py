"""The body of a chat completion: its fields, and the rules between them."""

from collections.abc import Sequence
from typing import Any, Literal

from vllmfront.api.openai._fields import (
    I32,
    U32,
    GenerationFields,
    JsonObject,
    check_form,
    refuse_unsupported,
)
from vllmfront.chat import Tool
from vllmfront.errors import FeatureNotServed, MalformedRequest, RequestRejected

_TOOL_CHOICES = frozenset({"none", "auto", "required"})


class ChatCompletionRequest(GenerationFields, kw_only=True, frozen=True):
    messages: list[Any]
    tools: list[Any] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    documents: list[Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    include_reasoning: bool | None = None
    media_io_kwargs: JsonObject | None = None
    mm_processor_kwargs: JsonObject | None = None

    max_completion_tokens: U32 | None = None
    bad_words: list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: I32 | None = None
    return_prompt_text: bool | None = None

    @property
    def demanded_function(self) -> str | None:
        """The name in a ``tool_choice`` that demands one function."""
        if isinstance(self.tool_choice, dict):
            name = self.tool_choice["function"]["name"]
            assert isinstance(name, str)
            return name
        return None


def check_chat_form(request: ChatCompletionRequest) -> None:
    """Check the form of what has to do with chats; messages and tools are read elsewhere.

    Raises:
        MalformedRequest: A field has a form that no client may send.
    """
    check_form(request)
    _check_tool_choice(request.tool_choice)


def check_chat(request: ChatCompletionRequest) -> None:
    """Refuse what is not served.

    Raises:
        RequestRejected: A field asks for it.
    """
    names = [
        name
        for name in ("media_io_kwargs", "mm_processor_kwargs")
        if getattr(request, name) is not None
    ]
    if request.return_prompt_text:
        names.append("return_prompt_text")
    refuse_unsupported(request, names)


def check_tools(request: ChatCompletionRequest, tools: Sequence[Tool]) -> None:
    """Check ``tool_choice`` against the *tools* that the request and its messages bring.

    Raises:
        RequestRejected: There are none, or not the demanded one.
        FeatureNotServed: A call is demanded: that needs a parser, and there are none yet.
    """
    choice = request.tool_choice
    if choice is None or choice == "none":
        return
    if not tools:
        raise RequestRejected("tool_choice requires at least one available tool")
    name = request.demanded_function
    if name is not None and all(tool.name != name for tool in tools):
        raise RequestRejected(f"tool_choice function `{name}` was not found in the available tools")
    if choice != "auto":
        raise FeatureNotServed(
            f"tool_choice {'required' if name is None else name!r} needs a tool-call parser for"
            ' this model, and this server has none: leave tool_choice out or use "auto" to get'
            " tool calls as plain content."
        )


def _check_tool_choice(choice: str | JsonObject | None) -> None:
    if choice is None or (isinstance(choice, str) and choice in _TOOL_CHOICES):
        return
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            return
    raise MalformedRequest.misfit(
        "data did not match any variant of untagged enum ToolChoice", "tool_choice"
    )

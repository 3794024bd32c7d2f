"""The conversation of a chat completion: read, and checked together with the rest of its body."""

from vllmfront.api.openai._chat_request import (
    ChatCompletionRequest,
    check_chat,
    check_chat_form,
    check_tools,
)
from vllmfront.api.openai._fields import complaints_about
from vllmfront.api.openai._sampling import PreparedSampling
from vllmfront.api.openai._service import ModelService
from vllmfront.chat import ChatPrompt, InvalidMessages, available_tools, parse_messages, parse_tools
from vllmfront.errors import MalformedRequest, RequestRejected
from vllmfront.text import check_request, check_schema


def checked_chat(
    service: ModelService, body: ChatCompletionRequest, prepared: PreparedSampling
) -> ChatPrompt:
    """Return the chat of *body*, once nothing is against the body as a whole.

    Raises:
        RequestRejected: Something is.
    """
    if not prepared.checked:
        check_chat_form(body)
    try:
        chat = _chat_prompt(body)
    except MalformedRequest:
        raise
    except RequestRejected as error:
        _check_order(service, body, prepared, error)
        raise
    if not prepared.checked or body.cache_salt == "":
        _check_order(service, body, prepared)
    if body.tool_choice is not None or chat.tools:
        check_tools(body, available_tools(chat.tools, chat.messages))
    return chat


def echo_of(body: ChatCompletionRequest, chat: ChatPrompt) -> str:
    """Return what leads the answer: the message that it continues, where that was asked for."""
    return chat.messages[-1].text if body.echo and body.continue_final_message else ""


def _check_order(
    service: ModelService,
    body: ChatCompletionRequest,
    prepared: PreparedSampling,
    refusal: RequestRejected | None = None,
) -> None:
    """Check everything but the conversation, in the order in which clients learn of faults.

    Args:
        service: What the request is for.
        body: The request.
        prepared: What it asks of sampling.
        refusal: What is wrong with its conversation, which other faults may precede.

    Raises:
        RequestRejected: A rule is broken.
    """
    limits = service.options.limits
    complaints = complaints_about(body)
    if isinstance(refusal, InvalidMessages):
        complaints = (refusal.message, *complaints)
    if complaints or not prepared.checked:
        check_schema(prepared.request, limits, complaints)
    if body.stream_options is not None and not body.stream:
        raise RequestRejected("__all__: stream_options can only be used when stream is true")
    service.find_adapter(body.model)
    check_chat(body)
    if refusal is None and not prepared.checked:
        check_request(prepared.request, limits)
        prepared.passed()


def _chat_prompt(body: ChatCompletionRequest) -> ChatPrompt:
    """Turn the chat of *body* into values; takes a few microseconds a message.

    Raises:
        MalformedRequest: A message or a tool has a wrong form.
        RequestRejected: The conversation is not servable.
    """
    return ChatPrompt(
        messages=parse_messages(body.messages),
        tools=parse_tools(body.tools),
        tool_choice_is_none=body.tool_choice == "none",
        documents=body.documents,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs or {},
        reasoning_effort=body.reasoning_effort,
    )

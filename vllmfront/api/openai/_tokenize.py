"""``POST /tokenize`` and ``POST /detokenize``."""

from typing import Any, TypeVar

import msgspec

from vllmfront.api.http import HttpRequest, ResponseWriter
from vllmfront.api.openai._body import Body
from vllmfront.api.openai._fields import U32, JsonObject
from vllmfront.api.openai._offload import INLINE_MESSAGES, INLINE_SIZE, Offload
from vllmfront.api.openai._service import ModelService, ServiceSlot
from vllmfront.chat import ChatPrompt, InvalidMessages, parse_messages, parse_tools
from vllmfront.errors import MalformedRequest, ModelNotFound, RequestRejected

T = TypeVar("T")

_encode = msgspec.json.encode


class TokenizeChat(msgspec.Struct, kw_only=True, frozen=True):
    """The form that is tried first."""

    model: str | None = None
    messages: list[Any]
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    return_token_strs: bool | None = None

    def parse(self) -> ChatPrompt:
        """Return the chat.

        Raises:
            MalformedRequest: A message or a tool has a wrong form.
            RequestRejected: The conversation is not servable.
        """
        return ChatPrompt(
            messages=parse_messages(self.messages),
            tools=parse_tools(self.tools or None),
            documents=self.documents,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=bool(self.continue_final_message),
            chat_template=self.chat_template,
            chat_template_kwargs=self.chat_template_kwargs or {},
        )


class TokenizePrompt(msgspec.Struct, kw_only=True, frozen=True):
    """The form that counts where the other does not fit."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, frozen=True):
    model: str | None = None
    tokens: list[U32]


_CHAT = Body(TokenizeChat)
_PROMPT = Body(TokenizePrompt)
_DETOKENIZE = Body(DetokenizeRequest)
_NEITHER_FORM = "data did not match any variant of untagged enum TokenizeRequest"


class Tokenize:
    """Turns a prompt or a chat into ids; a ``TextRoute`` stands around it."""

    def __init__(self, slot: ServiceSlot, offload: Offload) -> None:
        self._slot = slot
        self._offload = offload

    async def __call__(self, request: HttpRequest, response: ResponseWriter) -> None:
        service = self._slot.require()
        short = len(request.body) <= INLINE_SIZE
        body, chat, refusal = await self._offload.run(short, lambda: _read(request))
        if isinstance(refusal, InvalidMessages):
            raise refusal
        _check_model(service, body.model)
        if refusal is not None:
            raise refusal
        special = body.add_special_tokens
        if isinstance(body, TokenizePrompt):
            text = body.prompt
        else:
            assert chat is not None
            short = short and len(body.messages) <= INLINE_MESSAGES and body.chat_template is None
            rendered = await self._offload.run(short, lambda: service.renderer.render(chat))
            text = rendered.text
            special = bool(special)
        token_ids = await service.tokenizer.encode_async(text, special is not False)
        strings = None
        if body.return_token_strs:
            strings = [service.tokenizer.id_to_token(token_id) for token_id in token_ids]
        answer = {
            "count": len(token_ids),
            "max_model_len": service.engine.max_model_len,
            "tokens": token_ids,
            "token_strs": strings,
        }
        response.respond(200, _encode(answer))


class Detokenize:
    """Turns ids into text; special tokens stay, unknown ids vanish."""

    def __init__(self, slot: ServiceSlot, offload: Offload) -> None:
        self._slot = slot
        self._offload = offload

    async def __call__(self, request: HttpRequest, response: ResponseWriter) -> None:
        service = self._slot.require()
        short = len(request.body) <= INLINE_SIZE
        body = await self._offload.run(short, lambda: _DETOKENIZE.decode(request))
        _check_model(service, body.model)
        text = await self._offload.run(
            short, lambda: service.tokenizer.decode(body.tokens, skip_special_tokens=False)
        )
        response.respond(200, _encode({"prompt": text}))


def _read(
    request: HttpRequest,
) -> tuple[TokenizeChat | TokenizePrompt, ChatPrompt | None, RequestRejected | None]:
    """Return the body, the chat in it, and why it is none that can be served.

    Raises:
        MalformedRequest: It is no JSON, or fits neither form.
    """
    body = _decode(_CHAT, request)
    if body is not None:
        try:
            return body, body.parse(), None
        except MalformedRequest:
            pass  # no chat either
        except RequestRejected as refusal:
            return body, None, refusal
    prompt = _decode(_PROMPT, request)
    if prompt is None:
        raise MalformedRequest.misfit(_NEITHER_FORM)
    return prompt, None, None


def _decode(form: Body[T], request: HttpRequest) -> T | None:
    """Return the body, or None where it has another form.

    Raises:
        MalformedRequest: It is no JSON.
    """
    try:
        return form.decode(request)
    except MalformedRequest as error:
        if isinstance(error.__cause__, msgspec.ValidationError):
            return None
        raise


def _check_model(service: ModelService, name: str | None) -> None:
    """Refuse all but the model; unlike elsewhere, an empty name is one, and an adapter is none.

    Raises:
        ModelNotFound: It is another.
    """
    if name is not None and name not in service.served_names:
        raise ModelNotFound(f"The model `{name}` does not exist.", param="model")

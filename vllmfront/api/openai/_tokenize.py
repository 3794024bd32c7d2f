"""``POST /tokenize`` and ``POST /detokenize``."""

from typing import Any

import attrs
import msgspec

from vllmfront.api.http import HttpRequest, ResponseWriter
from vllmfront.api.openai._body import Body
from vllmfront.api.openai._fields import U32, JsonObject
from vllmfront.api.openai._offload import INLINE_MESSAGES, INLINE_SIZE, Offload
from vllmfront.api.openai._service import ModelService, ServiceSlot
from vllmfront.chat import ChatPrompt, parse_messages, parse_tools
from vllmfront.errors import MalformedRequest

_encode = msgspec.json.encode


@attrs.frozen(kw_only=True)
class TokenizeRequest:
    """Both forms: a prompt, or a chat; where both are given the chat counts."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    return_token_strs: bool | None = None


@attrs.frozen(kw_only=True)
class DetokenizeRequest:
    model: str | None = None
    tokens: list[U32]


_TOKENIZE = Body(TokenizeRequest)
_DETOKENIZE = Body(DetokenizeRequest)
_NEITHER_FORM = (
    "Failed to deserialize the JSON body into the target type: data did not match any variant of"
    " untagged enum TokenizeRequest"
)


class Tokenize:
    """Turns a prompt or a chat into ids; an ``InferenceRoute`` stands around it."""

    def __init__(self, slot: ServiceSlot, offload: Offload) -> None:
        self._slot = slot
        self._offload = offload

    async def __call__(self, request: HttpRequest, response: ResponseWriter) -> None:
        service = self._slot.require()
        short = len(request.body) <= INLINE_SIZE
        body = await self._offload.run(short, lambda: _decode(request))
        service.check_model(body.model)
        text = body.prompt
        special = body.add_special_tokens
        if body.messages is not None:
            short = short and len(body.messages) <= INLINE_MESSAGES
            text = await self._offload.run(short, lambda: _render(service, body))
            special = bool(special)
        if text is None:
            raise MalformedRequest(_NEITHER_FORM)
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
        service.check_model(body.model)
        text = await self._offload.run(
            short, lambda: service.tokenizer.decode(body.tokens, skip_special_tokens=False)
        )
        response.respond(200, _encode({"prompt": text}))


def _decode(request: HttpRequest) -> TokenizeRequest:
    try:
        return _TOKENIZE.decode(request)
    except MalformedRequest as error:
        if isinstance(error.__cause__, msgspec.ValidationError):
            raise MalformedRequest(_NEITHER_FORM) from error
        raise


def _render(service: ModelService, body: TokenizeRequest) -> str:
    chat = ChatPrompt(
        messages=parse_messages(body.messages or []),
        tools=parse_tools(body.tools),
        documents=body.documents,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs or {},
    )
    return service.renderer.render(chat).text

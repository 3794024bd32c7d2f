"""``POST /v1/chat/completions``."""

import trio

from vllmfront.api.http import ResponseWriter
from vllmfront.api.openai._admission import Admission, fit_text
from vllmfront.api.openai._answers import AnswerParts, chat_answer, is_short
from vllmfront.api.openai._body import Body
from vllmfront.api.openai._call import InferenceCall
from vllmfront.api.openai._chat_request import (
    ChatCompletionRequest,
    check_chat,
    check_chat_form,
    check_tools,
)
from vllmfront.api.openai._fields import complaints_about
from vllmfront.api.openai._frames import ChatFrames
from vllmfront.api.openai._general_choice import Extras
from vllmfront.api.openai._held_heads import HeldHeads
from vllmfront.api.openai._keep_alive import KeepAlives
from vllmfront.api.openai._logprobs import ChatLogprobsWriter
from vllmfront.api.openai._marks import read_marks
from vllmfront.api.openai._offload import INLINE_MESSAGES, INLINE_SIZE, Offload
from vllmfront.api.openai._run import Admitted, run_streamed, run_whole
from vllmfront.api.openai._sampling import PreparedSampling
from vllmfront.api.openai._service import ModelService, ServiceSlot
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.api.openai._time_limit import in_time
from vllmfront.api.openai._usage import usage_json
from vllmfront.chat import ChatPrompt, InvalidMessages, available_tools, parse_messages, parse_tools
from vllmfront.engine import EngineRequest
from vllmfront.errors import MalformedRequest, RequestRejected
from vllmfront.text import check_request, check_schema

_BODY = Body(ChatCompletionRequest)
_ID_PREFIX = "chatcmpl-"


class ChatCompletions:
    """Serves chat completions; an ``InferenceRoute`` stands around it."""

    def __init__(
        self,
        slot: ServiceSlot,
        offload: Offload,
        heads: HeldHeads,
        keep_alives: KeepAlives | None,
    ) -> None:
        self._slot = slot
        self._offload = offload
        self._heads = heads
        self._keep_alives = keep_alives

    async def __call__(self, call: InferenceCall, response: ResponseWriter) -> None:
        service = self._slot.require()
        service.check_ready()
        request = call.http
        short = len(request.body) <= INLINE_SIZE
        since = None if short else trio.current_time()
        body = await self._offload.run(short, lambda: _BODY.decode(request))
        check_chat_form(body)
        prepared = service.chat_sampling.prepare(body)
        short_chat = short and len(body.messages) <= INLINE_MESSAGES
        try:
            chat = await self._offload.run(short_chat, lambda: chat_prompt(body))
        except MalformedRequest:
            raise
        except RequestRejected as error:
            check_order(service, body, prepared, error)
            raise
        check_order(service, body, prepared)
        check_tools(body, available_tools(chat.tools, chat.messages))
        marks = read_marks(request, body, service, _ID_PREFIX, since=since)
        call.gate.widen(call, body.n or 1)
        admission = Admission(
            service=service,
            offload=self._offload,
            http=request,
            body=body,
            marks=marks,
            prepared=prepared,
            object=b"chat.completion",
        )
        # How long a client's own template takes does not depend on how long the chat is.
        short_chat = short_chat and chat.chat_template is None
        rendering = _render(admission, chat, short=short_chat)
        engine_request = await (rendering if short_chat else in_time(marks.deadline, rendering))
        admitted = Admitted(service=service, marks=marks, requests=[engine_request])
        echo = chat.messages[-1].text if body.echo and body.continue_final_message else ""
        if body.stream:
            await self._stream(call, admission, admitted, response, echo)
        else:
            await _answer(call, admission, admitted, response, echo)

    async def _stream(
        self,
        call: InferenceCall,
        admission: Admission,
        admitted: Admitted,
        response: ResponseWriter,
        echo: str,
    ) -> None:
        body = admission.body
        assert isinstance(body, ChatCompletionRequest)
        prompt_ids = admitted.requests[0].prompt_token_ids
        head = admission.head(chunk=b".chunk").event_json()
        choices = body.n or 1
        answer = StreamedAnswer(
            response,
            head,
            admission.usage(admitted.requests),
            choices=choices,
            include_usage=body.wants_usage,
            heads=self._heads,
        )
        extras = Extras(
            logprobs=_logprobs_of(admission),
            token_ids=bool(body.return_token_ids),
            running_usage=len(prompt_ids) if body.wants_running_usage else None,
            interval=admission.sampling.stream_interval or 1,
        )
        pipelines = admission.pipelines
        sinks = [
            pipelines.streamed(
                answer,
                ChatFrames(
                    head,
                    index,
                    echo=echo,
                    prompt_token_ids=prompt_ids if body.return_token_ids else None,
                    usage=usage_json(len(prompt_ids), 0) if body.wants_running_usage else None,
                ),
                prompt_ids,
                extras,
            )
            for index in range(choices)
        ]
        if self._keep_alives is not None:
            self._keep_alives.watch(answer)
        await run_streamed(call, admitted, answer, [sinks])


async def _render(admission: Admission, chat: ChatPrompt, *, short: bool) -> EngineRequest:
    """Turn a conversation into what engines understand; *short* ones at once."""
    service, body = admission.service, admission.body
    rendered = await admission.offload.run(short, lambda: service.renderer.render(chat))
    token_ids = await fit_text(
        service,
        admission.sampling,
        rendered.text,
        special_tokens=bool(body.add_special_tokens),
    )
    return await admission.engine_request(
        token_ids,
        given_as_ids=False,
        request_id=admission.marks.id,
        template_kwargs=rendered.template_kwargs,
    )


async def _answer(
    call: InferenceCall,
    admission: Admission,
    admitted: Admitted,
    response: ResponseWriter,
    echo: str,
) -> None:
    body = admission.body
    prompt_ids = admitted.requests[0].prompt_token_ids
    usage = admission.usage(admitted.requests)
    pipelines = admission.pipelines
    choices = [pipelines.whole(usage, prompt_ids) for _ in range(body.n or 1)]
    metrics = await run_whole(call, admitted, [choices])
    parts = AnswerParts(
        head=admission.head(),
        usage=usage,
        metrics=metrics,
        prompt_token_ids=[prompt_ids],
        return_token_ids=bool(body.return_token_ids),
        echoes=[echo],
        decoder=admission.logprob_decoder,
    )
    logprobs = _logprobs_of(admission)
    body_json = await admission.offload.run(
        is_short(choices), lambda: chat_answer(parts, choices, logprobs)
    )
    response.respond(200, body_json)


def check_order(
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
    service.check_model(body.model)
    check_chat(body)
    if refusal is None and not prepared.checked:
        check_request(prepared.request, limits)
        prepared.passed()


def chat_prompt(body: ChatCompletionRequest) -> ChatPrompt:
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


def _logprobs_of(admission: Admission) -> ChatLogprobsWriter | None:
    body = admission.body
    assert isinstance(body, ChatCompletionRequest)
    if not body.logprobs:
        return None
    shows_all = bool(body.logprob_token_ids) or body.top_logprobs == -1
    top = None if shows_all else body.top_logprobs or 0
    return ChatLogprobsWriter(admission.logprob_decoder, top)

"""``POST /v1/chat/completions``."""

from collections.abc import Awaitable, Sequence

import trio

from vllmfront.api.http import Exchange, ResponseWriter
from vllmfront.api.openai._admission import Admission, fit_ids, fit_text
from vllmfront.api.openai._answers import AnswerParts, chat_answer, is_short
from vllmfront.api.openai._body import Body
from vllmfront.api.openai._call import Admitted, InferenceCall
from vllmfront.api.openai._chat_conversation import checked_chat, echo_of
from vllmfront.api.openai._chat_request import ChatCompletionRequest
from vllmfront.api.openai._frames import ChatFrames
from vllmfront.api.openai._general_choice import Extras
from vllmfront.api.openai._logprobs import ChatLogprobsWriter
from vllmfront.api.openai._marks import read_marks
from vllmfront.api.openai._offload import INLINE_MESSAGES, INLINE_SIZE
from vllmfront.api.openai._parts import RouteParts
from vllmfront.api.openai._run import begin_streamed, run_streamed, run_whole
from vllmfront.api.openai._sampling import PreparedSampling
from vllmfront.api.openai._service import ModelService
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.api.openai._time_limit import in_time
from vllmfront.api.openai._usage import usage_json
from vllmfront.chat import ChatPrompt
from vllmfront.engine import EngineRequest, OutputSink

_BODY = Body(ChatCompletionRequest)
_ID_PREFIX = "chatcmpl-"


class ChatCompletions:
    """Serves chat completions; an ``InferenceRoute`` stands around it."""

    def __init__(self, parts: RouteParts) -> None:
        self._parts = parts

    def __call__(self, call: InferenceCall, response: ResponseWriter) -> Awaitable[None]:
        """Answer: what is short and streamed begins at once, all else in the caller's task."""
        service = self._parts.slot.require()
        service.check_ready()
        if len(call.http.body) > INLINE_SIZE:
            return self._serve_long(service, call, response)
        body = _BODY.decode(call.http)
        prepared = service.chat_sampling.prepare(body)
        if prepared.checked and body.stream and len(body.messages) <= INLINE_MESSAGES:
            exchange = self._begin(service, call, response, body, prepared)
            if exchange is not None:
                return exchange
        return self._serve(service, call, response, body, prepared)

    def _begin(
        self,
        service: ModelService,
        call: InferenceCall,
        response: ResponseWriter,
        body: ChatCompletionRequest,
        prepared: PreparedSampling,
    ) -> Exchange | None:
        """Begin an answer of one choice; None: something in it might take long."""
        if body.chat_template is not None or (body.n or 1) > 1 or prepared.takes_time:
            return None
        chat = checked_chat(service, body, prepared)
        admission = self._admission(service, call, body, prepared)
        rendered = service.renderer.render(chat)
        tokenizer = service.tokenizer
        if len(rendered.text) > tokenizer.inline_characters:
            return None
        token_ids = fit_ids(
            service,
            prepared.request,
            tokenizer.encode(rendered.text, bool(body.add_special_tokens)),
            known=tokenizer.stays_in_vocabulary,
        )
        if not token_ids:
            return None
        params = admission.params_at_once(len(token_ids))
        marks = admission.marks
        request = admission.request_with(params, token_ids, marks.id, rendered.template_kwargs)
        admitted = Admitted(service=service, marks=marks, requests=[request])
        answer, [sink] = self._streamed(admission, token_ids, response, echo_of(body, chat))
        return begin_streamed(call, admitted, answer, response, sink)

    async def _serve_long(
        self, service: ModelService, call: InferenceCall, response: ResponseWriter
    ) -> None:
        since = trio.current_time()
        body = await self._parts.offload.run(short=False, function=lambda: _BODY.decode(call.http))
        prepared = service.chat_sampling.prepare(body)
        await self._serve(service, call, response, body, prepared, since=since)

    async def _serve(
        self,
        service: ModelService,
        call: InferenceCall,
        response: ResponseWriter,
        body: ChatCompletionRequest,
        prepared: PreparedSampling,
        *,
        since: float | None = None,
    ) -> None:
        short = since is None and len(body.messages) <= INLINE_MESSAGES
        chat = await self._parts.offload.run(short, lambda: checked_chat(service, body, prepared))
        admission = self._admission(service, call, body, prepared, since=since)
        # How long a client's own template takes does not depend on how long the chat is.
        short = short and chat.chat_template is None
        rendering = _render(admission, chat, short=short)
        deadline = admission.marks.deadline
        engine_request = await (rendering if short else in_time(deadline, rendering))
        admitted = Admitted(service=service, marks=admission.marks, requests=[engine_request])
        if not body.stream:
            await _answer(call, admission, admitted, response, echo_of(body, chat))
            return
        answer, sinks = self._streamed(
            admission, engine_request.prompt_token_ids, response, echo_of(body, chat)
        )
        await run_streamed(call, admitted, answer, [sinks])

    def _admission(
        self,
        service: ModelService,
        call: InferenceCall,
        body: ChatCompletionRequest,
        prepared: PreparedSampling,
        *,
        since: float | None = None,
    ) -> Admission:
        marks = read_marks(call.http, body, service, _ID_PREFIX, since=since)
        call.gate.widen(call, body.n or 1)
        return Admission(
            service=service,
            offload=self._parts.offload,
            http=call.http,
            body=body,
            marks=marks,
            prepared=prepared,
            # Asked anew each time: what was said of its sampling holds for longer than a name.
            lora=service.find_adapter(body.model),
            object=b"chat.completion",
        )

    def _streamed(
        self, admission: Admission, prompt_ids: Sequence[int], response: ResponseWriter, echo: str
    ) -> tuple[StreamedAnswer, list[OutputSink]]:
        """Return an answer that nothing was sent of yet, and the pipelines of its choices."""
        body = admission.body
        assert isinstance(body, ChatCompletionRequest)
        head = admission.head(chunk=b".chunk").event_json()
        choices = body.n or 1
        answer = StreamedAnswer(
            response,
            head,
            admission.usage(len(prompt_ids)),
            choices=choices,
            include_usage=body.wants_usage,
            heads=self._parts.heads,
            keep_alives=self._parts.keep_alives,
        )
        running = body.wants_running_usage
        extras = Extras(
            logprobs=_logprobs_of(admission) if body.logprobs else None,
            token_ids=bool(body.return_token_ids),
            running_usage=len(prompt_ids) if running else None,
            interval=admission.prepared.request.stream_interval or 1,
        )
        pipelines = admission.pipelines
        sinks = []
        for index in range(choices):
            frames = ChatFrames(
                head,
                index,
                echo=echo,
                prompt_token_ids=prompt_ids if body.return_token_ids else None,
                usage=usage_json(len(prompt_ids), 0) if running else None,
            )
            sinks.append(pipelines.streamed(answer, frames, prompt_ids, extras))
        return answer, sinks


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
    usage = admission.usage(len(prompt_ids))
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


def _logprobs_of(admission: Admission) -> ChatLogprobsWriter | None:
    body = admission.body
    assert isinstance(body, ChatCompletionRequest)
    if not body.logprobs:
        return None
    shows_all = bool(body.logprob_token_ids) or body.top_logprobs == -1
    top = None if shows_all else body.top_logprobs or 0
    return ChatLogprobsWriter(admission.logprob_decoder, top)

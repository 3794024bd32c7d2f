"""``POST /v1/completions``."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs
import trio

from vllmfront.api.http import ResponseWriter
from vllmfront.api.openai._admission import Admission, fit_ids, fit_text
from vllmfront.api.openai._answers import AnswerParts, completion_answer, is_short
from vllmfront.api.openai._body import Body
from vllmfront.api.openai._call import Admitted, InferenceCall
from vllmfront.api.openai._completion_request import (
    CompletionRequest,
    Prompt,
    check_completion,
    prompts_of,
)
from vllmfront.api.openai._echo_choice import EchoChoice
from vllmfront.api.openai._fields import complaints_about
from vllmfront.api.openai._frames import CompletionFrames
from vllmfront.api.openai._general_choice import Extras
from vllmfront.api.openai._logprobs import CompletionLogprobsWriter
from vllmfront.api.openai._marks import read_marks
from vllmfront.api.openai._offload import INLINE_SIZE
from vllmfront.api.openai._parts import RouteParts
from vllmfront.api.openai._run import run_streamed, run_whole
from vllmfront.api.openai._sampling import PreparedSampling
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.api.openai._time_limit import in_time
from vllmfront.api.openai._usage import usage_json
from vllmfront.engine import EngineRequest, Logprobs, OutputSink
from vllmfront.errors import RequestRejected
from vllmfront.text import check_request, check_schema

T = TypeVar("T")

_BODY = Body(CompletionRequest)
_ID_PREFIX = "cmpl-"
_PROMPTS_A_TURN = 16
"""Prompts of a batch that are encoded before other tasks get their turn: about a millisecond."""

_CHOICES_A_TURN = 64
"""Pipelines that are made before other tasks get their turn: a millisecond, too."""


class Completions:
    """Serves text completions; an ``InferenceRoute`` stands around it."""

    def __init__(self, parts: RouteParts) -> None:
        self._parts = parts

    async def __call__(self, call: InferenceCall, response: ResponseWriter) -> None:
        service = self._parts.slot.require()
        service.check_ready()
        request = call.http
        short = len(request.body) <= INLINE_SIZE
        since = None if short else trio.current_time()
        body = await self._parts.offload.run(short, lambda: _BODY.decode(request))
        prompts = await self._parts.offload.run(short, lambda: prompts_of(body))
        options = service.options
        prepared = service.completion_sampling.prepare(body)
        complaints = complaints_about(body)
        if complaints or not prepared.checked:
            check_schema(prepared.request, options.limits, complaints)
        lora = service.find_adapter(body.model)
        check_completion(body)
        if not prepared.checked:
            check_request(prepared.request, options.limits)
            prepared.passed()
        choices = len(prompts) * (body.n or 1)
        if choices > options.limits.max_choices:
            raise RequestRejected(
                f"Prompts times n make {choices} choices; at most {options.limits.max_choices}"
                " are served. Send fewer prompts at a time.",
                param="prompt",
            )
        if body.echoes_only and body.stream and body.logprobs is not None:
            # The prompt's positions are all that such a stream has to show.
            prepared = PreparedSampling(
                attrs.evolve(prepared.request, prompt_logprobs=body.logprobs)
            )
        marks = read_marks(request, body, service, _ID_PREFIX, since=since)
        call.gate.widen(call, choices)
        admission = Admission(
            service=service,
            offload=self._parts.offload,
            http=request,
            body=body,
            marks=marks,
            prepared=prepared,
            lora=lora,
            object=b"text_completion",
        )
        encoding = _engine_requests(admission, prompts)
        requests = await (encoding if short else in_time(marks.deadline, encoding))
        admitted = Admitted(service=service, marks=marks, requests=requests)
        if body.stream:
            await self._stream(call, admission, admitted, response, prompts)
        else:
            await _answer(call, admission, admitted, response, prompts)

    async def _stream(
        self,
        call: InferenceCall,
        admission: Admission,
        admitted: Admitted,
        response: ResponseWriter,
        prompts: Sequence[Prompt],
    ) -> None:
        body = admission.body
        assert isinstance(body, CompletionRequest)
        head = admission.head().event_json()
        per_prompt = body.n or 1
        answer = StreamedAnswer(
            response,
            head,
            admission.usage(_num_tokens(admitted)),
            choices=len(prompts) * per_prompt,
            include_usage=body.wants_usage,
            heads=self._parts.heads,
            keep_alives=self._parts.keep_alives,
        )
        echoes = _echoes(admission, admitted.requests, prompts)
        sinks = await _for_each_choice(
            len(prompts),
            per_prompt,
            lambda prompt, choice: _sink(
                admission,
                admitted,
                answer,
                head=head,
                prompt=prompt,
                choice=choice,
                echo=echoes[prompt],
            ),
        )
        await run_streamed(call, admitted, answer, sinks)


async def _for_each_choice(
    prompts: int, choices: int, make: Callable[[int, int], T]
) -> list[list[T]]:
    """Make something for each choice of each prompt; a checkpoint where they are very many."""
    made = [[make(0, 0)]]
    for number in range(1, prompts * choices):
        prompt, choice = divmod(number, choices)
        if choice == 0:
            made.append([])
        made[-1].append(make(prompt, choice))
        if number % _CHOICES_A_TURN == 0:
            await trio.lowlevel.checkpoint()
    return made


def _sink(
    admission: Admission,
    admitted: Admitted,
    answer: StreamedAnswer,
    *,
    head: bytes,
    prompt: int,
    choice: int,
    echo: str,
) -> OutputSink:
    """Return the pipeline of one streamed choice of one prompt."""
    body = admission.body
    assert isinstance(body, CompletionRequest)
    prompt_ids = admitted.requests[prompt].prompt_token_ids
    pipelines = admission.pipelines
    logprobs = _logprobs_of(admission)
    running = body.wants_running_usage

    def frames(prompt_logprobs: bytes | None = None) -> CompletionFrames:
        return CompletionFrames(
            head,
            prompt * (body.n or 1) + choice,
            echo=echo,
            prompt_token_ids=prompt_ids if body.return_token_ids else None,
            usage=usage_json(len(prompt_ids), 0) if running else None,
            prompt_logprobs=prompt_logprobs,
        )

    if body.echoes_only:

        def opening(found: Logprobs | None) -> bytes:
            if logprobs is None:
                return frames().opening
            return frames(logprobs.write_after_prompt((), prompt_ids, found)).opening

        return EchoChoice(answer, frames(), opening)
    extras = Extras(
        logprobs=logprobs,
        token_ids=bool(body.return_token_ids),
        running_usage=len(prompt_ids) if running else None,
        interval=admission.sampling.stream_interval or 1,
        shown_before=len(echo),
    )
    return pipelines.streamed(answer, frames(), prompt_ids, extras)


async def _answer(
    call: InferenceCall,
    admission: Admission,
    admitted: Admitted,
    response: ResponseWriter,
    prompts: Sequence[Prompt],
) -> None:
    body = admission.body
    assert isinstance(body, CompletionRequest)
    usage = admission.usage(_num_tokens(admitted))
    pipelines = admission.pipelines
    sinks = await _for_each_choice(
        len(prompts),
        body.n or 1,
        lambda prompt, _: pipelines.whole(usage, admitted.requests[prompt].prompt_token_ids),
    )
    choices = [choice for of_prompt in sinks for choice in of_prompt]
    metrics = await run_whole(call, admitted, sinks)
    parts = AnswerParts(
        head=admission.head(),
        usage=usage,
        metrics=metrics,
        prompt_token_ids=[request.prompt_token_ids for request in admitted.requests],
        return_token_ids=bool(body.return_token_ids),
        echoes=_echoes(admission, admitted.requests, prompts),
        decoder=admission.logprob_decoder,
    )
    logprobs = _logprobs_of(admission)
    body_json = await admission.offload.run(
        is_short(choices),
        lambda: completion_answer(
            parts, choices, logprobs, echo=bool(body.echo), echoes_only=body.echoes_only
        ),
    )
    response.respond(200, body_json)


async def _engine_requests(admission: Admission, prompts: Sequence[Prompt]) -> list[EngineRequest]:
    """Encode the prompts and make an engine request of each."""
    service, sampling = admission.service, admission.sampling
    special_tokens = admission.body.add_special_tokens is not False
    requests = []
    for number, prompt in enumerate(prompts):
        if number % _PROMPTS_A_TURN == _PROMPTS_A_TURN - 1:
            await trio.lowlevel.checkpoint()
        given_as_ids = not isinstance(prompt, str)
        token_ids = (
            fit_ids(service, sampling, prompt)
            if not isinstance(prompt, str)
            else await fit_text(service, sampling, prompt, special_tokens=special_tokens)
        )
        requests.append(
            await admission.engine_request(
                token_ids,
                given_as_ids=given_as_ids,
                request_id=admission.marks.id + (f"-{number}" if len(prompts) > 1 else ""),
                template_kwargs={},
            )
        )
    return requests


def _num_tokens(admitted: Admitted) -> int:
    return sum(len(request.prompt_token_ids) for request in admitted.requests)


def _echoes(
    admission: Admission, requests: Sequence[EngineRequest], prompts: Sequence[Prompt]
) -> list[str]:
    """Return the text that leads the choices of each prompt."""
    if not admission.body.echo:
        return [""] * len(prompts)
    decode = admission.service.tokenizer.decode
    skip = admission.sampling.skip_special_tokens is not False
    return [
        prompt if isinstance(prompt, str) else decode(request.prompt_token_ids, skip)
        for prompt, request in zip(prompts, requests, strict=True)
    ]


def _logprobs_of(admission: Admission) -> CompletionLogprobsWriter | None:
    body = admission.body
    assert isinstance(body, CompletionRequest)
    if body.logprobs is None:
        return None
    return CompletionLogprobsWriter(admission.logprob_decoder)

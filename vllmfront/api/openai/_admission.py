"""What both completion routes do between a body and an engine request."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from vllmfront.api.http import HttpRequest
from vllmfront.api.openai._fields import GenerationFields
from vllmfront.api.openai._frames import AnswerHead
from vllmfront.api.openai._marks import RequestMarks
from vllmfront.api.openai._offload import INLINE_SIZE, Offload
from vllmfront.api.openai._pipelines import Pipelines
from vllmfront.api.openai._sampling import PreparedSampling
from vllmfront.api.openai._service import ModelService
from vllmfront.api.openai._usage import Usage
from vllmfront.engine import EngineRequest, LoraRequest, SamplingParams
from vllmfront.text import (
    LogprobDecoder,
    SamplingRequest,
    fit_prompt,
    lower_sampling,
    reject_empty_prompt,
    resolve_max_tokens,
)


async def fit_text(
    service: ModelService, sampling: SamplingRequest, text: str, *, special_tokens: bool
) -> list[int]:
    """Encode a prompt, and fit and check it, all in a worker thread where it is long.

    Raises:
        RequestRejected: It does not fit.
    """
    tokenizer = service.tokenizer

    def fit(token_ids: Sequence[int]) -> list[int]:
        known = tokenizer.stays_in_vocabulary
        return fit_ids(service, sampling, token_ids, known=known)

    return await tokenizer.encode_then(fit, text, special_tokens)


def fit_ids(
    service: ModelService,
    sampling: SamplingRequest,
    token_ids: Sequence[int],
    *,
    known: bool = False,
) -> list[int]:
    """Fit and check a prompt; *known* ids are in the vocabulary for certain.

    Raises:
        RequestRejected: It does not fit.
    """
    return fit_prompt(
        token_ids,
        sampling,
        max_model_len=service.max_model_len,
        vocab_size=service.tokenizer.vocab_size,
        known=known,
    )


class Admission(Struct, kw_only=True, frozen=True):
    """One HTTP request on its way to the engines, with what its answer depends on."""

    service: ModelService
    offload: Offload
    http: HttpRequest
    body: GenerationFields
    marks: RequestMarks
    prepared: PreparedSampling
    lora: LoraRequest | None
    object: bytes
    """Of the answer: ``chat.completion`` or ``text_completion``; chunks add to it."""

    @property
    def sampling(self) -> SamplingRequest:
        return self.prepared.request

    async def engine_request(
        self,
        token_ids: list[int],
        *,
        given_as_ids: bool,
        request_id: str,
        template_kwargs: Mapping[str, Any],
    ) -> EngineRequest:
        """Resolve the sampling for a prompt, which ``fit_text`` or ``fit_ids`` returned.

        Raises:
            RequestRejected: The prompt is empty, or a value does not fit.
        """
        service, sampling = self.service, self.sampling
        max_model_len = service.max_model_len
        if not token_ids:
            reject_empty_prompt(sampling.surface, request_id, given_as_ids=given_as_ids)
        params = self.known_params(len(token_ids))
        if params is None:
            params = await self._lowered(len(token_ids), max_model_len)
        return self.request_with(params, token_ids, request_id, template_kwargs)

    def request_with(
        self,
        params: SamplingParams,
        token_ids: list[int],
        request_id: str,
        template_kwargs: Mapping[str, Any],
    ) -> EngineRequest:
        """Return the engine request for a checked prompt and its lowered sampling."""
        body = self.body
        return EngineRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling=params,
            arrival_time=self.marks.arrival,
            lora=self.lora,
            cache_salt=body.cache_salt,
            data_parallel_rank=self.marks.data_parallel_rank,
            priority=body.priority or 0,
            session_id=self.marks.session_id,
            deadline=self.marks.deadline,
            reasoning_parser_kwargs={"chat_template_kwargs": template_kwargs},
        )

    def params_at_once(self, prompt_length: int) -> SamplingParams:
        """Return the lowered sampling for a prompt so long, of what does not take time.

        Raises:
            RequestRejected: A value does not fit.
        """
        params = self.known_params(prompt_length)
        if params is None:
            params = self._lower(prompt_length, self.service.max_model_len)
            self.prepared.remember(params)
        return params

    def known_params(self, prompt_length: int) -> SamplingParams | None:
        """Return the lowered sampling for a prompt so long, where it is known already."""
        room = self.service.max_model_len - prompt_length
        max_tokens = resolve_max_tokens(self.sampling, self.service.generation, room)
        return self.prepared.lowered.get(max_tokens)

    async def _lowered(self, prompt_length: int, max_model_len: int) -> SamplingParams:
        service, sampling = self.service, self.sampling
        short = not sampling.bad_words or len(self.http.body) <= INLINE_SIZE
        params = await self.offload.run(short, lambda: self._lower(prompt_length, max_model_len))
        if params.structured_outputs is not None and not self.prepared.compiled:
            given = sampling.structured_outputs is not None
            param = "structured_outputs" if given else "response_format"
            await service.grammars.check(params.structured_outputs, param=param)
            self.prepared.compiled = True
        self.prepared.remember(params)
        return params

    def _lower(self, prompt_length: int, max_model_len: int) -> SamplingParams:
        service = self.service
        return lower_sampling(
            self.sampling,
            defaults=service.generation,
            tokenizer=service.tokenizer,
            vocab_size=service.tokenizer.vocab_size,
            max_model_len=max_model_len,
            prompt_length=prompt_length,
            limits=service.options.limits,
        )

    def head(self, *, chunk: bytes = b"") -> AnswerHead:
        model = self.service.model if self.lora is None else self.lora.name
        return AnswerHead(self.marks.id, self.marks.created, model, self.object + chunk)

    @property
    def pipelines(self) -> Pipelines:
        return Pipelines(
            self.service.tokenizer, self.sampling, bool(self.body.return_weight_versions)
        )

    def usage(self, prompt_tokens: int) -> Usage:
        return Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=0 if self.service.options.prompt_tokens_details else None,
        )

    @property
    def logprob_decoder(self) -> LogprobDecoder:
        by_id = self.body.return_tokens_as_token_ids
        if by_id is None:
            by_id = self.service.options.return_tokens_as_token_ids
        skip = self.sampling.skip_special_tokens is not False
        return self.service.logprob_decoder(skip_special_tokens=skip, as_token_ids=by_id)

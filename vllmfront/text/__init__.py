"""Tokens to text and back: tokenizers, detokenizer, stop strings, logprobs, sampling parameters."""

from vllmfront.text._check import check_request, check_schema
from vllmfront.text._constraints import resolve_constraints
from vllmfront.text._detokenizer import Detokenizer
from vllmfront.text._grammar import GrammarChecker
from vllmfront.text._json import f32, f32_shortest, json_escape
from vllmfront.text._load import load_tokenizer, tokenizer_from_json
from vllmfront.text._logprobs import (
    CompletionLogprobs,
    LogprobDecoder,
    PromptLogprob,
    PromptLogprobs,
    finite_logprob,
)
from vllmfront.text._lower import lower_sampling, resolve_max_tokens
from vllmfront.text._prompt import check_ids, fit_prompt, reject_empty_prompt
from vllmfront.text._request import SamplingLimits, SamplingRequest, Surface
from vllmfront.text._stop import StopMatch, StopMatcher
from vllmfront.text._tokenizer import Tokenizer

__all__ = [
    "CompletionLogprobs",
    "Detokenizer",
    "GrammarChecker",
    "LogprobDecoder",
    "PromptLogprob",
    "PromptLogprobs",
    "SamplingLimits",
    "SamplingRequest",
    "StopMatch",
    "StopMatcher",
    "Surface",
    "Tokenizer",
    "check_ids",
    "check_request",
    "check_schema",
    "f32",
    "f32_shortest",
    "finite_logprob",
    "fit_prompt",
    "json_escape",
    "load_tokenizer",
    "lower_sampling",
    "reject_empty_prompt",
    "resolve_constraints",
    "resolve_max_tokens",
    "tokenizer_from_json",
]

"""Tokens to text and back: tokenizers, detokenizer, stop strings, logprobs, sampling parameters."""

from vllmfront.text._detokenizer import Detokenizer
from vllmfront.text._json import f32, f32_shortest, json_escape
from vllmfront.text._load import load_tokenizer, tokenizer_from_json
from vllmfront.text._stop import StopMatch, StopMatcher
from vllmfront.text._tokenizer import Tokenizer

__all__ = [
    "Detokenizer",
    "StopMatch",
    "StopMatcher",
    "Tokenizer",
    "f32",
    "f32_shortest",
    "json_escape",
    "load_tokenizer",
    "tokenizer_from_json",
]

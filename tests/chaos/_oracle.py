"""What the stand-ins' script makes of a request: the one right answer."""

from collections.abc import Sequence
from pathlib import Path

import attrs
from tokenizers import Tokenizer

from tests.chaos._asks import Ask
from vllmfront.engine import SamplingParams
from vllmfront.simulator import TokenSource
from vllmfront.simulator._sampling import Sampler

TINY_CHAT = Path(__file__).parents[1] / "data" / "tiny-chat"
VOCAB_SIZE = 2048
SEED = 0
EOS_CHANCE = 0.01
EOS, OTHER_EOS = 2041, 2039
"""Of the model's configuration: an answer may end with either."""

SIMULATED = (
    *("--vocab-size", str(VOCAB_SIZE), "--seed", str(SEED), "--max-model-len", "1024"),
    *("--eos-chance", str(EOS_CHANCE)),
)
"""Words of ``vllmfront simulate`` that make it say what the oracle says."""


@attrs.frozen
class Truth:
    """What one choice of an answer must be."""

    tokens: Sequence[int]
    text: str
    finish_reason: str


class Oracle:
    """Knows every answer: the next token depends on nothing but all those before it."""

    def __init__(self) -> None:
        self._source = TokenSource(SEED, VOCAB_SIZE)
        self._tokenizer = Tokenizer.from_file(str(TINY_CHAT / "tokenizer.json"))

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def truth(self, ask: Ask, prompt: Sequence[int]) -> Truth:
        """Return what *ask*, whose prompt reads *prompt*, is answered with."""
        tokens, reason = self._tokens(ask, prompt)
        if ask.stop is not None:
            for count in range(1, len(tokens) + 1):
                text = self.decode(tokens[:count])
                if ask.stop in text:
                    return Truth(tokens[:count], text[: text.index(ask.stop)], "stop")
        return Truth(tokens, self.decode(tokens), reason)

    def _tokens(self, ask: Ask, prompt: Sequence[int]) -> tuple[list[int], str]:
        ends = () if ask.ignore_eos else (EOS, OTHER_EOS)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=ask.max_tokens,
            min_tokens=ask.min_tokens,
            eos_token_id=None if ask.ignore_eos else EOS,
            all_stop_token_ids=[EOS, OTHER_EOS],  # masked below the minimum in any case
        )
        state = self._source.start()
        for token in prompt:
            state = self._source.extend(state, token)
        sampler = Sampler(self._source, params, state, 0, EOS_CHANCE)
        said: list[int] = []
        while len(said) < ask.max_tokens:
            said.append(sampler.next_token(state, said))
            state = self._source.extend(state, said[-1])
            if said[-1] in ends:
                return said, "stop"
        return said, "length"

"""What one engine bears, as far as a request can exceed it."""

from collections.abc import Set as AbstractSet

import attrs


@attrs.frozen(kw_only=True)
class GuardLimits:
    """Bounds of the engines behind a client; None where there is none that we know.

    The last five are the room that vLLM's newer model runner sets aside for one request. It dies
    of one entry more, and no engine says which runner it has.
    """

    vocab_size: int | None
    """Rows of the model's embedding, not tokens of its tokenizer."""

    max_model_len: int | None
    supported_tasks: AbstractSet[str] = frozenset({"generate"})
    """As the utility call ``get_supported_tasks`` lists them."""

    lora_ids: AbstractSet[int] = frozenset()
    """Adapters that ``add_lora`` has loaded; may be a live view of a set that changes."""

    num_ranks: int = 1
    """Engines that ``data_parallel_rank`` can name."""

    max_logprobs: int | None = None
    """Candidates a position; None: as many as the vocabulary has."""

    max_choices: int = 16384
    """Choices of one request: a bound on work, and what vLLM allows unless told otherwise."""

    hidden_size: int | None = None
    """Width of ``prompt_embeds``; None: the engine was started without them."""

    multimodal: bool = False
    max_logprob_token_ids: int | None = 128
    max_allowed_token_ids: int | None = 1024
    max_logit_bias: int | None = 1024
    max_stop_token_ids: int | None = 128
    """Of EOS and stop ids together, where ``min_tokens`` masks them."""

    max_bad_words: int | None = 128
    max_bad_words_token_ids: int | None = 1024
    """Over all bad words of a request."""

    @property
    def most_candidates(self) -> int | None:
        """Log probabilities that one position may have."""
        return self.vocab_size if self.max_logprobs is None else self.max_logprobs

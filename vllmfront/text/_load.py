"""Making a tokenizer from a model's files."""

import ctypes
import json
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from vllmfront.errors import ConfigurationError
from vllmfront.models import ModelDescription, read_text
from vllmfront.text._encoder import choose_encoder
from vllmfront.text._tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import decoders


async def load_tokenizer(model: ModelDescription) -> Tokenizer:
    """Load a model's tokenizer in a worker thread; a large vocabulary takes about a second.

    Raises:
        ConfigurationError: There is no tokenizer that can be read.
    """

    def load() -> Tokenizer:
        path = _tokenizer_file(model)
        tokenizer = tokenizer_from_json(
            read_text(path),
            vocab_size=model.config.vocab_size,
            eos_token=model.tokenizer_config.eos_token,
            eos_token_id=next(iter(model.config.eos_token_ids), None),
            name=str(path),
        )
        _give_memory_back()
        return tokenizer

    return await trio.to_thread.run_sync(load, abandon_on_cancel=True)


def tokenizer_from_json(
    source: str,
    *,
    vocab_size: int,
    eos_token: str | None = None,
    eos_token_id: int | None = None,
    name: str = "tokenizer.json",
) -> Tokenizer:
    """Make a tokenizer from the text of a ``tokenizer.json``.

    Args:
        source: The text.
        vocab_size: The model's, which may exceed the tokenizer's.
        eos_token: The text of the EOS token.
        eos_token_id: The EOS id where *eos_token* is unset or unknown.
        name: For messages.

    Raises:
        ConfigurationError: It cannot be read.
    """
    import tokenizers  # late: a server is up before its model is loaded

    try:
        reference = tokenizers.Tokenizer.from_str(source)
    except Exception as error:  # the library raises plain Exception
        raise ConfigurationError(f"{name} is not a usable tokenizer file: {error}") from error
    reference.no_truncation()
    reference.no_padding()
    found = reference.token_to_id(eos_token) if eos_token is not None else None
    return Tokenizer(
        choose_encoder(source, reference),
        reference,
        byte_level=_is_byte_level(reference.decoder),
        vocab_size=vocab_size,
        eos_token_id=eos_token_id if found is None else found,
    )


def _is_byte_level(decoder: "decoders.Decoder | None") -> bool:
    """Whether decoding is nothing but bytes put side by side."""
    if decoder is None:
        return False
    steps = [json.loads(decoder.__getstate__())]
    while len(steps) == 1 and steps[0]["type"] == "Sequence":
        steps = steps[0]["decoders"]
    return [step["type"] for step in steps] == ["ByteLevel"]


def _tokenizer_file(model: ModelDescription) -> Path:
    files = model.files
    if files.tokenizer is not None:
        return files.tokenizer
    other = files.tekken or files.tiktoken
    found = f"only {other.name}" if other else "none"
    raise ConfigurationError(
        f"{files.tokenizer_root} has no tokenizer.json ({found} was found); name a folder or hub"
        " id that has one with --tokenizer."
    )


def _give_memory_back() -> None:
    """Return freed memory to the system: the reference, once read, leaves 100 MiB and more."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc only
        trim(0)

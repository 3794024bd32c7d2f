"""Small tokenizers of every kind, made here, and the trained one of the tiny chat model."""

import functools
from pathlib import Path

import tokenizers
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from vllmfront.text import Tokenizer, tokenizer_from_json

TINY_CHAT = Path(__file__).parent.parent / "data" / "tiny-chat"

CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "Hello world, hello again! How are you today?",
    "Grüße aus Köln, façade, naïve.",
    "one two three four five six seven eight nine ten",
] * 20
SPECIALS = ["<unk>", "<s>", "</s>"]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def reference_of(source: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(source)


@functools.cache
def source_of(kind: str) -> str:
    """Return the ``tokenizer.json`` of one kind."""
    return {
        "byte-level": _byte_level,
        "unigram": _unigram,
        "llama": _llama,
        "wordpiece": _wordpiece,
        "end-of-word": _end_of_word,
    }[kind]()


@functools.cache
def shared_reference(kind: str) -> tokenizers.Tokenizer:
    """Return the reference of one kind, which no test changes."""
    return reference_of(source_of(kind))


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    source = source_of(kind)
    return tokenizer_from_json(
        source, vocab_size=reference_of(source).get_vocab_size(with_added_tokens=True)
    )


KINDS = ("byte-level", "unigram", "llama", "wordpiece", "end-of-word")


def _byte_level() -> str:
    return (TINY_CHAT / "tokenizer.json").read_text("utf-8")


def _unigram() -> str:
    """Metaspace and byte fallback around a unigram model."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=[*SPECIALS, *BYTE_TOKENS],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    vocabulary = [(token, -float(n)) for token, n in tokenizer.get_vocab().items()]
    vocabulary.sort(key=lambda entry: -entry[1])
    whole = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    whole.pre_tokenizer = pre_tokenizers.Metaspace()
    whole.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    whole.add_special_tokens(SPECIALS)
    return whole.to_str()


def _llama() -> str:
    """BPE over text with marked spaces, byte fallback, and a BOS before every text."""
    pieces = tokenizers.Tokenizer(models.BPE())
    pieces.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    pieces.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=500, special_tokens=[*SPECIALS, *BYTE_TOKENS], show_progress=False
        ),
    )
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            pieces.get_vocab(),
            _merges(pieces),
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = pieces.normalizer
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer.to_str()


def _merges(tokenizer: tokenizers.Tokenizer) -> list[tuple[str, str]]:
    import json

    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [tuple(merge) for merge in merges]


def _wordpiece() -> str:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = ["[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=200, special_tokens=specials, show_progress=False),
    )
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return tokenizer.to_str()


def _end_of_word() -> str:
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=200, special_tokens=SPECIALS, end_of_word_suffix="</w>", show_progress=False
        ),
    )
    return tokenizer.to_str()

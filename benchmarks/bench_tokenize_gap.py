"""The worst gap of the event loop while a long prompt is tokenized.

    python benchmarks/bench_tokenize_gap.py [--tokenizer FILE] [--megabytes 8]

Health checks, token streams and new requests wait for as long as such a gap. Both ways to encode
are measured: fastokens, and the reference library that serves the files fastokens cannot load.
Without a file a tokenizer of 32,000 entries is trained on the standard library's source.
"""

import argparse
import contextlib
import pathlib
import sys
import sysconfig
import time

import tokenizers
import trio

from vllmfront.errors import RequestRejected
from vllmfront.text import SamplingRequest, Surface, fit_prompt
from vllmfront.text._encoder import Encoder, FastEncoder, ReferenceEncoder
from vllmfront.text._load import tokenizer_from_json

TICK = 0.001
REQUEST = SamplingRequest(surface=Surface.COMPLETION)
LIMIT_MS = 50.0
PASSAGE = (
    "The quick brown fox jumps over the lazy dog. def f(x): return x + 1\n"
    "Ein Satz mit Umlauten: Grüße aus Köln. 你好世界,再见。 🙂👍🏽 3.14159\n"
)


def trained_tokenizer() -> str:
    from tokenizers import decoders, models, pre_tokenizers, trainers

    stdlib = pathlib.Path(sysconfig.get_paths()["stdlib"])
    files = [str(path) for path in sorted(stdlib.glob("*.py"))[:200]]
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=32000,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(files, trainer)
    return tokenizer.to_str()


async def idle_gap(seconds: float) -> float:
    """Return the worst gap with nothing to do: what the machine's other work costs."""
    worst, last = 0.0, time.perf_counter()
    ends = last + seconds
    while last < ends:
        await trio.sleep(TICK)
        now = time.perf_counter()
        worst, last = max(worst, now - last - TICK), now
    return worst


async def worst_gap(encoder: Encoder, source: str, text: str) -> tuple[float, float, int]:
    """Return the worst gap and the whole time, in seconds, and how many tokens came out."""
    tokenizer = tokenizer_from_json(source, vocab_size=1 << 18)
    tokenizer._encoder = encoder  # noqa: SLF001  # both ways are to be measured
    worst = 0.0

    async def watch() -> None:
        nonlocal worst
        last = time.perf_counter()
        while True:
            await trio.sleep(TICK)
            now = time.perf_counter()
            worst, last = max(worst, now - last - TICK), now

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        ids = await tokenizer.encode_async(text)
        count = len(ids)
        with contextlib.suppress(RequestRejected):
            fit_prompt(ids, REQUEST, max_model_len=131072, vocab_size=1 << 18)
        del ids
        nursery.cancel_scope.cancel()
    return worst, time.perf_counter() - started, count


async def main(source: str, megabytes: int) -> bool:
    size = megabytes * 1_000_000
    text = (PASSAGE * (size // len(PASSAGE.encode()) + 1)).encode()[:size].decode(errors="ignore")
    encoders: list[Encoder] = [
        FastEncoder(source),
        ReferenceEncoder(tokenizers.Tokenizer.from_str(source)),
    ]
    good = True
    print(f"idle loop: worst gap {await idle_gap(3.0) * 1000:5.1f} ms")
    for encoder in encoders:
        gap, whole, count = await worst_gap(encoder, source, text)
        good = good and gap * 1000 < LIMIT_MS
        print(
            f"{encoder.name:10}  {megabytes} MB, {count:,} tokens: worst gap {gap * 1000:5.1f} ms"
            f" (limit {LIMIT_MS:.0f}), whole {whole:5.2f} s"
        )
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokenizer", type=pathlib.Path)
    parser.add_argument("--megabytes", type=int, default=8)
    options = parser.parse_args()
    chosen = options.tokenizer.read_text("utf-8") if options.tokenizer else trained_tokenizer()
    sys.exit(0 if trio.run(main, chosen, options.megabytes) else 1)

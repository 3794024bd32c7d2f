"""The cost of a token on its way to text, in microseconds.

    python benchmarks/bench_detokenize.py [--model FOLDER]

The table is what a plain stream pays; the rest is paid only for split characters, stop strings
and logprobs.
"""

import argparse
import functools
import pathlib
import random
import time
from collections.abc import Callable

import trio

from vllmfront.engine import Logprobs
from vllmfront.models import load_model_description, resolve_model
from vllmfront.text import (
    LogprobDecoder,
    StopMatcher,
    Tokenizer,
    f32_shortest,
    json_escape,
    load_tokenizer,
)
from vllmfront.text._detokenizer import WindowDetokenizer

TINY_CHAT = pathlib.Path(__file__).parent.parent / "tests" / "data" / "tiny-chat"
TEXT = "The quick brown fox jumps over the lazy dog; Grüße, 你好 🙂. " * 200


def measure(name: str, count: int, run: Callable[[], object]) -> None:
    run()
    best = min(_timed(run) for _ in range(5))
    print(f"{name:44} {best / count * 1e6:7.3f} us")


def _timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def through_table(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    table = tokenizer.json_table()
    assert table is not None
    detokenizer = tokenizer.detokenizer()
    parts: list[bytes] = []
    held = False
    for token_id in ids:
        piece = table[token_id]
        if piece is None or held:
            piece = json_escape(detokenizer.feed_one(token_id))
            held = detokenizer.pending
        parts.append(piece)
    return b"".join(parts)


def through_detokenizer(tokenizer: Tokenizer, ids: list[int]) -> None:
    feed = tokenizer.detokenizer().feed_one
    for token_id in ids:
        feed(token_id)


def through_window(tokenizer: Tokenizer, ids: list[int]) -> None:
    feed = WindowDetokenizer(tokenizer.decode, frozenset()).feed_one
    for token_id in ids:
        feed(token_id)


def with_stops(texts: list[str]) -> None:
    matcher = StopMatcher(["\n\nHuman:", "<|end|>"])
    for text in texts:
        matcher.feed(text)
        matcher.take()


async def main(folder: pathlib.Path) -> None:
    tokenizer = await load_tokenizer(load_model_description(await resolve_model(str(folder))))
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    count = len(ids)
    print(f"{tokenizer!r}: {count} tokens of mixed text")
    measure("encode", count, lambda: tokenizer.encode(TEXT, add_special_tokens=False))
    measure("decode as a whole", count, lambda: tokenizer.decode(ids))
    if tokenizer.is_byte_level:
        measure("JSON by table", count, lambda: through_table(tokenizer, ids))
    measure("detokenizer", count, lambda: through_detokenizer(tokenizer, ids))
    measure("window detokenizer", count, lambda: through_window(tokenizer, ids))
    texts = [tokenizer.decode([token_id]) for token_id in ids]
    measure("two stop strings", count, lambda: with_stops(texts))
    rng = random.Random(1)
    numbers = [-rng.expovariate(1.0) for _ in range(count)]
    measure("f32_shortest", count, lambda: [f32_shortest(number) for number in numbers])
    for top in (0, 5, 20):
        rows = [[token_id, *rng.sample(range(256), top)] for token_id in ids]
        values = [[-rng.expovariate(1.0) for _ in row] for row in rows]
        logprobs = Logprobs(rows, values, [1] * count)
        decoder = LogprobDecoder(tokenizer)
        chat = functools.partial(decoder.chat, logprobs, top)
        measure(f"logprobs, top {top}, chat", count, chat)
        completion = functools.partial(decoder.completion, logprobs)
        measure(f"logprobs, top {top}, completions", count, completion)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, default=TINY_CHAT)
    trio.run(main, parser.parse_args().model)

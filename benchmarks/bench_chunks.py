"""What an output pipeline costs a token: the fast lane and the general one, without a socket.

python benchmarks/bench_chunks.py [MODEL_FOLDER]
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from vllmfront.api.http import Headers
from vllmfront.api.openai._frames import AnswerHead, ChatFrames, CompletionFrames
from vllmfront.api.openai._general_choice import Extras
from vllmfront.api.openai._logprobs import ChatLogprobsWriter
from vllmfront.api.openai._pipelines import Pipelines
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.api.openai._usage import Usage
from vllmfront.engine import EngineOutput, FinishReason, Logprobs, OutputSink
from vllmfront.models import files_in_folder, load_model_description
from vllmfront.text import LogprobDecoder, SamplingRequest, Surface, Tokenizer, tokenizer_from_json

TOKENS = 128
ROUNDS = 300
REPEATS = 7
DEFAULT_MODEL = Path(__file__).parent.parent / "tests" / "data" / "tiny-chat"


class NullWriter:
    """Takes what a client would get, and counts it."""

    started = True
    congested = False
    status = 200
    head_time = 0.0

    def __init__(self) -> None:
        self.size = 0

    def add_headers(self, headers: Headers) -> None: ...

    def on_drained(self, callback: Callable[[], None] | None) -> None: ...

    def respond(
        self, status: int, body: bytes, *, content_type: bytes = b"", headers: Headers = ()
    ) -> None: ...

    def start(self, status: int, headers: Headers, *, hold: bool = False) -> None: ...

    def flush(self) -> None: ...

    def write(self, data: bytes) -> None:
        self.size += len(data)

    def offer(self, head: bytes, middle: bytes, tail: bytes) -> bool:
        self.size += len(head) + len(middle) + len(tail)
        return True

    def finish(self, last: bytes = b"") -> None:
        self.size += len(last)


def load(folder: Path) -> Tokenizer:
    description = load_model_description(files_in_folder(str(folder), folder))
    assert description.files.tokenizer is not None
    return tokenizer_from_json(
        description.files.tokenizer.read_text(), vocab_size=description.config.vocab_size
    )


def make_choice(
    tokenizer: Tokenizer, sampling: SamplingRequest, extras: Extras, prompt: Sequence[int]
) -> OutputSink:
    chat = sampling.surface is Surface.CHAT
    head = AnswerHead("chatcmpl-01234567", 1_700_000_000, "bench", b"chat.completion.chunk")
    answer = StreamedAnswer(NullWriter(), head.event_json(), Usage(len(prompt)), choices=1)
    frames = (ChatFrames if chat else CompletionFrames)(head.event_json(), 0)
    return Pipelines(tokenizer, sampling).streamed(answer, frames, prompt, extras)


def logprobs_of(token_id: int) -> Logprobs:
    others = [(token_id + n) % 1000 for n in range(1, 6)]
    return Logprobs([[token_id, *others]], [[-0.123456789 * (n + 1) for n in range(6)]], [1])


def measure(name: str, make: Callable[[], OutputSink], ids: Sequence[int], kind: str) -> None:
    """Print the cost of one token in CPU time, over whole answers: the best of several runs."""
    last = EngineOutput(new_token_ids=[ids[-1]], finish_reason=FinishReason.LENGTH)
    with_logprobs = [EngineOutput(new_token_ids=[i], logprobs=logprobs_of(i)) for i in ids]
    costs = []
    for _ in range(REPEATS):
        choices = [make() for _ in range(ROUNDS)]
        started = time.process_time()
        for choice in choices:
            if kind == "logprobs":
                for output in with_logprobs:
                    choice.on_output(output)
            else:
                for token_id in ids:
                    choice.on_tokens([token_id])
            choice.on_output(last)
        costs.append((time.process_time() - started) / ROUNDS / len(ids))
    print(f"{name:40} {min(costs) * 1e6:6.2f} us/token")


def measure_making(name: str, make: Callable[[], OutputSink]) -> None:
    costs = []
    for _ in range(REPEATS):
        started = time.process_time()
        for _ in range(ROUNDS):
            make()
        costs.append((time.process_time() - started) / ROUNDS)
    print(f"{name:40} {min(costs) * 1e6:6.2f} us/request")


def main() -> None:
    tokenizer = load(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_MODEL)
    words = "The quick brown fox jumps over the lazy dog while the band plays on. " * 40
    ids = tokenizer.encode(words, add_special_tokens=False)[:TOKENS]
    emoji = tokenizer.encode("\N{GRINNING FACE}", add_special_tokens=False)
    split = (emoji * TOKENS)[:TOKENS]
    prompt = ids[:20]
    chat = SamplingRequest(surface=Surface.CHAT)
    stopping = SamplingRequest(surface=Surface.CHAT, stop=["never to be found"])
    logprobs = ChatLogprobsWriter(LogprobDecoder(tokenizer), 5)
    plain = Extras()
    cases: list[tuple[str, SamplingRequest, Extras, Sequence[int], str]] = [
        ("fast: chat", chat, plain, ids, "text"),
        ("fast: completion", SamplingRequest(surface=Surface.COMPLETION), plain, ids, "text"),
        ("fast: chat, split characters", chat, plain, split, "text"),
        ("general: stop string", stopping, plain, ids, "text"),
        ("general: token ids", chat, Extras(token_ids=True), ids, "text"),
        ("general: running usage", chat, Extras(running_usage=20), ids, "text"),
        ("general: interval 8", chat, Extras(interval=8), ids, "text"),
        ("general: logprobs, 5 a token", chat, Extras(logprobs=logprobs), ids, "logprobs"),
    ]
    for name, sampling, extras, tokens, kind in cases:
        measure(
            name,
            lambda s=sampling, e=extras: make_choice(tokenizer, s, e, prompt),  # type: ignore[misc]
            tokens,
            kind,
        )
    measure_making("making a fast choice", lambda: make_choice(tokenizer, chat, plain, prompt))
    measure_making(
        "making a general choice", lambda: make_choice(tokenizer, stopping, plain, prompt)
    )


if __name__ == "__main__":
    main()

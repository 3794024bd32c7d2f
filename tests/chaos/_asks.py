"""What clients ask in a round of the soak, and how they behave: it follows from the seed."""

import json
import random
from collections.abc import Callable, Sequence

import attrs

from vllmfront.testing import ClientFault, ClientFaultKind, HttpCall

MODEL = "tiny"

STOPS = ("e", "ing", "\n", " (", "th", "=")
"""Stop strings: some come early in most texts, some hardly ever."""

WORDS = ("hi", "count", "the", "stars", "again", "and", "why")
FIRST_ID, LAST_ID = 300, 1900
"""Ids of prompts: none is special."""

PLAIN_ID = 300
"""Ends every prompt: whole characters, so that no answer completes one of the prompt's."""

SHORT, LONG = 40, 200
"""Most tokens of most requests, and of the few that are in flight when something happens."""

DEADLINE = 0.3
"""Seconds that the requests with a deadline have; long ones need more."""


@attrs.frozen(kw_only=True)
class Ask:
    """One request of one client."""

    id: str
    prompt: Sequence[int] | None
    """Token ids of a completion; None: a chat, with *text*."""

    text: str = ""
    streamed: bool = False
    choices: int = 1
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: str | None = None
    logprobs: bool = False
    usage: bool = False
    greedy: bool = True
    """Otherwise the best token is the only one to choose from, which comes to the same."""

    deadline: float | None = None
    """Seconds."""

    fault: ClientFault | None = None

    @property
    def is_chat(self) -> bool:
        return self.prompt is None

    @property
    def wants_ids(self) -> bool:
        """Whether the answer shows tokens as ids: else nothing tells how a chat's prompt reads."""
        return self.is_chat or self.stop is None

    def call(self) -> HttpCall:
        path = "/v1/chat/completions" if self.is_chat else "/v1/completions"
        return HttpCall(
            path=path, headers={"x-request-id": self.id}, body=json.dumps(self.body()).encode()
        )

    def body(self) -> dict[str, object]:
        body: dict[str, object] = {
            "model": MODEL,
            "max_tokens": self.max_tokens,
            "stream": self.streamed,
            "n": self.choices,
            "return_token_ids": self.wants_ids,
            "top_p": 1.0,
        }
        if self.is_chat:
            body["messages"] = [{"role": "user", "content": self.text}]
        else:
            body["prompt"] = list(self.prompt or ())
        body |= {"temperature": 0.0} if self.greedy else {"temperature": 1.0, "top_k": 1}
        if self.min_tokens:
            body["min_tokens"] = self.min_tokens
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.stop is not None:
            body["stop"] = self.stop
        if self.logprobs:
            body |= {"logprobs": True, "top_logprobs": 1} if self.is_chat else {"logprobs": 1}
        if self.usage and self.streamed:
            body["stream_options"] = {"include_usage": True}
        if self.deadline is not None:
            body["timeout"] = self.deadline
        return body


def draw_asks(seed: int, round_number: int, count: int) -> list[Ask]:
    """Return the requests of one round, in order."""
    chance = random.Random(f"asks/{seed}/{round_number}").random
    prefix = f"chaos{round_number}x"
    return [_draw(chance, f"{prefix}{number}") for number in range(count)]


def _draw(chance: Callable[[], float], request_id: str) -> Ask:
    streamed, choices = chance() < 0.6, 1 if chance() < 0.8 else 2 + int(chance() * 2)
    longest = LONG if chance() < 0.08 else SHORT
    max_tokens = 1 + int(chance() * longest)
    stop = STOPS[int(chance() * len(STOPS))] if chance() < 0.2 else None
    ignore_eos = chance() < 0.5
    min_tokens = int(chance() * max_tokens) if stop is None and chance() < 0.15 else 0
    prompt = None
    if chance() < 0.6:
        length = 1 + int(chance() * 30)
        prompt = [FIRST_ID + int(chance() * (LAST_ID - FIRST_ID)) for _ in range(length)]
        prompt.append(PLAIN_ID)
    text = " ".join(WORDS[int(chance() * len(WORDS))] for _ in range(1 + int(chance() * 12)))
    with_deadline = chance() < 0.06
    return Ask(
        id=request_id,
        prompt=prompt,
        text=text if prompt is None else "",
        streamed=streamed,
        choices=choices,
        max_tokens=LONG if with_deadline else max_tokens,
        min_tokens=min_tokens,
        ignore_eos=ignore_eos,
        stop=stop,
        logprobs=chance() < 0.2,
        usage=chance() < 0.5,
        greedy=choices == 1 and chance() < 0.7,
        deadline=DEADLINE if with_deadline else None,
        fault=_draw_fault(chance, streamed=streamed),
    )


def _draw_fault(chance: Callable[[], float], *, streamed: bool) -> ClientFault | None:
    drawn, events, seconds = chance(), int(chance() * 12) if streamed else 0, chance()
    if drawn < 0.08:
        return ClientFault(kind=ClientFaultKind.VANISH, after_events=events)
    if drawn < 0.12:
        return ClientFault(kind=ClientFaultKind.RESET, after_events=events)
    if drawn < 0.17:
        return ClientFault(kind=ClientFaultKind.STALL, after_events=events, seconds=seconds)
    if drawn < 0.2:
        return ClientFault(kind=ClientFaultKind.HALF_CLOSE, after_events=events)
    return None

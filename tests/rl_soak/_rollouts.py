"""Rollouts: completions that go on, however often they are interrupted, until they are whole."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import trio

from tests.chaos._asks import MODEL
from tests.chaos._frontend import HOST
from tests.rl_soak._judge import Attempt, Surroundings, attempt_complaints
from tests.rl_soak._truth import History
from vllmfront.testing import Exchange, HttpCall, exchange

FIRST_ID, LAST_ID = 300, 1900
"""Of prompts: none is special."""

ATTEMPT_SECONDS = 60.0
"""Longer than any cycle may take; an attempt that is not over by then hangs."""

LONGEST = 100
MOST_RETRY_SECONDS = 1.0
"""A client waits as long as it is told, but not longer than this: there is much to try."""


@attrs.define
class Rollout:
    """One prompt, and how far it has come."""

    number: int
    prompt: list[int]
    length: int
    streamed: bool
    said: list[int] = attrs.field(factory=list)
    attempts: int = 0

    @classmethod
    def draw(cls, seed: int, number: int) -> "Rollout":
        chance = random.Random(f"rollout/{seed}/{number}").random
        prompt = [FIRST_ID + int(chance() * (LAST_ID - FIRST_ID)) for _ in range(4)]
        length = 1 + int(LONGEST * chance() ** 2)
        return cls(number=number, prompt=prompt, length=length, streamed=chance() < 0.6)

    @property
    def over(self) -> bool:
        return len(self.said) >= self.length

    def call(self) -> HttpCall:
        body = {
            "model": MODEL,
            "prompt": self.prompt + self.said,
            "max_tokens": self.length - len(self.said),
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": self.streamed,
            "return_token_ids": True,
            "return_weight_versions": True,
        }
        headers = {"x-request-id": f"rollout{self.number}x{self.attempts}"}
        return HttpCall(path="/v1/completions", headers=headers, body=json.dumps(body).encode())


@attrs.define
class Fleet:
    """So many rollouts at once, one after the other, for as long as they are wanted."""

    seed: int
    port: int
    surroundings: Callable[[float, float], Surroundings]
    """What happened from one moment to another, in seconds since 1970."""

    outcomes: Counter[str] = attrs.field(factory=Counter)
    violations: list[str] = attrs.field(factory=list)
    begun: int = 0
    done: int = 0
    mixed: int = 0
    """Answers with tokens of several versions."""

    tokens: int = 0
    _ending: bool = False

    async def run(self, at_once: int) -> None:
        """Keep *at_once* on their way until ``end``, and return when the last is over."""
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(self._follow)

    def end(self) -> None:
        """Begin no further ones."""
        self._ending = True

    async def _follow(self) -> None:
        while not self._ending:
            rollout = Rollout.draw(self.seed, self.begun)
            self.begun += 1
            while not rollout.over:
                if not await self._attempt(rollout):
                    return  # lost, which has been noted
            self.done += 1

    async def _attempt(self, rollout: Rollout) -> bool:
        began, found = time.time(), Exchange()
        call, rollout.attempts = rollout.call(), rollout.attempts + 1
        with trio.move_on_after(ATTEMPT_SECONDS) as patience:
            try:
                await exchange(HOST, self.port, call, into=found)
            except OSError as error:
                self.violations.append(f"rollout {rollout.number}: no connection: {error}")
                return False
        around = self.surroundings(began, time.time())
        attempt = Attempt.read(found, streamed=rollout.streamed)
        wanted = rollout.length - len(rollout.said)
        history = History(rollout.prompt + rollout.said)
        complaints = attempt_complaints(
            attempt, wanted, history, around, hung=patience.cancelled_caught
        )
        outcome = "hung" if patience.cancelled_caught else attempt.outcome
        self.outcomes[outcome] += 1
        self.tokens += len(attempt.tokens)
        self.mixed += len({span["version"] for span in attempt.spans or ()}) > 1
        for complaint in complaints:
            self.violations.append(f"{began:.3f} {call.headers['x-request-id']}: {complaint}")
        rollout.said += attempt.tokens
        if patience.cancelled_caught or not attempt.may_go_on:
            return False
        if attempt.error is not None:
            await trio.sleep(min(attempt.retry_after or 0.2, MOST_RETRY_SECONDS))
        return True


def summary(fleet: Fleet) -> dict[str, Any]:
    """Return the sums."""
    return {
        "rollouts": fleet.done,
        "lost": fleet.begun - fleet.done,
        "tokens": fleet.tokens,
        "answers of several versions": fleet.mixed,
        "outcomes": dict(fleet.outcomes.most_common()),
    }

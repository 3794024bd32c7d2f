r"""A reinforcement-learning loop in small: rollouts go on while their weights are replaced.

Start a server whose developer routes are open, then the loop:

    vllmfront simulate --handshake tcp://127.0.0.1:29550 --vocab-size 2048 &
    VLLM_SERVER_DEV_MODE=1 vllmfront serve tests/data/tiny-chat --served-model-name policy \
        --data-parallel-size-local 0 --data-parallel-rpc-port 29550 &
    python examples/rl_loop.py --server http://127.0.0.1:8000

With a real engine, ``--init`` and ``--update`` say how its weight-transfer backend gets weights:
JSON for ``/init_weight_transfer_engine`` and ``/update_weights``. STEP in the latter becomes
the number of the iteration, as in ``{"path": "/weights/STEP.safetensors"}``.

It needs ``pip install 'vllmfront[rl]'``.
"""

import argparse
import json
import time
from collections.abc import Sequence

import anyio
import attrs
import httpx

from vllmfront.rl import Phase, Progress, WeightSyncClient, WeightSyncError


@attrs.define
class Rollouts:
    """Answers that are being generated, and what has become of those that are done."""

    server: str
    model: str
    at_once: int
    max_tokens: int
    done: int = 0
    tokens: int = 0
    mixed: int = 0
    """How many were made by more than one version of the weights."""

    async def serve(self, http: httpx.AsyncClient) -> None:
        """Generate for ever, ``at_once`` at a time."""
        async with anyio.create_task_group() as tasks:
            for number in range(self.at_once):
                tasks.start_soon(self._generate, http, number)

    async def _generate(self, http: httpx.AsyncClient, number: int) -> None:
        while True:
            prompt = f"Rollout {number}, attempt {self.done}:"
            tokens, versions = await self._answer(http, prompt)
            self.done += 1
            self.tokens += tokens
            self.mixed += len(versions) > 1

    async def _answer(self, http: httpx.AsyncClient, prompt: str) -> tuple[int, set[str]]:
        """Return how many tokens one answer has, and which weights made them.

        One that is cut short by a pause has the tokens made so far, and goes on from there.
        """
        tokens, versions = 0, set()
        while True:
            request = {
                "model": self.model,
                "prompt": prompt,
                "max_tokens": self.max_tokens - tokens,
                "ignore_eos": True,
                "return_weight_versions": True,
            }
            response = await http.post(f"{self.server}/v1/completions", json=request)
            if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:  # paused: it says how long
                await anyio.sleep(float(response.headers.get("retry-after", 1)))
                continue
            response.raise_for_status()
            answer = response.json()
            (choice,) = answer["choices"]
            versions |= {span["version"] for span in choice.get("weight_versions") or []}
            tokens += answer["usage"]["completion_tokens"]
            if choice["finish_reason"] != "abort":
                return tokens, versions
            prompt += choice["text"]


@attrs.define
class PauseClock:
    """How long servers stood still in the last update, as the client's progress tells it."""

    since: float = 0.0
    seconds: float = 0.0

    def note(self, progress: Progress) -> None:
        """Take note of one step."""
        if progress.phase is Phase.PAUSED:
            self.since = time.perf_counter() - progress.seconds
        elif progress.phase is Phase.RESUMED:
            self.seconds = time.perf_counter() - self.since


async def train(options: argparse.Namespace) -> None:
    """Run the loop; rollouts never stop for it, they are only frozen while weights move."""
    clock = PauseClock()
    async with (
        httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as http,
        WeightSyncClient(
            options.server, api_key=options.api_key, owner="rl-loop", on_progress=clock.note
        ) as client,
        anyio.create_task_group() as tasks,
    ):
        rollouts = Rollouts(options.server, options.model, options.rollouts, options.max_tokens)
        await client.init_transfer(options.init)
        tasks.start_soon(rollouts.serve, http)
        for iteration in range(1, options.iterations + 1):
            before = attrs.evolve(rollouts)
            await anyio.sleep(options.interval)
            async with client.update_window(
                mode=options.mode, lease=options.lease, version=f"step-{iteration}"
            ) as window:
                await window.send(json.loads(options.update.replace("STEP", str(iteration))))
            (version,) = (await client.weight_versions()).values()
            print(
                f"iteration {iteration}: {rollouts.done - before.done} rollouts "
                f"({rollouts.tokens - before.tokens} tokens, {rollouts.mixed - before.mixed} over "
                f"two versions), paused {clock.seconds * 1000:.1f} ms, weights {version}",
                flush=True,
            )
        await client.shutdown_transfer()
        tasks.cancel_scope.cancel()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Rollouts under changing weights.")
    parser.add_argument("--server", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key", help="the admin key, where the server wants one")
    parser.add_argument("--model", default="policy")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between updates")
    parser.add_argument("--rollouts", type=int, default=64, help="how many at once")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--mode", choices=["keep", "wait", "abort"], default="keep")
    parser.add_argument("--lease", type=float, default=30.0, help="seconds")
    parser.add_argument("--init", type=json.loads, default={}, help="JSON for the backend")
    parser.add_argument("--update", default='{"step": STEP}', help="JSON for the backend")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        anyio.run(train, parse())
    except* (WeightSyncError, httpx.HTTPError) as failures:
        raise SystemExit(f"the loop ended: {failures.exceptions[0]}") from None

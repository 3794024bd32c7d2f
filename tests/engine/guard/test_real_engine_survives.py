"""The proof of the guard: a real engine outlives thousands of random requests."""

import contextlib
import random
from collections.abc import Iterator

import pytest
import trio

from tests.engine.guard.strategies import random_request
from vllmfront.engine._request import EngineRequest, SamplingParams
from vllmfront.engine.client import EngineClient, EngineState
from vllmfront.errors import EngineRequestFailed, RequestRejected

REQUESTS = 5000
IN_FLIGHT = 64
# 30 s on an idle machine; the rest is for machines that are not.
BUDGET = 300.0


def random_requests() -> Iterator[EngineRequest]:
    seed = 0
    while True:
        request = random_request(random.Random(seed))
        # The one opens a session that would have to be closed, the other is not for the engine.
        if request.resumable is not True and request.deadline is None:
            yield request
        seed += 1


@pytest.mark.engine
async def test_a_real_engine_survives_what_the_guard_lets_pass(
    real_engine_client: EngineClient,
) -> None:
    requests = random_requests()
    sent = finished = 0

    async def send_some() -> None:
        nonlocal sent, finished
        while sent < REQUESTS:
            request = next(requests)
            try:
                stream = real_engine_client.submit(request)
            except RequestRejected:
                await trio.lowlevel.checkpoint()
                continue
            sent += 1
            async with stream:
                if request.abort_immediately:  # never gets an answer
                    continue
                with contextlib.suppress(RequestRejected, EngineRequestFailed):
                    await stream.wait_finished()
                    finished += 1

    with trio.fail_after(BUDGET):
        async with trio.open_nursery() as nursery:
            for _ in range(IN_FLIGHT):
                nursery.start_soon(send_some)
        plain = SamplingParams(temperature=0.0, max_tokens=3)
        last = EngineRequest(request_id="last", prompt_token_ids=[1, 2, 3], sampling=plain)
        async with real_engine_client.submit(last) as stream:
            await stream.wait_finished()

    assert real_engine_client.state is EngineState.READY
    assert real_engine_client.num_in_flight == 0
    assert stream.num_generated_tokens == 3
    # Constraints that no engine can compile, and little else, fail.
    assert finished > 0.8 * REQUESTS

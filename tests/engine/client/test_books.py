"""After anything that can happen, in any order, the books balance."""

import time
from contextlib import AsyncExitStack, suppress
from random import Random

import pytest
import trio

from tests.engine._helpers import (
    RecordingSink,
    assert_idle,
    engine_for,
    open_engines,
    rank_state,
    request,
    settle,
)
from vllmfront.engine import (
    EngineClient,
    EngineOutput,
    FinishReason,
    RankState,
    RequestStream,
)
from vllmfront.engine.wire import Abort, Add, Utility, plain_row
from vllmfront.errors import RequestRejected, VllmFrontError
from vllmfront.testing import FakeEngine

RANKS = 2


class World:
    """A client, its engines, and what the engines believe is running."""

    def __init__(
        self, client: EngineClient, engines: list[FakeEngine], random: Random, nursery: trio.Nursery
    ) -> None:
        self.client = client
        self.engines = engines
        self.random = random
        self.nursery = nursery
        self.running: list[dict[str, int]] = [{} for _ in engines]
        """By internal id: how many ids a request has, which is also its next token."""

        self.submitted = 0
        self.aborts: list[str] = []
        self.scopes: list[trio.CancelScope] = []
        self.streams: list[RequestStream] = []
        self.sinks: list[RecordingSink] = []
        for rank in range(RANKS):
            nursery.start_soon(self.serve, rank, engines[rank])

    async def serve(self, rank: int, engine: FakeEngine) -> None:
        """Be an engine that only listens."""
        while True:
            try:
                heard = await engine.receive()
            except trio.ClosedResourceError:
                return
            if isinstance(heard, Add):
                assert heard.internal_id not in self.running[rank], "an id came twice"
                self.running[rank][heard.internal_id] = len(heard.request.prompt_token_ids)
            elif isinstance(heard, Abort):
                self.aborts += heard.request_ids
                for one in heard.request_ids:
                    self.running[rank].pop(one, None)
            elif isinstance(heard, Utility):
                engine.answer(heard, result=True)

    async def client_task(self, number: int, scope: trio.CancelScope) -> None:
        """Be one request handler."""
        n = self.random.choice([1, 1, 1, 3])
        sinks = [self.sink() for _ in range(n)]
        stream = self.client.submit(request(f"r{number}", n=n), sinks)
        with scope, suppress(VllmFrontError):
            async with stream:
                await stream.wait_finished()
        if stream.cause is not None:  # else it was refused
            self.submitted += n
            self.streams.append(stream)

    def sink(self) -> RecordingSink:
        kind = self.random.randrange(6)
        sink = RecordingSink(
            stop_after=3 if kind == 0 else None, fail_after=3 if kind == 1 else None
        )
        self.sinks.append(sink)
        return sink

    def submit(self) -> None:
        scope = trio.CancelScope()
        self.scopes.append(scope)
        self.nursery.start_soon(self.client_task, len(self.scopes), scope)

    def leave(self) -> None:
        if self.scopes:
            self.random.choice(self.scopes).cancel()

    def step(self) -> None:
        """Let one engine say something about all that it runs."""
        rank = self.random.randrange(RANKS)
        rows = []
        for one in sorted(self.running[rank]):
            kind = self.random.randrange(12)
            following = self.running[rank][one]
            if kind == 0:
                rows.append(plain_row(one, [following], self.random.choice(list(FinishReason))))
                del self.running[rank][one]
            elif kind == 1:
                rows.append([one, ["no token"], "nonsense"])
            else:
                rows.append(plain_row(one, [following, following + 1]))
                self.running[rank][one] += 2
        rows.append(plain_row("unknown", [1]))
        self.engines[rank].send_rows(rows)

    def forget(self) -> None:
        """Let an engine drop what it runs and only say so."""
        rank = self.random.randrange(RANKS)
        self.engines[rank].send_rows([], finished_requests=sorted(self.running[rank]))
        self.running[rank].clear()

    def abort(self) -> None:
        self.client.abort([f"r{self.random.randrange(len(self.scopes) + 1)}"])

    def refuse(self) -> None:
        with pytest.raises(RequestRejected):
            self.client.submit(request(data_parallel_rank=RANKS))

    async def replace(self, stack: AsyncExitStack) -> None:
        """Let an engine die in one of three ways, and come back."""
        rank = self.random.randrange(RANKS)
        old = self.engines[rank]
        way = self.random.randrange(3)
        if way == 0:
            old.report_death()
        elif way == 1:
            self.client.report_death("killed", rank)
        old.close()
        # One that was killed while it loaded is just not there; its successor says HELLO anyway.
        while rank_state(self.client, rank) is RankState.READY:  # noqa: ASYNC110 (no event)
            await trio.sleep(0.005)
        self.running[rank] = {}
        new = stack.enter_context(engine_for(self.client, rank))
        await new.join()
        await self.client.wait_ready()
        self.engines[rank] = new
        self.nursery.start_soon(self.serve, rank, new)


async def run(world: World, stack: AsyncExitStack, steps: int) -> None:
    acts = [world.submit] * 6 + [world.step] * 8 + [world.leave] * 2
    acts += [world.forget, world.abort, world.refuse]
    for _ in range(steps):
        if world.random.randrange(25) == 0:
            await world.replace(stack)
        else:
            world.random.choice(acts)()
        # Sometimes everything is dealt with before the next thing happens, sometimes nothing.
        for _ in range(world.random.choice([0, 1, 5])):
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("seed", range(6))
async def test_the_books_balance(seed: int) -> None:
    async with (
        open_engines(RANKS) as (client, engines),
        AsyncExitStack() as stack,
        trio.open_nursery() as nursery,
    ):
        world = World(client, engines, Random(seed), nursery)
        await run(world, stack, steps=150)
        await settle()
        for scope in world.scopes:
            scope.cancel()
        with trio.move_on_after(10):  # the engines hear of it when the machine gets to it
            while any(world.running):
                await settle()
        await settle()

        assert_idle(client)
        causes = client.metrics.snapshot().causes
        assert world.submitted > 0
        assert sum(causes.values()) - causes["refused"] == world.submitted
        assert all(stream.finished and stream.cause for stream in world.streams)
        assert world.running == [{}] * RANKS
        for sink in world.sinks:
            assert sink.tokens == list(range(3, 3 + len(sink.tokens))), "none missing, none twice"
        assert len(world.aborts) == len(set(world.aborts)), "an abort was sent twice"
        nursery.cancel_scope.cancel()


async def test_an_output_is_never_pushed_after_the_end() -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink()
        async with client.submit(request(), [sink]) as stream:
            add = await engine.receive_add()
            end = EngineOutput(new_token_ids=[1], finish_reason=FinishReason.STOP)
            engine.send_output(add.internal_id, end)
            engine.send_tokens(add.internal_id, [2])
            engine.send_output(add.internal_id, end)
            await stream.wait_finished()
            await settle()

        assert sink.tokens == [1]


async def test_flushing_a_request_may_be_what_finds_its_engine_killed() -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink(stop_after=1)
        async with client.submit(request(), [sink]) as stream:
            await engine.receive_add()
            engine.close()
            time.sleep(0.05)  # noqa: ASYNC251 (the monitor's task must not run before the send)
            # What was read before waits to be merged, and completes the request; telling the
            # engine of that is the first to find it gone.
            [child] = stream.children
            child.pending = [7]
            client._books.flush([child])

        assert sink.tokens == [7]
        assert_idle(client)

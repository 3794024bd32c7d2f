"""The inference routes over a real engine client, a fake engine, and clients made of paper."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import attrs
import trio

from vllmfront.api.http import Handler, Headers, HttpRequest
from vllmfront.api.metrics import InferenceMetrics
from vllmfront.api.openai import GateLimits, ModelService, OpenAiRoutes, ServiceOptions, ServiceSlot
from vllmfront.chat import ChatRenderer, NamedTemplates
from vllmfront.engine import (
    EngineClient,
    EngineClientConfig,
    EngineOutput,
    EngineState,
    FinishReason,
    GuardLimits,
    open_engine_client,
)
from vllmfront.engine.wire import Add
from vllmfront.models import ModelDescription
from vllmfront.testing import FakeEngine
from vllmfront.text import Tokenizer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
JSON_TYPE = (b"content-type", b"application/json")
PATIENCE = 30.0
"""Seconds after which a test that waits has failed; far beyond what a busy machine takes."""


class PaperWriter:
    """A client that reads everything, unless it is told not to."""

    def __init__(self) -> None:
        self.started = False
        self.finished = False
        self.held = False
        self.status = 0
        self.head_time = 0.0
        self.headers: dict[bytes, bytes] = {}
        self.pieces: list[bytes] = []
        self.reading = True
        self._callback: Callable[[], None] | None = None

    @property
    def congested(self) -> bool:
        return not self.reading

    def add_headers(self, headers: Headers) -> None:
        self.headers.update(headers)

    def on_drained(self, callback: Callable[[], None] | None) -> None:
        self._callback = callback

    def read_on(self) -> None:
        """Take what was sent, and be ready for more."""
        self.reading = True
        if self._callback is not None:
            self._callback()

    def respond(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Headers = (),
    ) -> None:
        self.start(status, [(b"content-type", content_type), *headers])
        self.finish(body)

    def start(self, status: int, headers: Headers, *, hold: bool = False) -> None:
        assert not self.started
        self.held = hold
        self.started = True
        self.status = status
        self.headers.update(headers)

    def flush(self) -> None:
        self.held = False

    def write(self, data: bytes) -> None:
        self.held = False
        assert self.started
        assert not self.finished
        assert data
        self.pieces.append(data)

    def offer(self, head: bytes, middle: bytes, tail: bytes) -> bool:
        if self.congested or self.finished:
            return False
        self.write(head + middle + tail)
        return True

    def finish(self, last: bytes = b"") -> None:
        assert not self.finished
        self.finished = True
        if last:
            self.pieces.append(last)

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The stream's events: decoded chunks, and text for what is not JSON."""
        return events_of(self.body)


def events_of(body: bytes) -> list[Any]:
    events: list[Any] = []
    for block in body.decode().split("\n\n")[:-1]:
        data = block.removeprefix("data: ")
        events.append(json.loads(data) if data.startswith("{") else block)
    return events


class PaperConnection:
    """Says why a connection ends."""

    def __init__(self) -> None:
        self.close_cause: str | None = None

    async def wait_closed(self) -> None:
        await trio.sleep_forever()


@attrs.define(eq=False)
class Call:
    """One HTTP request in progress."""

    writer: PaperWriter
    connection: PaperConnection
    scope: trio.CancelScope
    done: trio.Event

    def leave(self, cause: str = "client gone") -> None:
        """End the connection, as its owner would."""
        self.connection.close_cause = cause
        self.scope.cancel(reason=cause)

    async def finished(self) -> PaperWriter:
        with trio.fail_after(PATIENCE):
            await self.done.wait()
        return self.writer


@attrs.define(eq=False)
class Api:
    """The routes, and what is behind them."""

    client: EngineClient
    engine: FakeEngine
    """The one that was started last."""

    engines: ExitStack
    slot: ServiceSlot
    tokenizer: Tokenizer
    handlers: Mapping[str, Handler]
    metrics: InferenceMetrics
    nursery: trio.Nursery

    def post(
        self, path: str, body: Mapping[str, Any] | bytes, headers: Headers = (JSON_TYPE,)
    ) -> Call:
        """Begin a request; it runs until the test ends."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        call = Call(PaperWriter(), PaperConnection(), trio.CancelScope(), trio.Event())
        request = HttpRequest(
            method="POST",
            path=path,
            raw_path=path.encode(),
            query=b"",
            headers=headers,
            body=raw,
            connection=call.connection,
        )

        async def run() -> None:
            with call.scope:
                await self.handlers[path](request, call.writer)
            call.done.set()

        self.nursery.start_soon(run)
        return call

    async def answer(
        self, path: str, body: Mapping[str, Any] | bytes, headers: Headers = (JSON_TYPE,)
    ) -> PaperWriter:
        """Return the answer to a request that no engine is asked for."""
        return await self.post(path, body, headers).finished()

    async def next_add(self) -> Add:
        """Return what the engine is asked for next."""
        with trio.fail_after(PATIENCE):
            return await self.engine.receive_add()

    async def replace_engine(self) -> None:
        """Kill the engine, and let another take its place."""
        self.engine.close()
        address = self.client.handshake_address
        assert address is not None
        with trio.fail_after(PATIENCE):
            await self.client.wait_state(lambda state: state is not EngineState.READY)
            self.engine = self.engines.enter_context(FakeEngine(address))
            await self.engine.join()
            await self.client.wait_ready()

    @property
    def ends(self) -> dict[str, int]:
        """How many requests have ended, by cause, where there were any."""
        return {cause.value: count for cause, count in self.metrics.ends.items() if count}

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def say(self, add: Add, token_ids: Sequence[int], finish: FinishReason | None = None) -> None:
        """Let the engine send one message about a request."""
        self.engine.send_tokens(add.internal_id, token_ids, finish)

    def say_output(self, add: Add, **fields: Any) -> None:
        fields.setdefault("new_token_ids", [])
        self.engine.send_output(add.internal_id, EngineOutput(**fields))

    async def say_slowly(
        self, add: Add, token_ids: Sequence[int], finish: FinishReason | None = FinishReason.LENGTH
    ) -> None:
        """Let the engine send one token a message, each read before the next is sent."""
        for number, token_id in enumerate(token_ids, 1):
            self.say(add, [token_id], finish if number == len(token_ids) else None)
            await self.heard(add, number)

    async def heard(self, add: Add, count: int) -> None:
        """Return once *count* tokens of a request were dealt with, or it has ended."""
        children = self.client._books.children
        with trio.fail_after(PATIENCE):
            # Messages pass through threads of ZeroMQ, out of Trio's sight and without an event.
            while (  # noqa: ASYNC110
                child := children.get(add.internal_id)
            ) and child.record.num_tokens < count:
                await trio.sleep(0.0005)


@asynccontextmanager
async def open_api(
    model: ModelDescription,
    tokenizer: Tokenizer,
    options: ServiceOptions | None = None,
    *,
    limits: GateLimits | None = None,
    recovery_wait: float = 0,
    keep_alive_interval: float = 0,
) -> AsyncGenerator[Api]:
    """Serve *model* with an engine that is ready, for as long as the block runs."""
    config = EngineClientConfig(
        all_local=True,
        limits=GuardLimits(vocab_size=model.config.vocab_size, max_model_len=None),
        recovery_wait=recovery_wait,
    )
    async with open_engine_client(config) as client, trio.open_nursery() as nursery:
        assert client.handshake_address is not None
        with ExitStack() as engines:
            engine = engines.enter_context(FakeEngine(client.handshake_address))
            await engine.join()
            await client.wait_ready()
            slot = ServiceSlot()
            slot.put(
                ModelService(
                    served_names=["tiny", "alias"],
                    tokenizer=tokenizer,
                    renderer=ChatRenderer(
                        NamedTemplates(model.chat_template),
                        special_tokens=model.tokenizer_config.special_tokens,
                    ),
                    generation=model.generation,
                    engine=client,
                    options=options or ServiceOptions(),
                )
            )
            metrics = InferenceMetrics()
            routes = OpenAiRoutes(
                slot, limits=limits, metrics=metrics, keep_alive_interval=keep_alive_interval
            )
            if keep_alive_interval:
                await nursery.start(routes.serve_timers)
            handlers = {path: handler for _, path, handler in routes}
            yield Api(client, engine, engines, slot, tokenizer, handlers, metrics, nursery)
            nursery.cancel_scope.cancel(reason="the test is over")
    # A thread that outlives its run never gives back its place in the limiter, which tests share.
    with trio.fail_after(PATIENCE):
        while tokenizer._limiter.borrowed_tokens:  # noqa: ASYNC110 (threads set no event)
            await trio.sleep(0.01)


def chat(text: Any = "Hello!", **fields: Any) -> dict[str, Any]:
    """Make the body of a chat completion."""
    return {"messages": [{"role": "user", "content": text}], **fields}


def completion(prompt: Any = "Hello", **fields: Any) -> dict[str, Any]:
    """Make the body of a text completion."""
    return {"prompt": prompt, **fields}


def contents(events: Sequence[Any], index: int = 0) -> list[str]:
    """Return the texts that a chat stream's events add to one choice."""
    return [
        choice["delta"]["content"]
        for event in events
        if isinstance(event, dict)
        for choice in event.get("choices", ())
        if choice["index"] == index and "content" in choice["delta"]
    ]

"""Routes for inference and for developers over one client and stand-ins, with clients of paper."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import attrs
import trio

from tests.api.openai._harness import JSON_TYPE, Call, PaperConnection, PaperWriter
from vllmfront.api.developer import DeveloperRoutes
from vllmfront.api.http import Handler, Headers, HttpRequest
from vllmfront.api.lora import LoraRoutes
from vllmfront.api.openai import ModelService, OpenAiRoutes, ServiceSlot
from vllmfront.chat import ChatRenderer, NamedTemplates
from vllmfront.control import ControlConfig, ControlPlane, open_control_plane
from vllmfront.engine import EngineClient, EngineClientConfig, GuardLimits, open_engine_client
from vllmfront.models import ModelDescription, files_in_folder, load_model_description, read_text
from vllmfront.simulator import SimulatorConfig, open_simulator
from vllmfront.text import Tokenizer, tokenizer_from_json

TINY_CHAT = Path(__file__).parents[2] / "data" / "tiny-chat"
COMPLETIONS = "/v1/completions"
ENVIRON = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
    "VLLM_API_KEY": "hush",
    "HOME": "/nowhere",
}
"""Opens all gates."""

SECONDS = 20.0
"""After which a test that waits has failed."""


@attrs.define(eq=False)
class Stage:
    """What a test works with."""

    client: EngineClient
    plane: ControlPlane
    handlers: Mapping[tuple[str, str], Handler]
    nursery: trio.Nursery

    def begin(self, path: str, body: object = None, *, method: str = "POST", **query: Any) -> Call:
        """Begin a request; it runs until the test ends."""
        call = Call(PaperWriter(), PaperConnection(), trio.CancelScope(), trio.Event())
        headers: Headers = (JSON_TYPE,)
        request = HttpRequest(
            method=method,
            path=path,
            raw_path=path.encode(),
            query=urlencode(query).encode(),
            headers=headers,
            body=b"" if body is None else json.dumps(body).encode(),
            connection=call.connection,
        )

        async def run() -> None:
            with call.scope:
                await self.handlers[method, path](request, call.writer)
            call.done.set()

        self.nursery.start_soon(run)
        return call

    async def post(self, path: str, body: object = None, **query: Any) -> PaperWriter:
        return await self.begin(path, body, **query).finished()

    async def done(self, path: str, body: object = None, **query: Any) -> Any:
        """Return the JSON of an answer that must be a 200."""
        answer = await self.post(path, body, **query)
        assert answer.status == 200, answer.body
        return answer.json if answer.body else None

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self.begin(path, method="GET", **query).finished()
        assert answer.status == 200, answer.body
        return answer.json

    async def generate(self, **fields: Any) -> PaperWriter:
        return await self.post(COMPLETIONS, completion(**fields))

    async def generate_when_open(self) -> PaperWriter:
        """Return the answer of the first request that is not refused."""
        while (answer := await self.generate()).status == 503:  # noqa: ASYNC110 (no event for it)
            await trio.sleep(0.01)
        return answer

    async def text(self, **fields: Any) -> str:
        """Return what the model says now."""
        answer = await self.done(COMPLETIONS, completion(**fields))
        said: str = answer["choices"][0]["text"]
        return said

    async def update(self, *chunks: object, version: str | None = None) -> None:
        """Run a whole update by single calls."""
        await self.done("/start_weight_update")
        for chunk in chunks:
            await self.done("/update_weights", {"update_info": chunk})
        await self.done("/finish_weight_update", {"weight_version": version} if version else None)

    async def in_flight(self, count: int) -> None:
        """Return once so many requests have got their first tokens."""
        books = self.client._books

        def begun() -> int:
            return sum(child.record.num_tokens > 0 for child in books.children.values())

        while begun() < count:  # noqa: ASYNC110 (no event for it)
            await trio.sleep(0.002)


def completion(**fields: Any) -> dict[str, Any]:
    return {"prompt": "Hello", "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}


def error_of(answer: PaperWriter, status: int) -> dict[str, Any]:
    """Return the error of an answer with that *status*."""
    assert answer.status == status, answer.body
    error: dict[str, Any] = answer.json["error"]
    return error


_SERVED: list[tuple[ModelDescription, Tokenizer]] = []


def _served() -> tuple[ModelDescription, Tokenizer]:
    """Return the model's files, which are read once."""
    if not _SERVED:
        model = load_model_description(files_in_folder("tiny-chat", TINY_CHAT))
        assert model.files.tokenizer is not None
        tokenizer = tokenizer_from_json(
            read_text(model.files.tokenizer),
            vocab_size=model.config.vocab_size,
            eos_token=model.tokenizer_config.eos_token,
        )
        _SERVED.append((model, tokenizer))
    return _SERVED[0]


@asynccontextmanager
async def stage(
    config: ControlConfig | None = None,
    client_config: EngineClientConfig | None = None,
    **simulated: Any,
) -> AsyncGenerator[Stage]:
    """Serve with stand-ins, made as *simulated* says, for as long as the block runs."""
    model, tokenizer = _served()
    client_config = attrs.evolve(
        client_config or EngineClientConfig(recovery_wait=5),
        engine_count=simulated.get("ranks", 1),
        limits=GuardLimits(vocab_size=model.config.vocab_size, max_model_len=None),
    )
    simulated = {"step_time": 0.002, "vocab_size": 2048, **simulated}
    with trio.fail_after(SECONDS):
        async with open_engine_client(client_config) as client:
            assert client.handshake_address is not None
            engines = SimulatorConfig(handshake=client.handshake_address, **simulated)
            async with (
                open_control_plane(client, config) as plane,
                open_simulator(engines),
                trio.open_nursery() as nursery,
            ):
                await client.wait_ready()
                slot = ServiceSlot()
                slot.put(_service(client, model, tokenizer))
                routes = [
                    *OpenAiRoutes(slot),
                    *LoraRoutes(client.adapters, ["tiny"], ENVIRON),
                    *DeveloperRoutes(
                        plane,
                        ENVIRON,
                        configuration=lambda: {"a": {"b": 1}, "c": "d"},
                        profiler=True,
                    ),
                ]
                handlers = {(method, path): handler for method, path, handler in routes}
                yield Stage(client, plane, handlers, nursery)
                nursery.cancel_scope.cancel(reason="the test is over")


def _service(client: EngineClient, model: ModelDescription, tokenizer: Tokenizer) -> ModelService:
    return ModelService(
        served_names=["tiny"],
        tokenizer=tokenizer,
        renderer=ChatRenderer(
            NamedTemplates(model.chat_template),
            special_tokens=model.tokenizer_config.special_tokens,
        ),
        generation=model.generation,
        engine=client,
    )

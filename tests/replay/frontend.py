"""Our frontend, in this process and over real sockets, with a replaying engine behind it."""

import functools
import pathlib
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import h11
import trio

from tests.replay.engine import ReplayEngine
from tests.replay.recording import Recording, Scenario
from vllmfront.api.http import ListenConfig as HttpListenConfig
from vllmfront.api.http import open_listeners
from vllmfront.api.openai import ModelService
from vllmfront.control import open_control_plane
from vllmfront.engine import EngineClient, EngineClientConfig, GuardLimits, open_engine_client
from vllmfront.lifecycles import EngineConfig, ModelConfig, ServeConfig, ServerConfig
from vllmfront.lifecycles._api import ApiServer
from vllmfront.lifecycles._model import DrainingSlot, load_files, make_service
from vllmfront.supervisor import Reloads, RestartPolicy, Shutdown, Supervisor

MODEL = pathlib.Path(__file__).parents[1] / "data" / "tiny-chat"
CONFIG = ServeConfig(
    model=ModelConfig(model=str(MODEL)),
    engine=EngineConfig(data_parallel_size_local=0),
    server=ServerConfig(served_model_names=["tiny"]),
)
VOCABULARY = 2048
POLL_SECONDS = 0.0005
"""Between two looks at whether the client has read what the engine said."""


@attrs.frozen
class Answer:
    """What our frontend answered."""

    status: int
    content_type: str
    body: bytes


@attrs.frozen
class Frontend:
    """A running frontend."""

    port: int
    engine: ReplayEngine
    client: EngineClient

    async def ask(self, scenario: Scenario, *, leave_after: int | None = None) -> Answer:
        """Send a recorded request and return our answer.

        Args:
            scenario: What to ask.
            leave_after: Hang up after so many stream events.
        """
        http = h11.Connection(h11.CLIENT)
        request = h11.Request(
            method=scenario.method,
            target=scenario.path,
            headers=[
                ("host", "test"),
                ("content-type", "application/json"),
                ("content-length", str(len(scenario.body))),
                *scenario.headers.items(),
            ],
        )
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with stream:
            for event in (request, h11.Data(data=scenario.body), h11.EndOfMessage()):
                await stream.send_all(http.send(event) or b"")
            head: h11.Response | None = None
            body = b""
            while leave_after is None or body.count(b"\n\n") < leave_after:
                received = http.next_event()
                if received is h11.NEED_DATA:
                    http.receive_data(await stream.receive_some())
                elif isinstance(received, h11.Response):
                    head = received
                elif isinstance(received, h11.Data):
                    body += bytes(received.data)
                else:
                    break
        assert head is not None
        content_type = dict(head.headers)[b"content-type"].decode().partition(";")[0]
        return Answer(head.status_code, content_type, body)


@asynccontextmanager
async def open_frontend(
    recording: Recording, *, paced: bool = True
) -> AsyncGenerator[Frontend, None]:
    """Run a frontend with the engine of *recording* for as long as the block runs.

    Args:
        recording: What the engine says.
        paced: Whether it waits until each message has been read; else the frontend finds many
            at a time, and may merge them.
    """
    engine = ReplayEngine(recording)
    async with (
        open_listeners(HttpListenConfig(host="127.0.0.1", port=0)) as listeners,
        open_engine_client(EngineClientConfig(adapters=recording.adapters)) as client,
        open_control_plane(client) as control,
        trio.open_nursery() as nursery,
    ):
        client.set_limits(GuardLimits(vocab_size=VOCABULARY, max_model_len=None))
        slot = DrainingSlot()
        slot.put(attrs.evolve(await _loaded_once(), engine=client))
        shutdown = Shutdown(budget=0, margin=0)
        api = ApiServer(
            config=CONFIG,
            listeners=listeners,
            client=client,
            control=control,
            slot=slot,
            shutdown=shutdown,
            reloads=Reloads(),
            refuse=lambda: None,
            on_server=lambda _server: None,
            tree=Supervisor("root", [], RestartPolicy(intensity=0), shutdown=shutdown).snapshot,
        )
        await nursery.start(api.run, trio.Event())
        assert client.handshake_address is not None
        was_read = functools.partial(_wait_until_read, client) if paced else _do_not_wait
        await nursery.start(engine.serve, client.handshake_address, was_read)
        await client.wait_ready()
        yield Frontend(listeners[0].socket.getsockname()[1], engine, client)
        nursery.cancel_scope.cancel()


_services: list[ModelService] = []


async def _loaded_once() -> ModelService:
    """Return the model, which only the first test waits for."""
    if not _services:
        async with open_engine_client(EngineClientConfig()) as client:
            _services.append(make_service(await load_files(CONFIG), CONFIG, client))
    return _services[0]


async def _do_not_wait(_sent_at: float) -> None:
    await trio.lowlevel.checkpoint()


async def _wait_until_read(client: EngineClient, sent_at: float) -> None:
    while True:
        now = time.monotonic()  # before the age is taken: a pause in between must not add to it
        (rank,) = client.snapshot().ranks
        age = rank.seconds_since_output
        if age is not None and now - age >= sent_at:
            return
        await trio.sleep(POLL_SECONDS)

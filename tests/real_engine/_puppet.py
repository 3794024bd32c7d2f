"""A ``FakeEngine`` that says what a simulated core would: so it is held to what engines do."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from vllmfront.engine import EngineOutput
from vllmfront.engine.wire import (
    EngineAddresses,
    StartWave,
    Utility,
    decode_registration,
    encode_row,
    plain_row,
)
from vllmfront.simulator import Answer, Raw, SimulatorConfig, StepOutput
from vllmfront.simulator._core import SimulatedCore
from vllmfront.simulator._frames import FrameWriter, scheduler_stats
from vllmfront.simulator._messages import Death, Message, Vanishing
from vllmfront.testing import FakeEngine


class _Puppet:
    """Passes what the fake hears to the core, and what the core says to the fake."""

    def __init__(self, engine: FakeEngine, config: SimulatorConfig) -> None:
        self._engine = engine
        self._core = SimulatedCore(config)
        self._calls: dict[int, Utility] = {}
        self._kick = trio.Event()

    async def hear(self) -> None:
        while True:
            message = await self._engine.receive()
            if isinstance(message, StartWave):
                continue
            if isinstance(message, Utility):
                self._calls[message.call_id] = message
            self._core.receive(message, trio.current_time())
            self._kick.set()

    async def step(self) -> None:
        while True:
            self._kick = trio.Event()
            now = trio.current_time()
            for message in self._core.advance(now):
                self._say(message)
            wake = self._core.wake_at(now)
            with trio.move_on_at(float("inf") if wake is None else wake):
                await self._kick.wait()

    def _say(self, message: Message) -> None:
        engine = self._engine
        match message:
            case StepOutput():
                engine.time = message.timestamp
                engine.send_rows(
                    [_row(request_id, row) for request_id, row in message.rows],
                    scheduler_stats=(
                        None if message.stats is None else scheduler_stats(message.stats)
                    ),
                    finished_requests=message.finished,
                    weight_version=message.weight_version,
                )
            case Answer():
                call = self._calls.pop(message.call_id)
                engine.answer(call, message.result, message.failure)
            case Death():
                engine.report_death()
            case Vanishing():
                engine.close()
            case Raw():
                engine.send_frames([message.frame])


def _row(request_id: str, row: list[int] | EngineOutput) -> list[object]:
    return plain_row(request_id, row) if isinstance(row, list) else encode_row(request_id, row)


@asynccontextmanager
async def open_puppet(config: SimulatorConfig) -> AsyncGenerator[None]:
    """Have a fake engine join the frontend of *config*, and play for the block."""
    nowhere = EngineAddresses(inputs=(), outputs=())
    registration = decode_registration(FrameWriter(config, 0).registration(nowhere, "puppet"))
    with FakeEngine(config.handshake, registration=registration) as engine:
        puppet = _Puppet(engine, config)

        async def play() -> None:
            await engine.join()
            async with trio.open_nursery() as playing:
                playing.start_soon(puppet.hear)
                playing.start_soon(puppet.step)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(play)
            yield
            nursery.cancel_scope.cancel(reason="test over")

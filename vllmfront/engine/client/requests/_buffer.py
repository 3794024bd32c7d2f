"""The sink of a stream that is iterated instead of pushed."""

from collections import deque

import trio

from vllmfront.engine._output import EngineOutput
from vllmfront.errors import VllmFrontError


class OutputBuffer:
    """Keeps outputs of all children of one stream until they are read.

    Unbounded by itself: a request's ``max_tokens`` bounds what can collect.
    """

    def __init__(self) -> None:
        self._outputs: deque[tuple[int, EngineOutput]] = deque()
        self._arrived = trio.Event()

    def sink(self, index: int) -> "BufferSink":
        """Return the sink of the child *index*."""
        return BufferSink(self, index)

    def put(self, index: int, output: EngineOutput) -> None:
        self._outputs.append((index, output))
        self._arrived.set()

    def get_nowait(self) -> tuple[int, EngineOutput] | None:
        """Return the oldest output, or None."""
        return self._outputs.popleft() if self._outputs else None

    def wake(self) -> None:
        """Let a waiting reader look at the stream again."""
        self._arrived.set()

    async def wait(self) -> None:
        """Return once something was put, or the stream has ended."""
        if self._arrived.is_set():
            self._arrived = trio.Event()
        await self._arrived.wait()


class BufferSink:
    """One child's way into an ``OutputBuffer``."""

    def __init__(self, buffer: OutputBuffer, index: int) -> None:
        self._buffer = buffer
        self._index = index

    def on_tokens(self, token_ids: list[int]) -> bool:
        self._buffer.put(self._index, EngineOutput(new_token_ids=token_ids))
        return False

    def on_output(self, output: EngineOutput) -> bool:
        self._buffer.put(self._index, output)
        return False

    def on_error(self, _error: VllmFrontError) -> None:
        self._buffer.wake()

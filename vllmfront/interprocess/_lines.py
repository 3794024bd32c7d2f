"""The lines to all processes of a server that are up, as the first one holds them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import trio

from vllmfront.interprocess._frames import CallFailed, LineBroken
from vllmfront.interprocess._line import DEFAULT_SECONDS, Line

R = TypeVar("R")


class Lines:
    """Who is up; by the number of the process."""

    def __init__(self) -> None:
        self._up: dict[int, Line] = {}

    def __repr__(self) -> str:
        return f"<Lines to {', '.join(map(str, self._up)) or 'nobody'}>"

    @property
    def up(self) -> Mapping[int, Line]:
        """The lines, by number."""
        return self._up

    @contextmanager
    def including(self, number: int, line: Line) -> Iterator[None]:
        """Count *line* among those that are up for the block."""
        self._up[number] = line
        try:
            yield
        finally:
            del self._up[number]

    def tell_all(self, message: msgspec.Struct) -> None:
        """Say something to each of them."""
        for line in self._up.values():
            line.tell(message)

    async def call_all(
        self, request: msgspec.Struct, answer: type[R], *, seconds: float | None = DEFAULT_SECONDS
    ) -> dict[int, R | CallFailed | LineBroken]:
        """Ask all of them at once; return what each said, or why it did not.

        Args:
            request: What for.
            answer: The type of an answer.
            seconds: How long each may take.
        """
        found: dict[int, R | CallFailed | LineBroken] = {}

        async def ask(number: int, line: Line) -> None:
            try:
                found[number] = await line.call(request, answer, seconds=seconds)
            except (CallFailed, LineBroken) as error:
                found[number] = error

        async with trio.open_nursery() as nursery:
            for number, line in list(self._up.items()):
                nursery.start_soon(ask, number, line)
        return found

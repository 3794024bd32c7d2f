"""A value that observers wait for, not a change that they could miss."""

from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Level(Generic[T]):
    """A value with waiters, each of which is woken by the first value that it wants."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._waiters: list[_Waiter[T]] = []

    def __repr__(self) -> str:
        return f"<Level {self._value!r}>"

    @property
    def value(self) -> T:
        return self._value

    def set(self, value: T) -> None:
        """Set the value; whoever waits for it gets it, even if it is gone when they run."""
        self._value = value
        for waiter in self._waiters:
            waiter.offer(value)

    async def wait(self, *wanted: T) -> T:
        """Return the value as soon as it is one of *wanted*, which may be at once."""
        if self._value in wanted:
            await trio.lowlevel.checkpoint()
            return self._value
        waiter = _Waiter(wanted)
        self._waiters.append(waiter)
        try:
            return await waiter.wait()
        finally:
            self._waiters.remove(waiter)


class _Waiter(Generic[T]):
    def __init__(self, wanted: tuple[T, ...]) -> None:
        self._wanted = wanted
        self._got: list[T] = []
        self._event = trio.Event()

    def offer(self, value: T) -> None:
        if not self._got and value in self._wanted:
            self._got.append(value)
            self._event.set()

    async def wait(self) -> T:
        await self._event.wait()
        return self._got[0]

"""Whose the managed engine's process is: a new process of ours may supervise it after us."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from vllmfront.errors import ConfigurationError
from vllmfront.supervisor import (
    ManagedProcess,
    ProcessHandle,
    ProcessSpec,
    adopt_process,
    open_process,
)


class EngineCustody:
    """The managed engine's present process, for those that start it and those that pass it on.

    One that came down to us is not ours before ``take_back``: should this process fail before it
    serves, the one before must find its engine alive.
    """

    def __init__(self, inherited: ProcessHandle | None = None) -> None:
        self.process: ManagedProcess | None = None
        """None where it has ended, or was never started."""

        self._inherited = inherited
        self._leftovers: Sequence[str] = ()
        """Files of ours that its reaper removes should we be killed."""

        self._ours = trio.Event()
        if inherited is None:
            self._ours.set()

    def __repr__(self) -> str:
        return f"<EngineCustody {self.process!r}>"

    @asynccontextmanager
    async def open(self, spec: ProcessSpec) -> AsyncGenerator[ManagedProcess]:
        """Run the process that *spec* tells, or the one that came down to us, for the block.

        Raises:
            StartupFailed: The program cannot be run.
        """
        inherited, self._inherited = self._inherited, None
        opened = (
            open_process(spec)
            if inherited is None
            else adopt_process(inherited, stop_budget=spec.stop_budget)
        )
        async with opened as process:
            self.process, self._leftovers = process, spec.leftovers
            if inherited is not None:
                if self.ours:
                    process.set_leftovers(spec.leftovers)
                else:
                    process.hand_over()
            try:
                yield process
            finally:
                self.process = None

    def hand_over(self) -> None:
        """Leave the process to another generation, which has its descriptors."""
        self._ours = trio.Event()
        if self.process is not None:
            self.process.hand_over()

    def take_back(self) -> None:
        """Supervise the process from now on; does nothing where it is ours."""
        if self.ours:
            return
        if self.process is not None:
            self.process.take_back()
            self.process.set_leftovers(self._leftovers)
        self._ours.set()

    @property
    def inherits(self) -> bool:
        """Whether a process that runs already is the next that is opened."""
        return self._inherited is not None

    @property
    def ours(self) -> bool:
        """Whether what becomes of the process is our business."""
        return self._ours.is_set()

    async def wait_ours(self) -> None:
        """Return once what becomes of the process is our business."""
        await self._ours.wait()


class Custodies:
    """Those of all processes that run engines, by name."""

    def __init__(
        self, names: Sequence[str] = (), inherited: Mapping[str, ProcessHandle] | None = None
    ) -> None:
        """Take care of processes of these *names*.

        Args:
            names: None where others run the engines.
            inherited: Those that another generation runs; None where there was none.

        Raises:
            ConfigurationError: They are others.
        """
        if inherited is not None and sorted(inherited) != sorted(names):
            raise ConfigurationError(
                f"the running process has engines in {', '.join(sorted(inherited)) or 'nothing'}, "
                f"this one is to run {', '.join(sorted(names)) or 'nothing'}: restart"
            )
        self._custodies = {name: EngineCustody((inherited or {}).get(name)) for name in names}

    def __getitem__(self, name: str) -> EngineCustody:
        return self._custodies[name]

    @property
    def processes(self) -> Mapping[str, ManagedProcess]:
        """Those that run."""
        found = {name: custody.process for name, custody in self._custodies.items()}
        return {name: process for name, process in found.items() if process is not None}

    def missing(self) -> Sequence[str]:
        """Return the names of those that do not run."""
        running = self.processes
        return [name for name in self._custodies if name not in running]

    def hand_over(self) -> None:
        """Leave all to another generation."""
        for custody in self._custodies.values():
            custody.hand_over()

    def take_back(self) -> None:
        """Supervise all from now on."""
        for custody in self._custodies.values():
            custody.take_back()

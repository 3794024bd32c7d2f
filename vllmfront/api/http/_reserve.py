"""Descriptors kept back for connections that must be accepted although there are none left."""

import contextlib
import os
from typing import Self


class DescriptorReserve:
    """So many descriptors that can be given away one by one; a context manager closes the rest.

    A process that has run out of descriptors accepts nobody, whatever listener they come by. Who
    holds a reserve gives one back to the kernel, and takes the connection for it.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[int] = []
        self.refill()

    def __repr__(self) -> str:
        return f"<DescriptorReserve {len(self._held)} of {self._size}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._size = 0
        while self.give():
            pass

    def give(self) -> bool:
        """Let the process have one more descriptor; False: none is left."""
        if not self._held:
            return False
        os.close(self._held.pop())
        return True

    def refill(self) -> None:
        """Take back what was given away, as far as there is any."""
        with contextlib.suppress(OSError):
            while len(self._held) < self._size:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

"""LoRA adapters of a simulated engine: the few that fit, and what each changes."""

import zlib
from collections.abc import Collection

import attrs

from vllmfront.engine import LoraRequest


@attrs.define
class _Loaded:
    path: str
    pinned: bool = False


@attrs.define(eq=False)
class LoraCache:
    """What is loaded, by id; where all places are taken, the one used least recently goes."""

    capacity: int
    missing: Collection[str] = ()
    """Paths where there is no adapter."""

    _loaded: dict[int, _Loaded] = attrs.field(factory=dict, init=False)

    @property
    def ids(self) -> list[int]:
        """Those that are loaded, the one used least recently first."""
        return list(self._loaded)

    def load(self, lora: LoraRequest) -> None:
        """Make *lora* the one used last, and load it where its id is not, or in place.

        Raises:
            RuntimeError: There is no support for adapters, or no room.
            ValueError: There is none at its path.
        """
        self.require()
        present = self._loaded.get(lora.int_id)
        if present is None or lora.load_inplace:
            if not self.loadable(lora.path):
                raise ValueError(
                    f"Loading lora {lora.name} failed: No adapter found for {lora.path}"
                )
            pinned = present is not None and present.pinned
            self._loaded.pop(lora.int_id, None)
            self._make_room()
            present = _Loaded(lora.path, pinned)
        else:
            del self._loaded[lora.int_id]
        self._loaded[lora.int_id] = present

    def loadable(self, path: str) -> bool:
        """Tell whether there is an adapter at *path*."""
        return bool(path) and path not in self.missing

    def weights(self, lora: LoraRequest) -> int:
        """Return what tells the weights under the id of *lora*, which is loaded, from others."""
        return zlib.crc32(self._loaded[lora.int_id].path.encode())

    def remove(self, number: int) -> bool:
        """Forget an adapter; False: it was not there."""
        self.require()
        return self._loaded.pop(number, None) is not None

    def pin(self, number: int) -> None:
        """Keep an adapter whatever comes.

        Raises:
            ValueError: It is not loaded.
        """
        self.require()
        if number not in self._loaded:
            raise ValueError(f"Pinning failed. LoRA {number} is not registered.")
        self._loaded[number].pinned = True

    def require(self) -> None:
        """Refuse to have to do with adapters at all.

        Raises:
            RuntimeError: The engine was started without support for them.
        """
        if self.capacity == 0:
            raise RuntimeError("LoRA is not enabled")

    def _make_room(self) -> None:
        if len(self._loaded) < self.capacity:
            return
        evicted = next((key for key, one in self._loaded.items() if not one.pinned), None)
        if evicted is None:
            raise RuntimeError("All adapters are pinned")
        del self._loaded[evicted]

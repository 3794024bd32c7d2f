"""The part of an engine's worker that takes new weights from a trainer.

As a real one it keeps one update at a time, begun and finished; what comes at another time is an
error, and an update that fails is forgotten. Its weights are a number that the token source draws
with, made of all that was loaded. From the start of an update to its finish the model is worth
nothing, since layers are emptied to be loaded anew; those that nothing comes for are put back.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import attrs

from vllmfront.simulator._tokens import TokenSource

_EMPTIED = 0x6A09E667F3BCC908
"""What emptied layers draw with: nothing that anybody has asked for."""

_ZERO = 0xBB67AE8584CAA73B
"""The same, of weights that were all set to zero."""


@attrs.define(eq=False)
class WeightWorker:
    """One worker; it loads into *source*."""

    source: TokenSource
    place: int = 0
    """Of this worker among all workers of all ranks."""

    enabled: bool = True
    draft_model: bool = False
    connected: bool = False
    """Whether a trainer is connected; no backend minds if it is not."""

    draft_weights: int = 0
    _active: bool = False
    _draft: bool = False
    _emptied: bool = False
    _before: int = 0
    _loaded: bytes = b""

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        self._require_backend()
        if not isinstance(init_info, Mapping):
            raise TypeError("init_info is no mapping")
        self.connected = True

    def shutdown_weight_transfer_engine(self) -> None:
        if self._active:
            raise RuntimeError("the trainer cannot be disconnected during a weight update")
        self.connected = False

    def start_weight_update(self) -> None:
        self._start(draft=False)

    def start_draft_weight_update(self) -> None:
        self._require_backend()
        if not self.draft_model:
            raise RuntimeError("a draft model is to be updated, and there is none")
        self._start(draft=True)

    def update_weights(self, update_info: Any) -> None:
        self._require_backend()
        self._require_update("update_weights")
        try:
            if isinstance(update_info, list):
                update_info = update_info[self.place]
            if not update_info:
                raise ValueError("the update holds no weights")  # noqa: TRY301 - as any fault here
            content = json.dumps(update_info, sort_keys=True).encode()
        except Exception:
            self._active = False
            raise
        self._loaded = hashlib.sha256(self._loaded + content).digest()

    def finish_weight_update(self) -> None:
        self._require_backend()
        self._require_update("finish_weight_update")
        self._active = False
        new = int.from_bytes(self._loaded[:8]) if self._loaded else None
        if self._draft:
            self.draft_weights = self.draft_weights if new is None else new
            return
        self._emptied = False
        self.source.weights = self._before if new is None else new

    def reset_weights(self) -> None:
        """Set all weights to zero."""
        self.source.weights = _ZERO

    def checksums(self) -> dict[str, str]:
        """Describe the weights: the token source, and the number that it draws with."""
        source = self.source
        content = f"{source.seed} {source.vocab_size}"
        if source.weights:
            content += f" {source.weights}"
        sums = {"token_source": content}
        if self.draft_model:
            sums["draft"] = str(self.draft_weights)
        return {key: hashlib.sha256(value.encode()).hexdigest() for key, value in sums.items()}

    def _start(self, *, draft: bool) -> None:
        self._require_backend()
        if self._active:
            raise RuntimeError("start_weight_update: an update is under way, finish it first")
        self._active, self._draft, self._loaded = True, draft, b""
        if draft or self._emptied:
            return
        self._emptied, self._before = True, self.source.weights
        self.source.weights = _EMPTIED

    def _require_backend(self) -> None:
        if not self.enabled:
            raise RuntimeError("there is no backend for weights: set weight_transfer_config")

    def _require_update(self, method: str) -> None:
        if not self._active:
            raise RuntimeError(f"{method}: there is no update; start_weight_update begins one")


WEIGHT_METHODS = frozenset(
    {
        "init_weight_transfer_engine",
        "shutdown_weight_transfer_engine",
        "start_weight_update",
        "start_draft_weight_update",
        "update_weights",
        "finish_weight_update",
        "reset_weights",
    }
)
"""What a ``collective_rpc`` may call of it."""

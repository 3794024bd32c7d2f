"""Keeps the file for the next frontend true to how the engines stand."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllmfront.engine.client.entrance._entrance import Entrance
from vllmfront.engine.client.entrance._saved import SavedEngine, SavedState
from vllmfront.engine.client.entrance._state_file import StateFile
from vllmfront.engine.client.membership import Membership
from vllmfront.engine.transport import host_of
from vllmfront.errors import ConfigurationError

_LOGGER = logging.getLogger(__name__)


class Recorder:
    """Writes the file at each change, while its client is the one that answers engines."""

    def __init__(
        self,
        file: StateFile,
        entrance: Entrance,
        *,
        first_id: int,
        membership: Membership,
        awaited: Callable[[], Mapping[int, SavedEngine]],
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        """Stand by.

        Args:
            file: Where to; written to between ``start`` and ``stop``.
            entrance: Where engines connect.
            first_id: Where its count of request ids began.
            membership: The engines.
            awaited: Tells of engines from an earlier file that have not been taken up yet.
            kept: What whoever gave orders has left in an earlier file.
        """
        self.kept = kept
        self._control: Callable[[], Mapping[str, Any] | None] = lambda: kept
        self._file = file
        self._entrance = entrance
        self._first_id = first_id
        self._membership = membership
        self._awaited = awaited
        self._on = False
        self._written: SavedState | None = None
        membership.on_change(self.note)

    def __repr__(self) -> str:
        return f"<Recorder {self._file!r}>"

    def start(self) -> None:
        """Write from now on."""
        try:
            self._file.acquire()
        except ConfigurationError as error:
            _LOGGER.error("Engines are not kept for the next start: %s", error)  # noqa: TRY400 - no bug of ours
            return
        self._on, self._written = True, None
        self.note()

    def stop(self) -> None:
        """Leave the file to another process."""
        self._on = False
        self._file.release()

    def keep(self, control: Callable[[], Mapping[str, Any]]) -> None:
        """Write what *control* returns as well, from now on, in place of ``kept``.

        It is plain data; ``note`` is to be called when it has changed.
        """
        self._control = control
        self.note()

    def note(self) -> None:
        """Write if anything has changed."""
        if not self._on:
            return
        state = self._state()
        if state != self._written:
            self._file.write(state)
            self._written = state

    def _state(self) -> SavedState:
        engines = dict(self._awaited())
        for rank, engine in self._membership.ranks.items():
            connected = engine.state.connected
            if engine.registration is not None and (connected or engine.cut_off):
                engines[rank] = SavedEngine(registration=engine.registration, connected=connected)
        return SavedState(
            handshake_address=self._entrance.handshake_address,
            ports=[
                (host_of(slot.inputs.address)[1], host_of(slot.outputs.address)[1])
                for slot in self._entrance.slots
            ],
            coordinator_ports=self._coordinator_ports(),
            first_id=self._first_id,
            engines=engines,
            control=self._control(),
        )

    def _coordinator_ports(self) -> Sequence[int]:
        coordinator = self._entrance.coordinator
        return [] if coordinator is None else [host_of(each.address)[1] for each in coordinator.all]

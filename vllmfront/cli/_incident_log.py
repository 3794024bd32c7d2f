"""Tells of the faults that happen to simulated engines."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import attrs

from vllmfront.errors import ConfigurationError
from vllmfront.testing import FaultKind, Incident, journal_line

_LOGGER = logging.getLogger(__name__)


@attrs.define
class IncidentLog:
    """Tells a person of each fault that happens, and the journal of each incident."""

    journal: TextIO | None
    crashed: bool = False
    """Whether an engine has ended by a fault."""

    def __call__(self, incident: Incident) -> None:
        fault = incident.fault
        if fault is not None:
            self.crashed = self.crashed or fault.kind in (FaultKind.CRASH, FaultKind.DIE)
            ids = ", ".join(incident.request_ids)
            concerned = f" (requests {ids})" if ids else ""
            _LOGGER.warning(
                "rank %d, life %d: injecting %s%s",
                incident.rank,
                incident.life,
                fault.describe(),
                concerned,
            )
        if self.journal is not None:
            self.journal.write(journal_line(incident, time.time()) + "\n")
            self.journal.flush()


@contextmanager
def open_incident_log(journal: Path | None) -> Iterator[IncidentLog]:
    """Hold the journal, if one is kept, for the block.

    Raises:
        ConfigurationError: The journal cannot be written.
    """
    if journal is None:
        yield IncidentLog(None)
        return
    try:
        file = journal.open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write the journal {journal}: {error.strerror}") from error
    with file:
        yield IncidentLog(file)

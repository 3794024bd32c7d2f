"""Versions of vLLM that this frontend was tried with."""

import logging

from vllmfront.engine._release import release_of

_LOGGER = logging.getLogger(__name__)

_SERVED = {(0, 32), (0, 33)}


class VersionWarning:
    """Warns of any other, once; such engines are served as the newest."""

    def __init__(self) -> None:
        self._warned = set[str]()

    def __call__(self, rank: int, version: str | None) -> None:
        """Take note that engine *rank* runs *version*; None: it did not say."""
        if version is None or release_of(version) in _SERVED or version in self._warned:
            return
        self._warned.add(version)
        _LOGGER.warning(
            "Engine %d runs vLLM %s, which this frontend was never tried with; serving it",
            rank,
            version,
        )

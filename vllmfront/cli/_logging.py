"""Log lines as the other processes of the family write them."""

import logging
import os
import sys
from collections.abc import Mapping

_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 1,
}

_COLOURS = {
    logging.DEBUG: "\033[34m",
    logging.INFO: "\033[32m",
    logging.WARNING: "\033[33m",
    logging.ERROR: "\033[31m",
    logging.CRITICAL: "\033[31m",
}
_PREFIX_COLOUR = "\033[0;36m"
_DIM = "\033[90m"
_RESET = "\033[0m"


class LineFormatter(logging.Formatter):
    """``(VllmFront pid=7) INFO 12-01 03:49:03 [file.py:12] message``."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__(datefmt="%m-%d %H:%M:%S")
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        prefix = self._paint(_PREFIX_COLOUR, f"(VllmFront pid={os.getpid()})")
        level = self._paint(_COLOURS.get(record.levelno, ""), record.levelname)
        time = self._paint(_DIM, self.formatTime(record, self.datefmt))
        place = self._paint(_DIM, f"[{record.filename}:{record.lineno}]")
        text = f"{prefix} {level} {time} {place} {record.getMessage()}"
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        return text

    def _paint(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._colour else text


def set_up_logging(environment: Mapping[str, str]) -> None:
    """Log to stderr at the level that ``VLLM_LOGGING_LEVEL`` names, in colours on a terminal."""
    name = environment.get("VLLM_LOGGING_LEVEL") or "INFO"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        LineFormatter(colour=sys.stderr.isatty() and not environment.get("NO_COLOR"))
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries speak when something is wrong; their chatter is not ours.
    root.setLevel(logging.WARNING)
    logger = logging.getLogger("vllmfront")
    logger.setLevel(_LEVELS.get(name.upper(), logging.INFO))
    if name.upper() not in _LEVELS:
        logger.warning("VLLM_LOGGING_LEVEL is %r, which is no level; logging at INFO", name)

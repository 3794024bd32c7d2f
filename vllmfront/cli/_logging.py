"""Log lines as the other processes of the family write them."""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import attrs

from vllmfront.errors import ConfigurationError

_LOGGER = logging.getLogger(__name__)

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


@attrs.frozen
class LogLevel:
    """Where the level of our log comes from.

    A running process's environment cannot be changed, a file can: where one is named it decides,
    at the start and whenever it is read anew; empty or missing, it leaves the decision to
    ``VLLM_LOGGING_LEVEL``.
    """

    environment: Mapping[str, str]
    file: str | None = None

    def set_up(self) -> None:
        """Apply the level at the start: what is no level is complained of and counts as INFO."""
        source, name = "VLLM_LOGGING_LEVEL", self._from_environment()
        try:
            from_file = self._from_file()
        except ConfigurationError as error:
            _LOGGER.warning("%s; the file of --log-level-file is read again at SIGHUP", error)
        else:
            if from_file:
                source, name = self._source, from_file
        if not _apply(name):
            _apply("INFO")
            _LOGGER.warning("%s is %r, which is no level; logging at INFO", source, name)

    def reload(self) -> str:
        """Read the file anew; return what the level is now, for the log.

        Raises:
            ConfigurationError: The file cannot be read, or holds something else; nothing changes.
        """
        if self.file is None:
            return "the log level stays, no --log-level-file is given"
        name = self._from_file() or self._from_environment()
        if not _apply(name):
            levels = ", ".join(_LEVELS)
            raise ConfigurationError(f"{name!r} is no level; {self._source} may hold {levels}")
        return f"the log level is {name.upper()}"

    @property
    def _source(self) -> str:
        return f"the file {self.file} (--log-level-file)"

    def _from_environment(self) -> str:
        return self.environment.get("VLLM_LOGGING_LEVEL") or "INFO"

    def _from_file(self) -> str:
        if self.file is None:
            return ""
        try:
            return Path(self.file).read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise ConfigurationError(f"cannot read {self.file}: {error.strerror}") from error


def _apply(name: str) -> bool:
    """Log at the level of that name; False: there is none."""
    level = _LEVELS.get(name.upper())
    if level is not None:
        logging.getLogger("vllmfront").setLevel(level)
    return level is not None


def set_up_logging(environment: Mapping[str, str], level: LogLevel) -> None:
    """Log to stderr at *level*, in colours on a terminal."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        LineFormatter(colour=sys.stderr.isatty() and not environment.get("NO_COLOR"))
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries speak when something is wrong; their chatter is not ours.
    root.setLevel(logging.WARNING)
    level.set_up()

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllmfront.cli._logging import LineFormatter, LogLevel, set_up_logging
from vllmfront.errors import ConfigurationError


def record(level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord("vllmfront.x", level, "/somewhere/file.py", 12, message, (), None)


def test_a_log_line_has_the_familys_form() -> None:
    line = LineFormatter(colour=False).format(record(logging.INFO, "hello"))

    assert line.startswith("(VllmFront pid=")
    assert " INFO " in line
    assert line.endswith(" [file.py:12] hello")
    assert "\033" not in line
    assert "\033[31mERROR\033[0m" in LineFormatter(colour=True).format(record(40, "hello"))


@pytest.fixture
def ours() -> Iterator[logging.Logger]:
    """Our logger, whose level and output the test may change."""
    root, logger = logging.getLogger(), logging.getLogger("vllmfront")
    handlers, root_level = root.handlers[:], root.level
    yield logger
    root.handlers[:], root.level = handlers, root_level
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("name", "level"),
    [("DEBUG", 10), ("warning", 30), ("", 20), ("nonsense", 20)],
)
def test_the_level_comes_from_the_environment(ours: logging.Logger, name: str, level: int) -> None:
    environment = {"VLLM_LOGGING_LEVEL": name}
    set_up_logging(environment, LogLevel(environment))

    assert ours.level == level


@pytest.mark.parametrize(
    ("text", "level"), [("debug\n", 10), ("", 40), (None, 40), ("nonsense", 20)]
)
def test_a_file_decides_when_it_says_something(
    ours: logging.Logger, tmp_path: Path, text: str | None, level: int
) -> None:
    file = tmp_path / "level"
    if text is not None:
        file.write_text(text)
    LogLevel({"VLLM_LOGGING_LEVEL": "ERROR"}, str(file)).set_up()

    assert ours.level == level


def test_a_file_that_changes_is_read_anew(ours: logging.Logger, tmp_path: Path) -> None:
    file = tmp_path / "level"
    level = LogLevel({}, str(file))
    level.set_up()
    said = []
    for text in ("DEBUG", "error\n", ""):
        file.write_text(text)
        said.append((level.reload(), ours.level))

    assert said == [
        ("the log level is DEBUG", logging.DEBUG),
        ("the log level is ERROR", logging.ERROR),
        ("the log level is INFO", logging.INFO),
    ]


def test_a_file_that_makes_no_sense_changes_nothing(ours: logging.Logger, tmp_path: Path) -> None:
    file = tmp_path / "level"
    file.write_text("DEBUG")
    level = LogLevel({}, str(file))
    level.set_up()
    file.write_text("LOUD")
    with pytest.raises(ConfigurationError, match=rf"'LOUD' is no level; the file {file} .*INFO"):
        level.reload()
    with pytest.raises(ConfigurationError, match=rf"cannot read {tmp_path}: Is a directory"):
        LogLevel({}, str(tmp_path)).reload()

    assert ours.level == logging.DEBUG


def test_a_file_that_cannot_be_read_at_the_start_leaves_the_environments_level(
    ours: logging.Logger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    LogLevel({"VLLM_LOGGING_LEVEL": "WARNING"}, str(tmp_path)).set_up()

    assert ours.level == logging.WARNING
    assert f"cannot read {tmp_path}: Is a directory" in caplog.text


def test_without_a_file_the_level_stays(ours: logging.Logger) -> None:
    ours.setLevel(logging.ERROR)
    said = LogLevel({"VLLM_LOGGING_LEVEL": "DEBUG"}).reload()

    assert said == "the log level stays, no --log-level-file is given"
    assert ours.level == logging.ERROR

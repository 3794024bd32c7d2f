"""``vllmfront serve``: flags to a configuration, and the configuration to its lifecycle."""

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vllmfront.cli import _serve_flags as table
from vllmfront.cli._errors import UsageError
from vllmfront.cli._logging import LogLevel, set_up_logging
from vllmfront.cli._parse import USAGE, Given, build_parser, parse
from vllmfront.cli._partition import Partition, partition
from vllmfront.lifecycles import (
    ChatConfig,
    ControlFlags,
    CorsConfig,
    DecodingConfig,
    EngineConfig,
    ListenConfig,
    ModelConfig,
    RequestsConfig,
    RestartConfig,
    ServeConfig,
    ServerConfig,
    TlsConfig,
    run_headless,
    run_serve,
)

_LOGGER = logging.getLogger(__name__)


def run(words: Sequence[str]) -> int:
    """Serve until told to stop; return the exit status.

    Raises:
        UsageError: The command line makes no sense.
        VllmFrontError: Something else went wrong.
    """
    if words and words[0] in {"-h", "--help"}:
        build_parser().print_help()
        return 0
    model, split = split_words(words)
    given = parse(split.own, os.environ)
    if given.debug:
        _print_split(words, model, split)
        return 0
    log_level = LogLevel(os.environ, given.values.get("--log-level-file"))
    set_up_logging(os.environ, log_level)
    for name in given.ineffective:
        _LOGGER.warning("argument '%s' has no effect in this frontend, ignoring", name)
    config = build_config(model, given, split.engine)
    config.check()
    run_it = run_headless if config.headless else run_serve
    return run_it(config, log_level.reload)


def split_words(words: Sequence[str]) -> tuple[str, Partition]:
    """Take the model off and split the rest into our words and the engine's."""
    if not words:
        raise UsageError("the following required arguments were not provided:\n  <MODEL>", USAGE)
    if words[0].startswith("-"):
        raise UsageError("the model must appear immediately after the command", USAGE)
    return words[0], partition(words[1:], table.option_names())


def build_config(model: str, given: Given, engine_words: Sequence[str]) -> ServeConfig:
    """Make the configuration from what was given and the defaults."""
    sections: dict[str, dict[str, Any]] = {}
    for name, flag in table.flags().items():
        if flag.target is not None and name in given.values:
            section, _, field = flag.target.rpartition(".")
            sections.setdefault(section, {})[field] = flag.convert(given.values[name])
    return ServeConfig(
        model=ModelConfig(model=model, **sections.get("model", {})),
        listen=ListenConfig(**sections.get("listen", {})),
        engine=EngineConfig(
            arguments=tuple(engine_words),
            shared_arguments=tuple(shared_words(given)),
            restart=RestartConfig(**sections.get("engine.restart", {})),
            **sections.get("engine", {}),
        ),
        chat=ChatConfig(**sections.get("chat", {})),
        decoding=DecodingConfig(**sections.get("decoding", {})),
        requests=RequestsConfig(**sections.get("requests", {})),
        control=ControlFlags(**sections.get("control", {})),
        server=ServerConfig(
            cors=CorsConfig(**sections.get("server.cors", {})),
            tls=TlsConfig(**sections.get("server.tls", {})),
            **sections.get("server", {}),
        ),
        **sections.get("", {}),
    )


def shared_words(given: Given) -> list[str]:
    """Spell the given options that the managed engine needs as well."""
    words: list[str] = []
    for name in table.SHARED:
        if name not in given.words:
            continue
        value, word = given.values[name], given.words[name]
        if isinstance(value, Mapping):
            # What is empty says nothing.
            words += [name, json.dumps(value, separators=(",", ":"))] if value else []
        elif word is None:
            words.append(name)
        elif name != "--shutdown-timeout" or value:
            words += [name, word]
    return words


def _print_split(words: Sequence[str], model: str, split: Partition) -> None:
    program = [sys.argv[0], "serve"]
    separated = ["--", *split.engine] if split.engine else []
    print("Original CLI args:", *program, *words, end="\n\n")
    print("Repartitioned CLI args:", *program, model, *split.own, *separated, end="\n\n")
    print("Passthrough Python args:", *split.engine)

"""``vllmfront frontend``: what vLLM's supervisor starts in place of its own frontend."""

import argparse
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from vllmfront.cli._args_json import ArgsJson, read_args_json
from vllmfront.cli._logging import LogLevel, set_up_logging
from vllmfront.cli._values import integer
from vllmfront.lifecycles import (
    ChatConfig,
    ControlFlags,
    CorsConfig,
    DecodingConfig,
    EngineConfig,
    ModelConfig,
    RequestsConfig,
    ServeConfig,
    ServerConfig,
    TlsConfig,
)
from vllmfront.lifecycles.worker import Bootstrap, WorkerConfig, run_worker

_LOGGER = logging.getLogger(__name__)

DESCRIPTION = """\
Be the frontend of engines that vLLM starts and supervises. It is not started by hand:

  VLLM_USE_RUST_FRONTEND=1 VLLM_RUST_FRONTEND_PATH=$(which vllmfront) vllm serve MODEL ...

The path must be that of the program itself, or of a script that replaces itself by it (exec).
Status 0: told to stop. Status 1: failed, or the engines or the supervisor are gone. Status 2:
something was asked for that is not served, or not understood.
"""

_DESCRIPTOR = integer(0, 2**31 - 1)
_COUNT = integer(0, 2**31 - 1)


def run(words: Sequence[str]) -> int:
    """Serve until told to stop; return the exit status.

    Raises:
        UsageError: The supervisor's options make no sense here.
        VllmFrontError: Something else went wrong.
    """
    options = build_parser().parse_args(words)
    log_level = LogLevel(os.environ)
    set_up_logging(os.environ, log_level)
    args = read_args_json(options.args_json)
    _tell(args)
    config = build_config(options, args, os.environ)
    config.check()
    return run_worker(config, log_level.reload)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of what the supervisor says."""
    parser = argparse.ArgumentParser(
        prog="vllmfront frontend",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def add(name: str, explanation: str, **kwargs: Any) -> None:
        parser.add_argument(name, help=explanation, **kwargs)

    descriptor: dict[str, Any] = {"type": _DESCRIPTOR, "metavar": "FD"}
    count: dict[str, Any] = {"type": _COUNT, "metavar": "N"}
    add("--listen-fd", "bound socket for clients", required=True, **descriptor)
    add("--grpc-listen-fd", "not served yet", **descriptor)
    add("--input-listener-fd", "listening socket for requests", required=True, **descriptor)
    add("--output-listener-fd", "listening socket for outputs", required=True, **descriptor)
    add("--engine-start-index", "lowest rank of our engines (default: 0)", default=0, **count)
    add("--engine-count", "engines to wait for (default: 1)", default=1, **count)
    add("--data-parallel-size", "engines in all (default: ours)", **count)
    add("--coordinator-address", "where engine loads are published", metavar="ADDRESS")
    add("--args-json", "options of `vllm serve`", required=True, metavar="JSON")
    return parser


def build_config(
    options: argparse.Namespace, args: ArgsJson, environ: Mapping[str, str]
) -> WorkerConfig:
    """Make the configuration from what the supervisor says, *environ*, and the defaults."""
    size = options.data_parallel_size
    bootstrap = Bootstrap(
        listen_fd=options.listen_fd,
        grpc_fd=options.grpc_listen_fd,
        input_fd=options.input_listener_fd,
        output_fd=options.output_listener_fd,
        start_rank=options.engine_start_index,
        engine_count=options.engine_count,
        data_parallel_size=options.engine_count if size is None else size,
        coordinator_address=options.coordinator_address,
    )
    return WorkerConfig(
        bootstrap=bootstrap, settings=_settings(bootstrap, dict(args.sections), environ)
    )


def _settings(
    bootstrap: Bootstrap, sections: dict[str, Mapping[str, Any]], environ: Mapping[str, str]
) -> ServeConfig:
    server = dict(sections.get("server", {}))
    if "api_keys" not in server and (key := environ.get("VLLM_API_KEY")):
        # The supervisor leaves it in our environment.
        server["api_keys"] = (key,)
    return ServeConfig(
        model=ModelConfig(**sections["model"]),
        engine=EngineConfig(
            data_parallel_size=bootstrap.data_parallel_size,
            data_parallel_size_local=0,
            **sections.get("engine", {}),
        ),
        chat=ChatConfig(**sections.get("chat", {})),
        decoding=DecodingConfig(**sections.get("decoding", {})),
        requests=RequestsConfig(**sections.get("requests", {})),
        control=ControlFlags(**sections.get("control", {})),
        server=ServerConfig(
            cors=CorsConfig(**sections.get("server.cors", {})),
            tls=TlsConfig(**sections.get("server.tls", {})),
            **server,
        ),
    )


def _tell(args: ArgsJson) -> None:
    """Log what was handed down, without secrets."""
    _LOGGER.debug("options of vllm serve: %s", args.redacted)
    for name in args.no_effect:
        _LOGGER.warning("option '%s' has no effect in this frontend, ignoring", name)
    if args.unknown:
        _LOGGER.warning(
            "ignoring options of vllm serve that this version does not know: %s",
            ", ".join(args.unknown),
        )

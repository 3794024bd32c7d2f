"""The command line of the managed engine, and whether it can run at all."""

import subprocess
from collections.abc import Sequence

import trio

from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles._engine_config import EngineConfig
from vllmfront.lifecycles._units import EngineUnit

_PROBE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
"""Finds the package without importing it, which would take seconds."""

ENVIRONMENT = {"VLLM_USE_RUST_FRONTEND": "1", "VLLM_RUST_FRONTEND_PATH": "vllmfront"}
"""Tells the engine that a frontend other than Python's own prepares its requests.

A headless engine runs no frontend, but ends at once when it cannot find the one that vLLM ships,
unless another one is named.
"""


def engine_command(
    model: str, config: EngineConfig, unit: EngineUnit, handshake_port: int
) -> Sequence[str]:
    """Return the words that start the engines of *unit*, which say HELLO at *handshake_port*."""
    return (
        *(config.python, "-m", "vllm.entrypoints.cli.main", "serve", model, "--headless"),
        *("--data-parallel-address", config.host),
        *("--data-parallel-rpc-port", str(handshake_port)),
        *("--data-parallel-size", str(config.data_parallel_size)),
        *unit.arguments,
        *config.shared_arguments,
    )


async def check_interpreter(python: str) -> None:
    """Make sure that *python* runs and has vLLM.

    Raises:
        ConfigurationError: It does not; says how to get it.
    """
    try:
        result = await trio.run_process(
            [python, "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    except OSError as exc:
        raise ConfigurationError(
            f"cannot run the engine's interpreter {python}: {exc.strerror}; "
            "name another one with --python"
        ) from exc
    if result.returncode != 0:
        said = result.stderr.decode("utf-8", "replace").strip()
        raise ConfigurationError(
            f"{python} has no vLLM, which runs the model. Install it there "
            f"(`{python} -m pip install vllm`), name an interpreter that has it with --python, or "
            "serve engines that run elsewhere with --data-parallel-size-local 0."
            + (f"\n{said}" if said else "")
        )

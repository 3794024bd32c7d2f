r"""Play vLLM's supervisor for a frontend whose engines are started by somebody else.

    python -m benchmarks.supervise [--program 'vllmfront'] serve MODEL --port 8000 \
        --data-parallel-rpc-port 29550 --served-model-name NAME

What follows ``serve`` is what a frontend of its own would be given, so that this takes its place in
a comparison: the sockets are bound here, the frontend inherits them as ``PROGRAM frontend``, and
engines say HELLO here. It ends as the frontend does.
"""

import argparse
import functools
import shlex
import signal
import subprocess
import sys
from typing import Any

import trio

from vllmfront.testing import SupervisorPlan, open_supervisor, supervised_args


async def supervise(options: argparse.Namespace) -> int:
    plan = SupervisorPlan(
        host=options.host,
        port=options.port,
        handshake_port=options.data_parallel_rpc_port,
        engine_count=options.data_parallel_size,
        data_parallel_size=options.data_parallel_size,
    )
    more: dict[str, Any] = {}
    if options.served_model_name:
        more["served_model_name"] = options.served_model_name
    args = supervised_args(options.model, **more)
    with open_supervisor(plan) as supervisor:
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.serve_handshake)
            process: trio.Process = await nursery.start(
                functools.partial(
                    trio.run_process,
                    [*shlex.split(options.program), *supervisor.words(args)],
                    pass_fds=supervisor.descriptors,
                    stdin=subprocess.DEVNULL,
                    check=False,
                )
            )
            supervisor.release()
            nursery.start_soon(pass_on, process)
            status = await process.wait()
            nursery.cancel_scope.cancel()
    return status


async def pass_on(process: trio.Process) -> None:
    """Stop the frontend when we are told to stop."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        async for _ in received:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    own = shlex.join([sys.executable, "-m", "vllmfront"])
    parser.add_argument("--program", default=own)
    serve = parser.add_subparsers(required=True).add_parser("serve")
    serve.add_argument("model")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--data-parallel-address", default="127.0.0.1")
    serve.add_argument("--data-parallel-rpc-port", type=int, required=True)
    serve.add_argument("--data-parallel-size", type=int, default=1)
    serve.add_argument("--data-parallel-size-local", type=int, choices=[0], default=0)
    serve.add_argument("--served-model-name", nargs="*")
    sys.exit(trio.run(supervise, parser.parse_args()))


if __name__ == "__main__":
    main()

"""``vllmfront simulate``: engines without a model, for trying and measuring frontends."""

import argparse
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

import trio

from vllmfront.cli._incident_log import open_incident_log
from vllmfront.errors import ConfigurationError
from vllmfront.simulator import (
    VLLM_VERSIONS,
    RimFactory,
    Script,
    SimulatorConfig,
    load_script,
    serve_simulator,
)
from vllmfront.testing import FaultPlan, faulty_rims, load_plan

_LOGGER = logging.getLogger(__name__)

MS_PER_SECOND = 1000.0

PLANNED_LIVES = 100
"""Lives of a rank that random faults are drawn for; whoever lives on after them is healthy."""

CRASHED = 1
"""The exit status after an engine ended by a fault and did not come back."""

DESCRIPTION = """\
Play one or more vLLM engines: join a frontend's handshake and answer requests with tokens of a
seeded source, or of a script. No model, no GPU, no vLLM; the token ids mean nothing unless
scripted. Ends on SIGINT and SIGTERM, and once a script has ended all ranks.
"""


def _parser() -> argparse.ArgumentParser:
    defaults = SimulatorConfig(handshake="tcp://127.0.0.1:0")
    parser = argparse.ArgumentParser(
        prog="vllmfront simulate", description=DESCRIPTION, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--handshake",
        required=True,
        metavar="ADDRESS",
        help="ZeroMQ address of the frontend's handshake socket, as tcp://HOST:PORT",
    )
    _add_ranks(parser, defaults)
    _add_speed(parser, defaults)
    _add_model(parser, defaults)
    add(
        "--script",
        type=Path,
        metavar="FILE",
        help='JSON: {"rules": [{"prompt": [1, 2], "tokens": [3, 4], "acts": [...]}]}',
    )
    _add_faults(parser)
    add("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


def _add_ranks(parser: argparse.ArgumentParser, defaults: SimulatorConfig) -> None:
    add = parser.add_argument
    add("--ranks", type=int, default=defaults.ranks, help="engines to play (default: %(default)s)")
    add(
        "--start-rank",
        type=int,
        default=defaults.start_rank,
        help="rank of the first (default: %(default)s)",
    )
    add(
        "--lockstep",
        action="store_true",
        help="have the ranks step together, as those of a mixture of experts do",
    )
    add(
        "--local",
        action="store_true",
        help="say that the engines run on the frontend's host, started by it",
    )
    add(
        "--vllm-version",
        choices=VLLM_VERSIONS,
        default=defaults.vllm_version,
        help="release to imitate (default: %(default)s)",
    )
    add(
        "--start-delay-ms",
        type=float,
        default=0.0,
        help="time that the model takes to load (default: %(default)s)",
    )


def _add_speed(parser: argparse.ArgumentParser, defaults: SimulatorConfig) -> None:
    add = parser.add_argument
    add(
        "--step-ms",
        type=float,
        default=defaults.step_time * MS_PER_SECOND,
        help="duration of a decoding step; 0 is as fast as can be (default: %(default)s)",
    )
    add(
        "--prefill-ms-per-token",
        type=float,
        default=defaults.prefill_time_per_token * MS_PER_SECOND,
        help="added to a step for each new prompt token (default: %(default)s)",
    )
    add(
        "--max-batch",
        type=int,
        default=defaults.max_batch,
        help="requests that run together (default: %(default)s)",
    )
    add(
        "--tokens-per-output",
        type=int,
        default=defaults.tokens_per_output,
        help="tokens of a request in one step (default: %(default)s)",
    )
    add(
        "--stats",
        action=argparse.BooleanOptionalAction,
        default=defaults.stats,
        help="send scheduler statistics and events (default: %(default)s)",
    )


def _add_model(parser: argparse.ArgumentParser, defaults: SimulatorConfig) -> None:
    add = parser.add_argument
    add("--seed", type=int, default=defaults.seed, help="of the token source")
    add("--vocab-size", type=int, default=defaults.vocab_size, help="(default: %(default)s)")
    add(
        "--first-token-id",
        type=int,
        default=defaults.first_token_id,
        help="ids below it are never generated (default: %(default)s)",
    )
    add(
        "--eos-chance",
        type=float,
        default=defaults.eos_chance,
        help="probability of the end at each token (default: %(default)s)",
    )
    add("--max-model-len", type=int, default=defaults.max_model_len, help="(default: %(default)s)")
    add("--block-size", type=int, default=defaults.block_size, help="of the prefix cache")
    add(
        "--prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=defaults.prefix_caching,
        help="(default: %(default)s)",
    )
    add(
        "--weight-transfer",
        action=argparse.BooleanOptionalAction,
        default=defaults.weight_transfer,
        help="take new weights, which change what is generated (default: %(default)s)",
    )
    add(
        "--draft-model",
        action="store_true",
        help="have a draft model, which can get new weights of its own",
    )
    add("--max-loras", type=int, default=defaults.max_loras, help="0: none are supported")
    add(
        "--task",
        action="append",
        metavar="TASK",
        help=f"what the model can do, may be repeated (default: {defaults.supported_tasks[0]})",
    )


def _add_faults(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--faults",
        metavar="PLAN",
        help="what goes wrong, and when: a JSON file, or seed:NUMBER for random faults that the "
        "same number repeats",
    )
    add(
        "--faults-journal",
        type=Path,
        metavar="FILE",
        help="append a line of JSON for each fault that happened, and for each start",
    )
    add(
        "--rejoin-after-ms",
        type=float,
        help="have a rank that ended join again after so long (default: it stays away)",
    )
    add(
        "--first-life",
        type=int,
        default=0,
        metavar="N",
        help="how often these ranks were started before: the plan's faults of that life count",
    )


def simulator_config(options: argparse.Namespace) -> SimulatorConfig:
    """Return what parsed *options* ask for.

    Raises:
        ConfigurationError: a number is out of its range, or the script is unusable.
    """
    script = load_script(options.script) if options.script is not None else Script()
    try:
        return SimulatorConfig(
            handshake=options.handshake,
            ranks=options.ranks,
            start_rank=options.start_rank,
            lockstep=options.lockstep,
            local=options.local,
            headless=not options.local,
            vllm_version=options.vllm_version,
            start_delay=options.start_delay_ms / MS_PER_SECOND,
            rejoin_after=(
                None if options.rejoin_after_ms is None else options.rejoin_after_ms / MS_PER_SECOND
            ),
            first_life=options.first_life,
            step_time=options.step_ms / MS_PER_SECOND,
            prefill_time_per_token=options.prefill_ms_per_token / MS_PER_SECOND,
            max_batch=options.max_batch,
            tokens_per_output=options.tokens_per_output,
            stats=options.stats,
            seed=options.seed,
            vocab_size=options.vocab_size,
            first_token_id=options.first_token_id,
            eos_chance=options.eos_chance,
            max_model_len=options.max_model_len,
            block_size=options.block_size,
            prefix_caching=options.prefix_caching,
            max_loras=options.max_loras,
            script=script,
            weight_transfer=options.weight_transfer,
            draft_model=options.draft_model,
            supported_tasks=tuple(options.task or ("generate",)),
        )
    except ValueError as error:
        raise ConfigurationError("the simulated engine cannot be as asked for") from error


def fault_plan(options: argparse.Namespace) -> FaultPlan:
    """Return the faults that parsed *options* ask for; none by default.

    Raises:
        ConfigurationError: the plan is unusable.
    """
    if options.faults is None:
        return FaultPlan()
    ranks, lives = options.start_rank + options.ranks, options.first_life + PLANNED_LIVES
    return load_plan(options.faults, ranks=ranks, lives=lives)


async def _run(config: SimulatorConfig, rims: RimFactory) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def stop_on_signal() -> None:
                await anext(aiter(signals))
                nursery.cancel_scope.cancel(reason="told to stop")

            nursery.start_soon(stop_on_signal)
            await serve_simulator(config, rims)
            nursery.cancel_scope.cancel(reason="all ranks have ended")


def run(words: Sequence[str]) -> int:
    """Run the simulator until told to stop; return the exit status.

    Raises:
        ConfigurationError: the options make no sense.
    """
    options = _parser().parse_args(words)
    config, plan = simulator_config(options), fault_plan(options)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(levelname)s %(asctime)s %(message)s"
    )
    if plan.seed is not None:
        _LOGGER.warning("random faults: repeat them with --faults seed:%d", plan.seed)
    with open_incident_log(options.faults_journal) as incidents:
        trio.run(_run, config, faulty_rims(plan, incidents))
    return CRASHED if incidents.crashed and config.rejoin_after is None else 0

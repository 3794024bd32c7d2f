"""``python -m tests.rl_soak.engine``: ``vllmfront simulate`` with a record, and with strikes."""

import argparse
from pathlib import Path

import trio

from tests.rl_soak._record import Recorder
from tests.rl_soak._rim import SoakRim
from tests.rl_soak._strikes import StrikeBox
from vllmfront.cli._incident_log import open_incident_log
from vllmfront.cli._simulate import _parser, simulator_config
from vllmfront.simulator import Rim, serve_simulator


def main() -> None:
    """Play one engine until it is told to end, or a strike ends it."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--record", type=Path, required=True)
    own.add_argument("--strikes", type=Path, required=True)
    mine, others = own.parse_known_args()
    options = _parser().parse_args(others)
    with (
        open_incident_log(options.faults_journal) as incidents,
        mine.record.open("a", encoding="utf-8") as record,
    ):

        def rim(rank: int, life: int) -> Rim:
            recorder = Recorder(record, rank, life)
            return SoakRim(rank, life, incidents, recorder, StrikeBox(mine.strikes))

        trio.run(serve_simulator, simulator_config(options), rim)


if __name__ == "__main__":
    main()

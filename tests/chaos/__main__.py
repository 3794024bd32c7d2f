"""``python -m tests.chaos``: the soak, for as long as it is told; see ``make chaos``."""

import argparse
import secrets
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

from tests.chaos._soak import Soak, run_soak

say = partial(print, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, help="what everything random follows from (default: a new one)")
    add("--seconds", type=float, default=180.0, help="no round begins later (default: 180)")
    add("--rounds", type=int, help="run so many in place of --seconds")
    add("--requests", type=int, default=500, help="in a round (default: 500)")
    add("--deployment", action="append", choices=("external", "managed"), help="default: both")
    add("--keep", type=Path, metavar="FOLDER", help="keep logs, plans and journals in FOLDER")
    return parser.parse_args()


def main() -> int:
    """Run the soak; return 1 if anything was wrong."""
    options = _options()
    seed = options.seed if options.seed is not None else secrets.randbelow(2**32)
    say(f"chaos with seed {seed}; the same again: make chaos SEED={seed}")
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        soak = Soak(
            seed=seed,
            folder=options.keep or Path(scratch),
            requests=options.requests,
            rounds=options.rounds,
            seconds=options.seconds,
            deployments=options.deployment or ("external", "managed"),
        )
        report = trio.run(run_soak, soak, say)
    outcomes = ", ".join(f"{count} {name}" for name, count in report.outcomes.most_common())
    say(f"in all: {outcomes}")
    if report.violations:
        say(f"{len(report.violations)} violations with seed {seed}")
        return 1
    say("the books add up")
    return 0


if __name__ == "__main__":
    sys.exit(main())

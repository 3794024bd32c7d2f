"""``python -m tests.rl_soak``: cycles of weight updates under faults; see ``make chaos``."""

import argparse
import secrets
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

from tests.rl_soak._soak import Soak, run_soak

say = partial(print, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.rl_soak", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, help="what everything random follows from (default: a new one)")
    add("--cycles", type=int, default=200, help="(default: %(default)s)")
    add("--first", type=int, default=0, metavar="N", help="begin with cycle N of the seed")
    add("--rollouts", type=int, default=64, help="at once (default: %(default)s)")
    add("--keep", type=Path, metavar="FOLDER", help="keep logs and records in FOLDER")
    return parser.parse_args()


def main() -> int:
    """Run the soak; return 1 if anything was wrong."""
    options = _options()
    seed = options.seed if options.seed is not None else secrets.randbelow(2**32)
    say(f"rollouts under new weights with seed {seed}; the same again: make chaos SEED={seed}")
    with tempfile.TemporaryDirectory(prefix="rl-soak-") as scratch:
        soak = Soak(
            seed=seed,
            folder=options.keep or Path(scratch),
            cycles=options.cycles,
            first=options.first,
            rollouts=options.rollouts,
        )
        report = trio.run(run_soak, soak, say)
        if options.keep:
            (options.keep / "attempts.log").write_text("\n".join(report.lines) + "\n")
    say(f"in all: {report.fleet}; engines heard {report.requests} requests")
    say(f"troubles: {dict(report.troubles.most_common())}")
    say(f"{report.failed} cycles failed at first; the longest took {report.longest:.1f} s")
    if report.violations:
        say(f"{len(report.violations)} violations with seed {seed}")
        return 1
    say("no rollout was lost, nothing leaked, and every cycle was finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())

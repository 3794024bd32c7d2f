"""What happens in each cycle of the soak: it follows from the seed."""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs

from tests.rl_soak._strikes import REQUEST, START, Strike
from vllmfront.testing import FaultKind

T = TypeVar("T")

MODES = ("keep", "wait", "abort")
STYLES = ("window", "window", "sync")

ORDERS = (
    "init_weight_transfer_engine",
    "pause_generation",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
    "set_weight_version",
    "resume_scheduler",
    "get_weight_version",
)
"""Of one cycle, as engines know them."""

KINDS = (
    FaultKind.CRASH,
    FaultKind.DIE,
    FaultKind.HANG,
    FaultKind.MUTE,
    FaultKind.MUTE,
    FaultKind.STALL,
)
START_KINDS = (FaultKind.CRASH, FaultKind.HANG, FaultKind.STALL)
REQUEST_KINDS = (FaultKind.CRASH, FaultKind.DIE, FaultKind.HANG, FaultKind.STALL)

DEATHS = ("initialized", "paused", "started", "in_update", "sent", "in_finish", "finished")
"""How far a trainer comes that is killed: ``in_`` while that call is under way."""


@attrs.frozen(kw_only=True)
class Cycle:
    """One update of the weights, and what goes wrong with it."""

    number: int
    mode: str
    style: str
    pieces: int
    clear_cache: bool
    interval: float
    """Seconds of undisturbed generation before it."""

    dies: str | None = None
    """Where the trainer is killed; another one then finishes the cycle."""

    heir: bool = False
    """Whether that one comes under the name of the dead; else its lease must run out first."""

    spoiled: bool = False
    """Whether engines refuse a piece at the first attempt."""

    gives_up: bool = False
    """Whether the trainer itself fails within its window at the first attempt."""

    rival: str | None = None
    """The mode of a second trainer at the same time, with weights of its own."""

    strikes: tuple[tuple[Strike, ...], ...] = ((), ())
    """What is in store for each rank."""

    killed: int | None = None
    """The rank whose process is killed from outside, at some moment of the cycle."""

    killed_after: float = 0.0
    """Seconds from the cycle's begin."""

    @property
    def modes(self) -> frozenset[str]:
        return frozenset({self.mode} if self.rival is None else {self.mode, self.rival})

    @property
    def troubles(self) -> list[str]:
        """Say in words what is in store."""
        found = [f"trainer killed ({self.dies})"] if self.dies else []
        found += ["piece refused"] if self.spoiled else []
        found += ["trainer gave up"] if self.gives_up else []
        found += ["rival"] if self.rival else []
        found += ["engine killed"] if self.killed is not None else []
        for strike in (one for rank in self.strikes for one in rank):
            where = f"start {strike.phase}" if strike.at == START else strike.at
            found.append(f"{strike.kind} at {where}{' (done)' if strike.done else ''}")
        return found


def draw_cycle(seed: int, number: int) -> Cycle:
    """Return cycle *number*: modes take turns, and so do phases of faults; the rest is random."""
    chance = random.Random(f"cycle/{seed}/{number}").random
    trouble = chance()
    cycle = Cycle(
        number=number,
        mode=MODES[number % len(MODES)],
        style=STYLES[int(chance() * len(STYLES))],
        pieces=1 + int(chance() * 3),
        clear_cache=chance() < 0.5,
        interval=round(0.1 + 0.6 * chance(), 2),
    )
    if trouble < 0.3:
        dies = _pick(DEATHS, chance)
        # The calls of a sync are the server's own.
        style = "window" if dies.startswith("in_") else cycle.style
        cycle = attrs.evolve(cycle, dies=dies, heir=chance() < 0.5, style=style)
    elif trouble < 0.36:
        cycle = attrs.evolve(cycle, spoiled=True)
    elif trouble < 0.42:
        cycle = attrs.evolve(cycle, style="window", gives_up=True)
    if chance() < 0.25:
        cycle = attrs.evolve(cycle, rival=_pick(MODES, chance))
    if chance() < 0.5:
        cycle = attrs.evolve(cycle, strikes=_draw_strikes(number, chance))
    elif chance() < 0.2:
        killed = int(chance() * 2)
        cycle = attrs.evolve(cycle, killed=killed, killed_after=round(chance() * 0.6, 2))
    return cycle


def _draw_strikes(number: int, chance: Callable[[], float]) -> tuple[tuple[Strike, ...], ...]:
    """Return a fault at an order, or at a request; a start after it may fail, too."""
    # 3 and the 9 moments share a divisor: without the quotient a mode would never see most.
    moments = (*ORDERS, REQUEST)
    at = moments[(number + number // len(MODES)) % len(moments)]
    kinds = REQUEST_KINDS if at == REQUEST else KINDS
    strikes = [
        Strike(at=at, kind=_pick(kinds, chance).value, done=at != REQUEST and chance() < 0.4)
    ]
    if chance() < 0.3:
        kind = _pick(START_KINDS, chance).value
        strikes.append(Strike(at=START, kind=kind, phase=1 + int(chance() * 3)))
    ranks: list[tuple[Strike, ...]] = [(), ()]
    both = chance() < 0.15
    first = int(chance() * 2)
    ranks[first] = tuple(strikes)
    if both:
        ranks[1 - first] = tuple(strikes)
    return tuple(ranks)


def _pick(choices: Sequence[T], chance: Callable[[], float]) -> T:
    return choices[int(chance() * len(choices))]

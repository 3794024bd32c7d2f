"""Which faults come when: a list that somebody wrote, or one that follows from a seed."""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import attrs
import cattrs
import msgspec
from attrs import validators
from cattrs.errors import ClassValidationError

from vllmfront.errors import ConfigurationError
from vllmfront.testing._fault import AT_START, DEADLY, Fault, FaultKind, Moment

T = TypeVar("T")

SEED_PREFIX = "seed:"

_CALLS = 8
"""Among so many utility calls a random fault finds its own; there are few of them."""

_LONGEST_STALL = 1.5
"""Seconds; random stalls are shorter."""

_LONGEST_DELAY = 0.2
"""Seconds that a message of a randomly slow engine is late at most."""

_MOST_MESSAGES = 4
"""Messages, requests or calls that one random fault concerns at most."""

_MOMENTS = {FaultKind.LOSE: Moment.REQUEST, FaultKind.MUTE: Moment.CALL}
"""When random faults strike that make no sense at an output."""


@attrs.frozen(kw_only=True)
class Odds:
    """What random plans are made of."""

    kinds: Sequence[FaultKind] = tuple(FaultKind)
    """Each as likely as the others; one named twice is twice as likely."""

    per_life: int = attrs.field(default=3, validator=validators.ge(0))
    """Faults of one rank's life; a deadly one is the last, so that there may be fewer."""

    within: int = attrs.field(default=400, validator=validators.ge(1))
    """Outputs, and half as many requests, among which faults find theirs."""

    start: float = attrs.field(default=0.1, validator=[validators.ge(0), validators.le(1)])
    """How likely a start goes wrong."""


@attrs.frozen(kw_only=True)
class FaultPlan:
    """Faults as pure data: whoever runs the same plan gets the same faults at the same counts."""

    faults: Sequence[Fault] = ()
    seed: int | None = None
    """What the faults were drawn from; None: somebody chose them."""

    @classmethod
    def from_seed(
        cls, seed: int, *, ranks: int = 1, lives: int = 1, odds: Odds | None = None
    ) -> Self:
        """Draw the faults of so many *ranks*, for so many *lives* of each.

        What a rank's life has in it depends on the seed, its rank and its number alone.
        """
        faults = [
            fault
            for rank in range(ranks)
            for life in range(lives)
            for fault in _draw_life(seed, rank, life, odds or Odds())
        ]
        return cls(faults=tuple(faults), seed=seed)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what ``to_json`` wrote, or what a person wrote like it.

        Raises:
            ConfigurationError: It does not say a plan; names the places.
        """
        try:
            raw = msgspec.json.decode(text, type=dict[str, Any])
            return _CONVERTER.structure(raw, cls)
        except msgspec.DecodeError as error:
            raise ConfigurationError("the fault plan is no JSON object") from error
        except ClassValidationError as error:
            reasons = "; ".join(cattrs.transform_error(error, format_exception=_reason))
            raise ConfigurationError(f"the fault plan makes no sense: {reasons}") from error

    def to_json(self) -> str:
        """Return one line for each fault, without what is as by default."""
        lines = ",\n  ".join(
            msgspec.json.encode(_without_defaults(fault)).decode() for fault in self.faults
        )
        seed = "" if self.seed is None else f'"seed": {self.seed}, '
        return f'{{{seed}"faults": [\n  {lines}\n]}}'

    def __str__(self) -> str:
        origin = "of somebody's choice" if self.seed is None else f"of seed {self.seed}"
        return "\n  ".join([f"{len(self.faults)} faults {origin}", *map(str, self.faults)])

    def of_life(self, rank: int, life: int) -> Sequence[Fault]:
        """Return the faults of one life of one rank."""
        return [fault for fault in self.faults if fault.concerns(rank, life)]

    def without(self, kinds: Collection[FaultKind]) -> Self:
        """Return the plan without faults of *kinds*; the others stay as they are."""
        return attrs.evolve(self, faults=tuple(one for one in self.faults if one.kind not in kinds))


def load_plan(words: str, *, ranks: int = 1, lives: int = 1) -> FaultPlan:
    """Return the plan that *words* name: ``seed:NUMBER``, or a JSON file.

    Args:
        words: From a person.
        ranks: How many ranks a random plan is for.
        lives: How many lives of each.

    Raises:
        ConfigurationError: There is no such file, or it does not say a plan.
    """
    if words.startswith(SEED_PREFIX):
        try:
            seed = int(words.removeprefix(SEED_PREFIX))
        except ValueError as error:
            raise ConfigurationError(f"{words}: a seed is a whole number") from error
        return FaultPlan.from_seed(seed, ranks=ranks, lives=lives)
    try:
        text = Path(words).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the fault plan {words}; name a JSON file, or {SEED_PREFIX}NUMBER"
        ) from error
    return FaultPlan.from_json(text)


def _draw_life(seed: int, rank: int, life: int, odds: Odds) -> Iterator[Fault]:
    """Yield one life's faults, in the order of what they count."""
    # Of this module's methods, only random() is promised to give the same in every release.
    chance = random.Random(f"{seed}/{rank}/{life}").random  # noqa: S311  # repeatable, not secret
    starting = [kind for kind in odds.kinds if kind in AT_START]
    found: list[Fault] = []
    if starting and chance() < odds.start:
        phase = 1 + int(chance() * 3)
        found.append(_draw(chance, _pick(starting, chance()), Moment.START, phase))
    later = []
    for _ in range(odds.per_life if odds.kinds else 0):
        kind = _pick(odds.kinds, chance())
        moment = _MOMENTS.get(kind, Moment.OUTPUT)
        within = _CALLS if moment is Moment.CALL else odds.within
        at = 1 + int(chance() * (within // 2 if moment is Moment.REQUEST else within))
        later.append(_draw(chance, kind, moment, at))
    found += sorted(later, key=lambda fault: fault.at)
    for fault in found:
        yield attrs.evolve(fault, rank=rank, life=life)
        if fault.kind in DEADLY:
            return


def _draw(chance: Callable[[], float], kind: FaultKind, moment: Moment, at: int) -> Fault:
    seconds, count = 0.0, 1
    if kind is FaultKind.STALL:
        seconds = round(0.05 + chance() * _LONGEST_STALL, 2)
    elif kind is FaultKind.SLOW:
        seconds = round(0.01 + chance() * _LONGEST_DELAY, 2)
    if kind not in DEADLY and kind is not FaultKind.STALL:
        count = 1 + int(chance() * _MOST_MESSAGES)
    return Fault(kind=kind, on=moment, at=at, seconds=seconds, count=count)


def _pick(choices: Sequence[T], chance: float) -> T:
    return choices[int(chance * len(choices))]


def _without_defaults(fault: Fault) -> dict[str, object]:
    """Return the members of a fault's JSON object."""
    said = attrs.asdict(
        fault, filter=lambda field, value: field.name == "on" or value != field.default
    )
    return said | {"kind": fault.kind.value, "on": fault.on.value}


def _reason(error: BaseException, wanted: type | None) -> str:
    # cattrs names the wanted type alone; the checks of the values say more.
    if type(error) is ValueError and error.args:
        return str(error)
    return cattrs.v.format_exception(error, wanted)


_CONVERTER = cattrs.Converter(forbid_extra_keys=True)

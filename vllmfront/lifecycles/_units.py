"""Which processes run the managed engines: one a rank, or one for all that step together. Pure."""

import itertools
from collections.abc import Sequence

import attrs

from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles._engine_config import EngineConfig

_DEVICE_IDS = "--device-ids"
_WIDTHS = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--prefill-context-parallel-size", "-pcp"),
)
"""Options by whose product an engine takes several devices."""


LONE = "process"
"""The name of the only process of a node."""


@attrs.frozen(kw_only=True)
class EngineUnit:
    """A process of ours, and the engines that live and die with it."""

    name: str
    ranks: range
    watched: range
    """Ranks whose loss ends it: its own, or all that step together with them."""

    arguments: Sequence[str]
    """Words of the engine's command line, without those that both sides need."""

    @property
    def title(self) -> str:
        """How operators are told of it."""
        return "the managed engine" if self.name == LONE else f"the managed engine {self.ranks[0]}"

    @property
    def prefix(self) -> str:
        """What stands before each line of its output."""
        return "(engine) " if self.name == LONE else f"(engine {self.ranks[0]}) "


def plan_units(config: EngineConfig, *, lockstep: bool) -> Sequence[EngineUnit]:
    """Return the processes that run the engines of this node.

    Args:
        config: How many engines there are, and with which options.
        lockstep: Whether they step together, so that none can live without the others.

    Raises:
        ConfigurationError: The options about devices make no sense.
    """
    own = config.local_ranks
    if lockstep or len(own) == 1:
        watched = config.ranks if lockstep else own
        arguments = (*_place(config, own), *config.arguments)
        return [EngineUnit(name=LONE, ranks=own, watched=watched, arguments=arguments)]
    devices = _devices(config.arguments, len(own))
    rest = _without(config.arguments, _DEVICE_IDS)
    return [
        EngineUnit(
            name=f"rank-{rank}",
            ranks=range(rank, rank + 1),
            watched=range(rank, rank + 1),
            arguments=(*_place(config, range(rank, rank + 1)), _DEVICE_IDS, ids, *rest),
        )
        for rank, ids in zip(own, devices, strict=True)
    ]


def _place(config: EngineConfig, ranks: range) -> Sequence[str]:
    """Say which of all engines a process runs, unless it runs them all."""
    whole = len(ranks) == config.data_parallel_size
    if whole and config.data_parallel_size_local is None:
        return ()
    words = ("--data-parallel-size-local", str(len(ranks)))
    return words if whole else (*words, "--data-parallel-start-rank", str(ranks.start))


def _devices(arguments: Sequence[str], count: int) -> Sequence[str]:
    """Return the devices of each of *count* processes, which would all take the first ones."""
    width = 1
    for names in _WIDTHS:
        width *= _number(_value(arguments, names) or "1", names[0])
    given = _value(arguments, (_DEVICE_IDS,))
    ids = list(map(str, range(count * width))) if given is None else given.split(",")
    if len(ids) < count * width:
        raise ConfigurationError(
            f"{_DEVICE_IDS} names {len(ids)} devices, but {count} engines on this node need "
            f"{width} each"
        )
    return [",".join(ids[place * width : (place + 1) * width]) for place in range(count)]


def _number(text: str, name: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"{name} {text}: expected a whole number above zero")
    return int(text)


def _value(arguments: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the value of an option, the last one where it is given several times."""
    found = None
    for word, following in itertools.pairwise([*arguments, ""]):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else following
    return found


def _without(arguments: Sequence[str], option: str) -> Sequence[str]:
    """Return *arguments* without *option* and its value."""
    kept: list[str] = []
    skip = False
    for word in arguments:
        if not skip and word.partition("=")[0] != option:
            kept.append(word)
        skip = word == option and not skip
    return kept

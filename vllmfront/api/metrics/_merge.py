"""Metrics of several processes of one server, as those of one.

What each has counted is packed, sent to the one that is asked, and summed up there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from prometheus_client import Metric

SampleKey = tuple[str, tuple[str, ...]]
"""A sample's name and the values of its labels."""

_COUNTED = ("counter", "histogram")
"""Kinds of what only grows, and is summed up."""

_GREATEST = ("loop_lag_seconds", "_limit", "_limit_seconds")
"""Ends of names of gauges that describe the worst process, or hold for all of them."""

_STATES = ("engine_state", "engine_rank_state")
"""Ends of names of gauges that are the same for all processes: that of the first is taken."""

_ENGINE_LABEL = "engine"


class PackedFamily(Struct, array_like=True):
    """All samples of one name, as they are sent."""

    name: str
    kind: str
    documentation: str
    samples: list[tuple[str, dict[str, str], float]]
    """Name, labels and value of each."""


def pack(families: Iterable[Metric]) -> list[PackedFamily]:
    """Bring families into the form in which they are sent."""
    return [
        PackedFamily(
            family.name,
            family.type,
            family.documentation,
            [(sample.name, dict(sample.labels), float(sample.value)) for sample in family.samples],
        )
        for family in families
    ]


def unpack(families: Iterable[PackedFamily]) -> Iterator[Metric]:
    """Bring families back into the form in which they are rendered."""
    for family in families:
        metric = Metric(family.name, family.documentation, family.kind)
        for name, labels, value in family.samples:
            metric.add_sample(name, labels, value)
        yield metric


def counted(families: Iterable[PackedFamily]) -> list[PackedFamily]:
    """Leave out what holds for the moment alone: the rest stays true when a process has died."""
    return [family for family in families if family.kind in _COUNTED]


def merge(
    reports: Sequence[Sequence[PackedFamily]], *, newest: Callable[[str], int | None]
) -> list[PackedFamily]:
    """Sum up what several processes report.

    What only grows is added up. A gauge about an engine is taken from the process that the engine
    has told last; others are added up as well, or the greatest is taken where a sum makes no sense.

    Args:
        reports: What each process has counted.
        newest: Tells which of the reports is from the one that has heard of an engine last, by
            the engine's label; None: nobody has.
    """
    merged: dict[str, PackedFamily] = {}
    values: dict[str, dict[SampleKey, float]] = {}
    for number, report in enumerate(reports):
        for family in report:
            found = merged.get(family.name)
            if found is None:
                merged[family.name] = PackedFamily(
                    family.name, family.kind, family.documentation, []
                )
                values[family.name] = {}
            _add(family, number, values[family.name], merged[family.name], newest)
    for name, family in merged.items():
        known = values[name]
        family.samples = [
            (sample, labels, known[_key(sample, labels)]) for sample, labels, _ in family.samples
        ]
    return list(merged.values())


def _add(
    family: PackedFamily,
    number: int,
    values: dict[SampleKey, float],
    into: PackedFamily,
    newest: Callable[[str], int | None],
) -> None:
    for sample, labels, value in family.samples:
        key = _key(sample, labels)
        if key not in values:
            into.samples.append((sample, labels, value))
            values[key] = value
        elif family.kind in _COUNTED:
            values[key] += value
        elif family.name.endswith(_STATES):
            continue
        elif _ENGINE_LABEL in labels:
            if newest(labels[_ENGINE_LABEL]) == number:
                values[key] = value
        elif family.name.endswith(_GREATEST):
            values[key] = max(values[key], value)
        else:
            values[key] += value


def _key(sample: str, labels: Mapping[str, str]) -> SampleKey:
    return sample, tuple(labels.values())

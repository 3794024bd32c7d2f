"""A server's state as a page for people: pure."""

from collections.abc import Iterator, Sequence

import attrs

from vllmfront.cli._status_client import Status
from vllmfront.cli._status_report import Child, Engines, Rank, Tree, Worker

_GREEN, _YELLOW, _RED, _BLUE, _DIM, _BOLD = "32", "33", "31", "34", "90", "1"

_COLOURS = {
    "ready": _GREEN,
    "loading": _YELLOW,
    "preparing": _YELLOW,
    "starting": _YELLOW,
    "recovering": _YELLOW,
    "backoff": _YELLOW,
    "stalled": _YELLOW,
    "paused": _YELLOW,
    "asleep": _YELLOW,
    "draining": _BLUE,
    "stopping": _BLUE,
    "stopped": _DIM,
    "new": _DIM,
    "dead": _RED,
    "failed": _RED,
    "stuck": _RED,
    "unreachable": _RED,
}

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_MEGABYTE = 10**6
_FRACTIONS_BELOW = 10
"""Seconds that are shown with a decimal."""


@attrs.frozen
class Painter:
    """Colours for a terminal, or none."""

    colour: bool

    def __call__(self, text: str, *codes: str) -> str:
        return f"\033[{';'.join(codes)}m{text}\033[0m" if self.colour and codes else text

    def state(self, state: str, width: int = 0) -> str:
        """Write a state in its colour, padded to *width*."""
        text = state.upper().ljust(width)
        return self(text, _COLOURS.get(state, _BOLD)) if state else text

    def dim(self, text: str) -> str:
        return self(text, _DIM)

    def bad(self, text: str) -> str:
        return self(text, _RED)

    def strong(self, text: str) -> str:
        return self(text, _BOLD)


def page(url: str, status: Status, paint: Painter) -> list[str]:
    """Return the lines that show *status*."""
    health = status.health
    head = f"{paint.state(health.state)} {paint.dim('for')} {span(health.seconds)}"
    lines = [f"{paint.strong(url)}  {head}", f"  {clean(health.reason)}"]
    if health.retry_after is not None and not health.ready:
        lines.append(paint.dim(f"  expected back in {span(health.retry_after)}"))
    if status.inside is None:
        return [*lines, "", paint.dim(status.locked)]
    inside = status.inside
    rows = list(_rows(inside.tree, ""))
    workers = list(_workers(inside.workers, paint))
    return [*lines, "", *_table(rows, paint), *workers, "", *_engines(inside.engines, paint)]


def unreachable_page(url: str, why: str, paint: Painter) -> list[str]:
    """Return the lines that say that nobody answers."""
    return [f"{paint.strong(url)}  {paint.state('unreachable')}", f"  {clean(why)}"]


@attrs.frozen
class _Row:
    """A line of the tree, before its columns are known."""

    branch: str
    """The lines drawn in front of the name, and the name."""

    state: str
    seconds: float | None
    notes: tuple[str, ...]
    stem: str = ""
    """What is drawn in front of the lines below it."""

    failures: tuple[str, ...] = ()


def _rows(tree: Tree, stem: str) -> Iterator[_Row]:
    if not stem:
        yield _Row(tree.name, "", None, _restarts(tree))
    for number, child in enumerate(tree.children, 1):
        last = number == len(tree.children)
        below = stem + ("   " if last else "│  ")
        yield _Row(
            f"{stem}{'└─ ' if last else '├─ '}{child.name}",
            child.state,
            child.seconds,
            tuple(_notes(child)),
            below,
            tuple(_failures(child)),
        )
        if child.tree is not None:
            yield from _rows(child.tree, below)


def _notes(child: Child) -> Iterator[str]:
    if child.generation > 1:
        yield f"life {child.generation}"
    if child.next_try is not None:
        yield f"next try in {span(child.next_try)}"
    if child.tree is not None:
        yield from _restarts(child.tree)


def _failures(child: Child) -> Iterator[str]:
    first, last = child.first_failure, child.last_failure
    if first is not None and first != last:
        yield f"first failure: {first_line(first)}"
    if last is not None:
        yield f"last failure: {first_line(last)}"


def _restarts(tree: Tree) -> tuple[str, ...]:
    if not tree.intensity:
        return ()
    return (f"{tree.restarts} of {tree.intensity} restarts in {span(tree.period)}",)


def _table(rows: Sequence[_Row], paint: Painter) -> Iterator[str]:
    names = max(len(row.branch) for row in rows)
    states = max(len(row.state) for row in rows)
    ages = max(len(span(row.seconds or 0)) for row in rows)
    for row in rows:
        age = "" if row.seconds is None else span(row.seconds)
        notes = ", ".join(row.notes)
        cells = (
            row.branch.ljust(names),
            paint.state(row.state, states),
            age.rjust(ages),
            paint.dim(notes) if notes else "",
        )
        yield "  ".join(cells).rstrip()
        for failure in row.failures:
            yield f"{row.stem}   {paint.bad(failure)}"


def _workers(workers: Sequence[Worker], paint: Painter) -> Iterator[str]:
    if not workers:
        return
    yield ""
    yield paint.strong("workers")
    for worker in workers:
        state = paint.state("ready" if worker.serving else "starting", len("starting"))
        notes = [
            f"pid {worker.pid}",
            f"{worker.connections} connection{'' if worker.connections == 1 else 's'}",
            f"{worker.choices} in flight",
            f"{span(worker.cpu_seconds)} of processor time",
        ]
        if worker.resident_bytes is not None:
            notes.append(f"{worker.resident_bytes / _MEGABYTE:.0f} MB")
        yield f"  {worker.worker}  {state}  {paint.dim(', '.join(notes))}"


def _engines(engines: Engines, paint: Painter) -> Iterator[str]:
    count = f"{engines.requests} request{'' if engines.requests == 1 else 's'} in flight"
    yield f"{paint.strong('engines')}  {paint.state(engines.state)}  {paint.dim(count)}"
    states = max((len(rank.state) for rank in engines.ranks), default=0)
    ranks = max((len(str(rank.rank)) for rank in engines.ranks), default=0)
    for rank in engines.ranks:
        notes = paint.dim(", ".join(_engine_notes(rank)))
        yield f"  {rank.rank:>{ranks}}  {paint.state(rank.state, states)}  {notes}".rstrip()
        if rank.error is not None:
            yield f"  {'':{ranks}}  {paint.bad(first_line(rank.error))}"


def _engine_notes(rank: Rank) -> Iterator[str]:
    if rank.incarnation > 1:
        yield f"life {rank.incarnation}"
    yield f"{rank.in_flight} in flight"
    if rank.seconds_since_output is not None:
        yield f"last output {span(rank.seconds_since_output)} ago"


def span(seconds: float) -> str:
    """Write a span of time in its two largest units."""
    if seconds < _FRACTIONS_BELOW:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR:02} h"


def first_line(text: str) -> str:
    """Return the first line of a failure, fit for a terminal."""
    return clean(text.strip().partition("\n")[0])


def clean(text: str) -> str:
    """Replace what a terminal would obey: the text may come from an engine's output."""
    return "".join(char if char.isprintable() else "?" for char in text)

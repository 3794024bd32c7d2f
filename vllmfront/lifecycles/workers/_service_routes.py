"""What main answers for the server as a whole, and passes on to the routes that it has anyway."""

import time
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

import attrs
import msgspec
import trio

from vllmfront.api.http import Handler, HttpRequest, ResponseWriter
from vllmfront.api.metrics import HttpMetrics, PackedFamily, collect, pack, render, unpack
from vllmfront.api.routes import SupervisionReport
from vllmfront.engine import ClientSnapshot
from vllmfront.interprocess import Cell, RankCell
from vllmfront.lifecycles._facts import Facts
from vllmfront.lifecycles.workers._counts import Newest
from vllmfront.lifecycles.workers._forwarding import Recorder, forwarded
from vllmfront.lifecycles.workers._host import MAIN_PAGE, WorkerHost
from vllmfront.lifecycles.workers._memory import resident_bytes
from vllmfront.lifecycles.workers._messages import Answered, AskInside, Inside

_PATIENCE = 1.0
"""Seconds that an answer waits for a worker that is busy."""

_encode = msgspec.json.Encoder().encode

_OK = 200


@attrs.frozen(kw_only=True, eq=False)
class ServiceRoutes:
    """A handler around *own*: knows what has to be asked of all workers."""

    own: Handler
    facts: Facts
    host: WorkerHost

    def __call__(self, request: HttpRequest, response: ResponseWriter) -> Awaitable[None]:
        if request.method == "GET":
            if request.path == "/metrics":
                return self._metrics(request, response)
            if request.path == "/supervisor":
                return self._supervisor(response)
            if request.path == "/load":
                return self._load(response)
        if request.method == "POST":
            if request.path == "/abort_requests":
                return self._abort(request, response)
            return self._change(request, response)
        return self.own(request, response)

    async def _change(self, request: HttpRequest, response: ResponseWriter) -> None:
        """Let main do what is asked for, and tell all workers how things are then."""
        try:
            await self.own(request, response)
        finally:
            self.host.tell_state()

    async def _abort(self, request: HttpRequest, response: ResponseWriter) -> None:
        """Let each process abort what it has in flight; answer with the sum."""
        recorder = Recorder()
        await self.own(request, recorder)
        body = bytes(recorder.body)
        if recorder.status == _OK:
            fields = msgspec.json.decode(body, type=dict[str, Any])
            said = await self.host.lines.call_all(forwarded(request), Answered, seconds=_PATIENCE)
            for one in said.values():
                if isinstance(one, Answered) and one.status == _OK:
                    part = msgspec.json.decode(one.body, type=dict[str, Any])
                    fields["aborted"] += part["aborted"]
            body = _encode(fields)
        response.respond(recorder.status, body, content_type=recorder.content_type)

    async def _metrics(self, request: HttpRequest, response: ResponseWriter) -> None:
        accept = (request.header(b"accept") or b"").decode("latin-1")
        exposition = render(unpack(await self.families()), accept=accept)
        content_type = exposition.content_type.encode()
        response.respond(_OK, exposition.body, content_type=content_type)

    async def families(self) -> list[PackedFamily]:
        """Return what all processes have counted, and how the workers are."""
        await self.host.counts.ask(self.host.lines)
        own = collect(
            self.facts.metrics(), HttpMetrics(), model_name=self.facts.served_model_names[0]
        )
        total = self.host.counts.families(pack(own), newest_process(self.host))
        return [*total, *_worker_families(self.host)]

    async def _supervisor(self, response: ResponseWriter) -> None:
        insides = await self._insides()
        report = self.facts.supervision()
        whole = SupervisionReport(
            health=report.health,
            tree=report.tree,
            engines=_sum(report.engines, insides.values()),
            tasks=report.tasks,
        )
        fields = whole.json_fields(trio.current_time(), time.time())
        workers = [_worker(self.host, number, insides.get(number)) for number in self.host.pids]
        response.respond(_OK, _encode({**fields, "workers": workers}))

    async def _load(self, response: ResponseWriter) -> None:
        insides = await self._insides()
        load = sum(inside.load for inside in insides.values())
        response.respond(_OK, _encode({"server_load": load}))

    async def _insides(self) -> dict[int, Inside]:
        said = await self.host.lines.call_all(AskInside(), Inside, seconds=_PATIENCE)
        return {number: one for number, one in said.items() if isinstance(one, Inside)}


def newest_process(host: WorkerHost) -> Newest:
    """Return what tells which process an engine has told last how busy it is."""
    places = {one.rank: place for place, one in enumerate(host.client.view().ranks)}

    def newest(rank: int) -> int:
        place = places.get(rank)
        if place is None:
            return MAIN_PAGE
        pages = enumerate(host.board.pages)
        return max(pages, key=lambda page: page[1].rank(place, RankCell.HEARD))[0]

    return newest


def _worker_families(host: WorkerHost) -> list[PackedFamily]:
    names = {
        "resident_bytes": "Memory that each worker has in use.",
        "connections": "Connections that each worker serves.",
        "choices": "Choices in flight at each worker.",
    }
    families = []
    for name, text in names.items():
        full = f"vllmfront:worker_{name}"
        samples = [
            (full, {"worker": str(number)}, float(value))
            for number, values in _numbers(host).items()
            if (value := values[name]) is not None
        ]
        families.append(PackedFamily(full, "gauge", text, samples))
    return families


def _numbers(host: WorkerHost) -> dict[int, dict[str, int | None]]:
    connections = {one.number: one.connections for one in host.candidates()}
    return {
        number: {
            "resident_bytes": resident_bytes(pid),
            "connections": connections.get(number, 0),
            "choices": host.board.pages[number][Cell.CHOICES],
        }
        for number, pid in host.pids.items()
    }


def _worker(host: WorkerHost, number: int, inside: Inside | None) -> Mapping[str, Any]:
    page = host.board.pages[number]
    silent = (time.monotonic_ns() - page[Cell.BEAT]) / 1e9 if page[Cell.BEAT] else None
    return {
        "worker": number,
        "pid": host.pids[number],
        "serving": number in host.serving,
        **_numbers(host)[number],
        "requests": None if inside is None else inside.requests,
        "tasks": None if inside is None else inside.tasks,
        "cpu_seconds": round(page[Cell.CPU] / 1e9, 3),
        "silent_seconds": None if silent is None else round(silent, 3),
    }


def _sum(engines: ClientSnapshot, insides: Iterable[Inside]) -> ClientSnapshot:
    """Add what the workers have in flight to what main knows of the engines."""
    known = list(insides)
    ranks = []
    for rank in engines.ranks:
        heard = [
            seconds
            for one in known
            if (seconds := one.seconds_since_output.get(rank.rank)) is not None
        ]
        if rank.seconds_since_output is not None:
            heard.append(rank.seconds_since_output)
        ranks.append(
            attrs.evolve(
                rank,
                in_flight=rank.in_flight + sum(one.in_flight.get(rank.rank, 0) for one in known),
                seconds_since_output=min(heard, default=None),
            )
        )
    return attrs.evolve(
        engines,
        ranks=tuple(ranks),
        requests=engines.requests + sum(one.requests for one in known),
        waiting=engines.waiting + sum(one.waiting for one in known),
        engine_requests=engines.engine_requests + sum(one.engine_requests for one in known),
        pending_calls=engines.pending_calls + sum(one.pending_calls for one in known),
        resent_requests=engines.resent_requests + sum(one.resent_requests for one in known),
        continued_requests=engines.continued_requests
        + sum(one.continued_requests for one in known),
    )

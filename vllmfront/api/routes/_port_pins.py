"""One port an engine: what comes in at a port is that engine's."""

from collections.abc import Awaitable, Mapping

from msgspec.structs import replace

from vllmfront.api._errors import respond_with_error
from vllmfront.api.http import ANSWERED, Handler, HttpRequest, ResponseWriter
from vllmfront.api.routes._facts import ServerFacts
from vllmfront.api.routes._probes import Probes
from vllmfront.errors import RequestRejected

_RANK = b"x-data-parallel-rank"


class PortPins:
    """Stands before all routes. Probes tell of the port's engine; requests go to no other."""

    def __init__(
        self, routes: Handler, ranks: Mapping[int, int], facts: Mapping[int, ServerFacts]
    ) -> None:
        """Pin ports.

        Args:
            routes: What answers requests.
            ranks: By port.
            facts: By rank: how the server does for somebody who needs that engine.
        """
        self._routes = routes
        self._ranks = ranks
        self._probes = {
            rank: {(method, path): handler for method, path, handler in Probes(seen)}
            for rank, seen in facts.items()
        }

    def __call__(self, request: HttpRequest, response: ResponseWriter) -> Awaitable[None]:
        port = None if request.server is None else request.server[1]
        rank = None if port is None else self._ranks.get(port)
        if rank is None:
            return self._routes(request, response)
        probe = self._probes[rank].get((request.method, request.path))
        if probe is not None:
            return probe(request, response)
        named, own = request.header(_RANK), b"%d" % rank
        if named is None:
            request = _with_rank(request, own)
        elif named.strip() != own:
            respond_with_error(response, _other_rank(port, rank, named))
            return ANSWERED
        return self._routes(request, response)


def _with_rank(request: HttpRequest, rank: bytes) -> HttpRequest:
    by_name = None if request.by_name is None else {**request.by_name, _RANK: rank}
    return replace(request, headers=[*request.headers, (_RANK, rank)], by_name=by_name)


def _other_rank(port: int | None, rank: int, named: bytes) -> RequestRejected:
    return RequestRejected(
        f"port {port} is that of engine {rank}, the request is for engine "
        f"{named.decode('latin-1')}: send it to that engine's port",
        param="data_parallel_rank",
    )


class PortOverview:
    """Answers at one port for all of them: 200 where every engine serves."""

    def __init__(self, facts: ServerFacts) -> None:
        """Tell what *facts* say, which have to be about all engines."""
        probes = {(method, path): handler for method, path, handler in Probes(facts)}
        # vLLM's own supervisor calls it this way as well.
        probes["GET", "/readyz"] = probes["GET", "/ready"]
        self._probes = probes

    def __call__(self, request: HttpRequest, response: ResponseWriter) -> Awaitable[None]:
        probe = self._probes.get((request.method, request.path))
        if probe is not None:
            return probe(request, response)
        response.respond(404, b'{"detail":"Not Found"}')
        return ANSWERED

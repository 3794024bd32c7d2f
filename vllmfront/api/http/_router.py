"""From method and path to a handler."""

from collections.abc import Awaitable

from vllmfront.api.http._message import Handler, HttpRequest, ResponseWriter


class Router:
    """A handler that passes each request on to the handler of its method and path.

    A known path asked with another method is 405 with ``Allow``, an unknown path goes to the
    fallback or is 404; both have an empty body, as the peer's. Handlers of GET answer HEAD too:
    the server keeps the body back.
    """

    def __init__(self, *, fallback: Handler | None = None) -> None:
        self._routes: dict[tuple[str, str], Handler] = {}
        self._allow: dict[str, bytes] = {}
        self._fallback = _not_found if fallback is None else fallback

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Let *handler* answer *method* on exactly *path*.

        Raises:
            ValueError: The route exists already.
        """
        methods = ("GET", "HEAD") if method == "GET" else (method,)
        for each in methods:
            if (each, path) in self._routes:
                raise ValueError(f"{each} {path} has a handler already")
            self._routes[each, path] = handler
        known = self._allow.get(path)
        names = ",".join(methods).encode()
        self._allow[path] = names if known is None else known + b"," + names

    def allowed(self, path: str) -> bytes | None:
        """Return the value of ``Allow`` for *path*, or None: nothing is there."""
        return self._allow.get(path)

    def __call__(self, request: HttpRequest, response: ResponseWriter, /) -> Awaitable[None]:
        handler = self._routes.get((request.method, request.path))
        if handler is None:
            handler = self._refuse if request.path in self._allow else self._fallback
        return handler(request, response)

    async def _refuse(self, request: HttpRequest, response: ResponseWriter) -> None:
        allow = [(b"allow", self._allow[request.path])]
        response.respond(405, b"", content_type=b"", headers=allow)


async def _not_found(_request: HttpRequest, response: ResponseWriter) -> None:
    response.respond(404, b"", content_type=b"")

"""Routes of which some are not for those who come here."""

from collections.abc import Awaitable, Collection

from vllmfront.api.http import HttpRequest, ResponseWriter, Router


class Hidden:
    """A handler that knows nothing of *paths*, which *router* leads to."""

    def __init__(self, router: Router, paths: Collection[str]) -> None:
        self._router = router
        self._paths = frozenset(paths)
        self._nowhere = Router()

    def __call__(self, request: HttpRequest, response: ResponseWriter, /) -> Awaitable[None]:
        handler = self._nowhere if request.path in self._paths else self._router
        return handler(request, response)

    def allowed(self, path: str) -> bytes | None:
        """Return the value of ``Allow`` for *path*, or None: nothing is there."""
        return None if path in self._paths else self._router.allowed(path)

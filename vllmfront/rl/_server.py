"""One server: its control routes as calls, with what is safe to repeat repeated."""

import math
from collections.abc import Mapping
from typing import Any

import anyio
import attrs
import httpx

from vllmfront.rl._errors import CallFailed, ServerUnreachable, error_of_answer


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """How often a call that may be repeated is repeated, and after what time."""

    retries: int = attrs.field(default=3, validator=attrs.validators.ge(0))
    base: float = attrs.field(default=0.25, validator=attrs.validators.gt(0))
    """Seconds before the first repetition; doubled before each further one."""

    cap: float = attrs.field(default=5.0, validator=attrs.validators.gt(0))

    def delay(self, attempt: int, retry_after: float | None) -> float:
        """Return the seconds to wait after try number *attempt*, from 0."""
        if retry_after is not None:
            return min(retry_after, self.cap)
        return min(self.base * 2.0**attempt, self.cap)


@attrs.frozen
class Server:
    """The control routes of the server at *url*."""

    url: str
    http: httpx.AsyncClient
    policy: RetryPolicy

    async def post(
        self,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        repeatable: bool,
    ) -> Any:
        """Call one route and return the JSON of its answer, None where it has no body.

        Args:
            path: Of the route.
            params: Query parameters; those that are None are left out.
            body: What to send as JSON; None: nothing.
            repeatable: Whether doing it twice is as good as doing it once. Only such a call is
                tried again after an answer got lost. One that has not reached the server is in any
                case.

        Raises:
            CallFailed: The server refused or failed, or gave no answer.
        """
        return await self._call("POST", path, params, body, repeatable=repeatable)

    async def get(self, path: str, *, params: Mapping[str, Any] | None = None) -> Any:
        """Read one route; as ``post`` with a repeatable call."""
        return await self._call("GET", path, params, None, repeatable=True)

    async def _call(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None,
        body: object,
        *,
        repeatable: bool,
    ) -> Any:
        given = {name: value for name, value in (params or {}).items() if value is not None}
        attempt = 0
        while True:
            try:
                return await self._try(method, path, given, body)
            except _Failed as failed:
                again = (repeatable and failed.transient) or failed.never_sent
                if not again or attempt >= self.policy.retries:
                    raise failed.error from failed.__cause__
                delay = self.policy.delay(attempt, failed.retry_after)
            attempt += 1
            await anyio.sleep(delay)

    async def _try(self, method: str, path: str, params: Mapping[str, Any], body: object) -> Any:
        try:
            response = await self.http.request(
                method, f"{self.url}{path}", params=params, json=body
            )
        except httpx.TransportError as lost:
            reason = f"no answer: {str(lost) or type(lost).__name__}"
            raise _Failed(
                ServerUnreachable(reason, server=self.url, call=path),
                transient=True,
                never_sent=isinstance(lost, httpx.ConnectError | httpx.ConnectTimeout),
            ) from lost
        if response.is_success:
            return response.json() if response.content else None
        error = error_of_answer(
            self.url, path, response.status_code, _error_object(response), response.text[:500]
        )
        raise _Failed(
            error,
            transient=response.status_code in {502, 503},
            retry_after=_seconds(response.headers.get("retry-after")),
        )


class _Failed(Exception):
    """A try that failed, and whether there may be another."""

    def __init__(
        self,
        error: CallFailed,
        *,
        transient: bool,
        never_sent: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(error)
        self.error = error
        self.transient = transient
        self.never_sent = never_sent
        self.retry_after = retry_after


def _error_object(response: httpx.Response) -> Mapping[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header or "nan")
    except ValueError:
        return None
    return None if math.isnan(seconds) or seconds < 0 else seconds

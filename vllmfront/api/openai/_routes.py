"""The inference routes together, as handlers."""

from collections.abc import Iterator

import trio

from vllmfront.api.http import Handler
from vllmfront.api.metrics import InferenceMetrics
from vllmfront.api.openai._chat import ChatCompletions
from vllmfront.api.openai._completions import Completions
from vllmfront.api.openai._edge import InferenceRoute, TextRoute
from vllmfront.api.openai._ends import RequestEnds
from vllmfront.api.openai._gate import Gate, GateLimits, ServiceCounts
from vllmfront.api.openai._held_heads import HeldHeads
from vllmfront.api.openai._keep_alive import KeepAlives, serve_waiting
from vllmfront.api.openai._offload import Offload
from vllmfront.api.openai._parts import RouteParts
from vllmfront.api.openai._service import ServiceSlot
from vllmfront.api.openai._tokenize import Detokenize, Tokenize


class OpenAiRoutes:
    """Handlers that serve what is in *slot*, from before a model is there."""

    def __init__(
        self,
        slot: ServiceSlot,
        *,
        limits: GateLimits | None = None,
        metrics: InferenceMetrics | None = None,
        keep_alive_interval: float = 0.0,
        service: ServiceCounts | None = None,
    ) -> None:
        """Make the handlers.

        Args:
            slot: Where the model will be.
            limits: Which requests are let in; None: all.
            metrics: Where to count what becomes of them.
            keep_alive_interval: Seconds of silence after which streams get a comment; 0: never.
                With another value ``serve_timers`` has to run.
            service: Counts what other processes of this server let in, if there are any.
        """
        offload = Offload()
        metrics = metrics or InferenceMetrics()
        gate, ends = Gate(limits, service), RequestEnds(metrics)
        metrics.gate = gate.statistics
        self._lag = gate.lag
        self._parts = parts = RouteParts(
            slot=slot,
            offload=offload,
            heads=HeldHeads(),
            keep_alives=KeepAlives(keep_alive_interval) if keep_alive_interval > 0 else None,
        )
        self._handlers: dict[tuple[str, str], Handler] = {
            ("POST", "/v1/chat/completions"): InferenceRoute(
                slot, gate, ends, ChatCompletions(parts)
            ),
            ("POST", "/v1/completions"): InferenceRoute(slot, gate, ends, Completions(parts)),
            ("POST", "/tokenize"): TextRoute(slot, gate, ends, Tokenize(slot, offload)),
            ("POST", "/detokenize"): TextRoute(slot, gate, ends, Detokenize(slot, offload)),
        }

    def __iter__(self) -> Iterator[tuple[str, str, Handler]]:
        """Yield method, path and handler of each route."""
        for (method, path), handler in self._handlers.items():
            yield method, path, handler

    async def serve_timers(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Do for all streams what takes time, and watch the loop, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._parts.heads.serve)
            await nursery.start(self._lag.serve)
            await nursery.start(serve_waiting, self._parts.slot)
            if self._parts.keep_alives is not None:
                await nursery.start(self._parts.keep_alives.serve)
            task_status.started()

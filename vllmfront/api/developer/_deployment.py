"""What the engines of the deployment are, and that their number does not change."""

from collections.abc import Iterator
from typing import Any

import attrs
import trio

from vllmfront.api.developer._question import body_of, optional
from vllmfront.api.developer._route import Answer
from vllmfront.api.http import HttpRequest
from vllmfront.engine import EngineClient
from vllmfront.errors import FeatureNotServed, RequestRejected


class DeploymentRoutes:
    """Iterate for method, path and what answers it."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    def __iter__(self) -> Iterator[tuple[str, str, Answer]]:
        yield "GET", "/kv_event_sources", self.event_sources
        yield "POST", "/scale_elastic_ep", self.scale
        yield "POST", "/is_scaling_elastic_ep", self.is_scaling

    async def event_sources(self, _request: HttpRequest) -> Any:
        """Tell where engines publish what becomes of cached blocks, by rank."""
        await trio.lowlevel.checkpoint()
        return {
            str(rank): attrs.asdict(one.kv_events_config)
            for rank, one in self._client.info.registrations.items()
            if one.kv_events_config is not None
        }

    async def scale(self, request: HttpRequest) -> Any:
        """Do nothing where there are as many engines as asked for already."""
        body = await body_of(request)
        wanted = optional(body, "new_data_parallel_size", int, what="a whole number")
        drain = optional(body, "drain_timeout", int, what="a whole number")
        if wanted is None:
            raise RequestRejected(
                "new_data_parallel_size is required", param="new_data_parallel_size"
            )
        for name, value in (("new_data_parallel_size", wanted), ("drain_timeout", drain)):
            if value is not None and value <= 0:
                raise RequestRejected(f"{name} must be a positive integer", param=name)
        present = len(self._client.snapshot().ranks)
        if wanted != present:
            raise FeatureNotServed(
                f"The number of engines is {present} and cannot become {wanted} while the server "
                "runs: engines of the released versions change their number only through Ray or "
                "an external balancer, with messages that no frontend but vLLM's Python server "
                "sends. Start the server anew with --data-parallel-size."
            )
        return {"message": f"Scaled to {wanted} data parallel engines"}

    async def is_scaling(self, _request: HttpRequest) -> Any:
        await trio.lowlevel.checkpoint()
        return {
            "is_scaling_elastic_ep": False,
            "phase": "idle",
            "epoch": None,
            "error": None,
            "requested_data_parallel_size": None,
        }

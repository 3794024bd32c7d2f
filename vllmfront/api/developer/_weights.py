"""New weights, as trainers send them: ``/init_weight_transfer_engine`` and what follows."""

from collections.abc import Iterator, Mapping
from typing import Any

from vllmfront.api.developer._pauses import owner_of
from vllmfront.api.developer._question import Query, body_of, member, optional
from vllmfront.api.developer._route import Answer
from vllmfront.api.http import HttpRequest
from vllmfront.control import ControlPlane
from vllmfront.errors import ControlCallFailed, MalformedRequest

_ACTIONS = ("checksum", "reset", "compare")


class WeightRoutes:
    """Iterate for method, path and what answers it."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._weights = plane.weights

    def __iter__(self) -> Iterator[tuple[str, str, Answer]]:
        yield "POST", "/init_weight_transfer_engine", self.init
        yield "POST", "/shutdown_weight_transfer_engine", self.shutdown
        yield "POST", "/start_weight_update", self.start
        yield "POST", "/start_draft_weight_update", self.start_draft
        yield "POST", "/update_weights", self.update
        yield "POST", "/finish_weight_update", self.finish
        yield "POST", "/update_weight_version", self.name
        yield "GET", "/weight_info", self.info
        yield "POST", "/weight_checker", self.check
        yield "GET", "/get_world_size", self.world_size

    async def init(self, request: HttpRequest) -> Any:
        body = await body_of(request)
        await self._weights.init(member(body, "init_info", dict, what="an object"))
        return {"message": "Weight transfer initialized"}

    async def shutdown(self, _request: HttpRequest) -> Any:
        await self._weights.shutdown()
        return {"message": "Weight transfer shut down"}

    async def start(self, request: HttpRequest) -> Any:
        await self._weights.start(owner=owner_of(request, Query(request)))
        return {"message": "Weight update started"}

    async def start_draft(self, request: HttpRequest) -> Any:
        await self._weights.start(draft=True, owner=owner_of(request, Query(request)))
        return {"message": "Draft weight update started"}

    async def update(self, request: HttpRequest) -> Any:
        body = await body_of(request)
        info = member(body, "update_info", (dict, list), what="an object, or a list of objects")
        owner = owner_of(request, Query(request))
        await self._weights.update(checked_update(info), owner=owner)
        return {"message": "Weights updated"}

    async def finish(self, request: HttpRequest) -> Any:
        body = await body_of(request, required=False)
        version = optional(body, "weight_version", str, what="a string")
        await self._weights.finish(version, owner=owner_of(request, Query(request)))
        return {"message": "Weight update finished"}

    async def name(self, request: HttpRequest) -> Any:
        """Give the present weights another name."""
        body = await body_of(request)
        label = member(body, "new_version", str, what="a string")
        if not label:
            raise MalformedRequest.misfit("`new_version` must not be empty", "new_version")
        await self._weights.set_version(label)
        return {"success": True, "new_version": label}

    async def info(self, _request: HttpRequest) -> Any:
        """Tell what the weights are called; and, where it is so, that they are not what they were.

        The reference has the first member alone.
        """
        version = await self._weights.version()
        answer: dict[str, Any] = {"weight_version": version.label}
        if version.stale:
            answer |= {
                "stale": True,
                "stale_engines": list(version.stale),
                "expected_weight_version": version.expected,
            }
        if version.incomplete:
            answer |= {"incomplete": True, "incomplete_engines": list(version.incomplete)}
        return answer

    async def check(self, request: HttpRequest) -> Any:
        """Compute checksums of the weights, compare them, or set all weights to zero."""
        body = await body_of(request)
        action = member(body, "action", str, what=f"one of {', '.join(_ACTIONS)}")
        if action not in _ACTIONS:
            raise MalformedRequest.misfit(f"`action` must be one of {', '.join(_ACTIONS)}")
        baseline = optional(body, "baseline", dict, what="an object of strings")
        if action == "reset":
            await self._plane.calls.order_workers("weight_checker", "reset_weights")
            return {"status": "reset"}
        if action == "compare" and baseline is None:
            raise MalformedRequest.misfit("action='compare' requires a 'baseline' object")
        checksums = await self._checksums()
        if action == "checksum":
            return {"checksums": checksums}
        return compared(checksums, baseline)

    async def world_size(self, request: HttpRequest) -> Any:
        """Tell how many workers there are, in all engines or in each of them."""
        everywhere = Query(request).flag("include_dp", default=True)
        registrations = self._plane.client.info.registrations.values()
        sizes = [one.world_size or 1 for one in registrations]
        if not sizes:
            raise self._plane.client.unavailable()
        return {"world_size": sum(sizes) if everywhere else sizes[0]}

    async def _checksums(self) -> dict[str, str]:
        """Return the checksums of all workers of all engines.

        Raises:
            ControlCallFailed: Two of them have the same name.
        """
        checksums: dict[str, str] = {}
        answers = await self._plane.calls.order("weight_checker", "compute_weight_checksums")
        for workers in answers:
            for worker in workers:
                if twice := checksums.keys() & worker.keys():
                    raise ControlCallFailed(
                        f"Duplicate weight checksum keys: {sorted(twice)}",
                        phase="weight_checker",
                        failures={},
                    )
                checksums.update(worker)
        return checksums


def checked_update(info: Any) -> Any:
    """Return *info* if it is what ``/update_weights`` takes.

    Raises:
        MalformedRequest: It is a list with something else than objects.
    """
    if isinstance(info, list) and not all(isinstance(one, dict) for one in info):
        raise MalformedRequest.misfit("`update_info` must hold an object for each worker")
    return info


def compared(checksums: Mapping[str, str], baseline: Mapping[str, str]) -> dict[str, Any]:
    """Return whether *checksums* are those of *baseline*, and which are not."""
    mismatches = sorted(
        key for key in checksums.keys() | baseline.keys() if checksums.get(key) != baseline.get(key)
    )
    return {"match": not mismatches, "mismatches": mismatches}

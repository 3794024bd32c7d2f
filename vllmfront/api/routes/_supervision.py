"""What runs inside the server, for operators: supervisors, their children, and the engines."""

from typing import Any

import attrs

from vllmfront.api.routes._health import HealthReport, age_fields
from vllmfront.engine import ClientSnapshot, RankSnapshot
from vllmfront.supervisor import ChildSnapshot, SupervisorSnapshot


@attrs.frozen(kw_only=True)
class SupervisionReport:
    """The server's inside at one moment."""

    health: HealthReport
    tree: SupervisorSnapshot
    engines: ClientSnapshot
    tasks: int
    """How many tasks the event loop has: a server that is idle has always as many."""

    def json_fields(self, now: float, wall: float) -> dict[str, Any]:
        """Return what the JSON body of ``/supervisor`` says.

        Args:
            now: The present, by the clock of the snapshots.
            wall: The present, in seconds since 1970.
        """
        return {
            "health": self.health.json_fields(now, wall),
            "tree": _tree(self.tree, now, wall),
            "engines": _engines(self.engines),
            "tasks": self.tasks,
        }


def _tree(tree: SupervisorSnapshot, now: float, wall: float) -> dict[str, Any]:
    return {
        "name": tree.name,
        "state": tree.state.name.lower(),
        **_age(tree.since, now, wall),
        "strategy": tree.strategy.name.lower(),
        "restarts": tree.restarts,
        "intensity": tree.intensity,
        "period": tree.period,
        "next_try": _until(tree.next_try, now),
        "children": [_child(child, now, wall) for child in tree.children],
    }


def _child(child: ChildSnapshot, now: float, wall: float) -> dict[str, Any]:
    return {
        "name": child.name,
        "state": child.state.name.lower(),
        **_age(child.since, now, wall),
        "generation": child.generation,
        "restarts": child.restarts,
        "next_try": _until(child.next_try, now),
        "first_failure": child.first_failure,
        "last_failure": child.last_failure,
        "tree": None if child.tree is None else _tree(child.tree, now, wall),
    }


def _age(since: float | None, now: float, wall: float) -> dict[str, Any]:
    return {"since": None, "seconds": None} if since is None else age_fields(since, now, wall)


def _until(due: float | None, now: float) -> float | None:
    return None if due is None else round(max(0.0, due - now), 3)


def _engines(client: ClientSnapshot) -> dict[str, Any]:
    return {
        "state": client.state.value,
        "seconds": round(client.seconds_in_state, 3),
        "error": client.error,
        "seconds_until_ready": _rounded(client.seconds_until_ready),
        "requests": client.requests,
        "waiting": client.waiting,
        "engine_requests": client.engine_requests,
        "resent_requests": client.resent_requests,
        "continued_requests": client.continued_requests,
        "pending_calls": client.pending_calls,
        "ranks": [_rank(rank) for rank in client.ranks],
    }


def _rank(rank: RankSnapshot) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "state": rank.state.value,
        "seconds": round(rank.seconds_in_state, 3),
        "error": rank.error,
        "incarnation": rank.incarnation,
        "in_flight": rank.in_flight,
        "weight_version": rank.weight_version,
        "load_seconds": _rounded(rank.load_seconds),
        "seconds_since_output": _rounded(rank.seconds_since_output),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)

"""What the control plane passes on to that of the next process, which takes its place.

A pause goes on there, with what is left of its lease, and so does what is known of weights. Event
loops of two processes have no clock in common, so times travel in seconds since 1970.
"""

import time
from collections.abc import Mapping
from typing import Any

import attrs
import trio

from vllmfront.control._sync_state import SyncState
from vllmfront.control._weight_ledger import WeightLedger
from vllmfront.engine.pause import Hold, HoldKind, PauseMode, PausePhase, PauseWindow

_RANKS = ("stale", "incomplete_models", "incomplete_drafts")
"""Members of a ledger that are sets, which the line between processes does not have."""


@attrs.frozen(kw_only=True)
class WeightLegacy:
    """What is known of the engines' weights, and of the connection to a trainer."""

    state: SyncState
    ledger: WeightLedger


@attrs.frozen(kw_only=True)
class ControlLegacy:
    """The state of a control plane; times are by the event loop's clock of this process."""

    holds: tuple[Hold, ...] = ()
    lease_seconds: float | None = None
    """Of the pause, if there is one; None: it has no end."""

    lease_left: float | None = None
    lapsed: bool = False
    weights: WeightLegacy | None = None


def encode_control(legacy: ControlLegacy) -> dict[str, Any]:
    """Return the plain form of *legacy*."""
    holds = [
        {
            **attrs.asdict(hold, filter=lambda field, _: field.name != "since", recurse=False),
            "kind": hold.kind.value,
            "mode": hold.mode.value,
            "asleep": sorted(hold.asleep),
        }
        for hold in legacy.holds
    ]
    return {
        **attrs.asdict(legacy, recurse=False),
        "at": None if legacy.lease_left is None else time.time(),
        "holds": holds,
        "weights": None if legacy.weights is None else _encode_weights(legacy.weights),
    }


def _encode_weights(legacy: WeightLegacy) -> dict[str, Any]:
    ledger = attrs.asdict(legacy.ledger)
    for name in _RANKS:
        ledger[name] = sorted(ledger[name])
    return {"state": legacy.state.value, "ledger": ledger}


def decode_control(fields: Mapping[str, Any]) -> ControlLegacy:
    """Read what ``encode_control`` has made in another process.

    Raises:
        KeyError: Something is missing; as TypeError and ValueError: it makes no sense.
    """
    holds = tuple(
        Hold(
            **{
                **each,
                "kind": HoldKind(each["kind"]),
                "mode": PauseMode(each["mode"]),
                "since": trio.current_time() - (time.time() - each["wall"]),
                "asleep": frozenset(each["asleep"]),
            }
        )
        for each in fields["holds"]
    )
    weights, left = fields["weights"], fields["lease_left"]
    if left is not None:
        left = max(0.0, left - max(0.0, time.time() - fields["at"]))
    return ControlLegacy(
        holds=holds,
        lease_seconds=fields["lease_seconds"],
        lease_left=left,
        lapsed=fields["lapsed"],
        weights=None if weights is None else _decode_weights(weights),
    )


def _decode_weights(fields: Mapping[str, Any]) -> WeightLegacy:
    ranks = {name: set(fields["ledger"][name]) for name in _RANKS}
    ledger = WeightLedger(**{**fields["ledger"], **ranks})
    return WeightLegacy(state=SyncState(fields["state"]), ledger=ledger)


def pause_obstacle(window: PauseWindow | None) -> str | None:
    """Return why *window* cannot be passed on just now; None where it can."""
    if window is None or window.phase in {PausePhase.PAUSED, PausePhase.CLOSED}:
        return None
    return f"generation is {window.phase.value}; try again when that is done"

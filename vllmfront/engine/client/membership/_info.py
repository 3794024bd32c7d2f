"""What the engines of a client are, and how they fare."""

from collections.abc import Iterable, Mapping

import attrs

from vllmfront.engine.client.membership._state import EngineState, RankState
from vllmfront.engine.pause import HoldSnapshot
from vllmfront.engine.wire import Registration


@attrs.frozen(kw_only=True)
class EngineInfo:
    """All engines that have joined, summed up; None where none of them said."""

    max_model_len: int | None
    """The least of all."""

    num_gpu_blocks: int | None
    """The sum over all."""

    block_size: int | None
    vllm_version: str | None
    """Of the lowest rank, like the rest."""

    registrations: Mapping[int, Registration]
    """By rank; of engines that died, the last one."""

    @classmethod
    def of(cls, registrations: Mapping[int, Registration]) -> "EngineInfo":
        """Sum up *registrations*, which are in the order of ranks."""
        every = list(registrations.values())
        blocks = _known(one.num_gpu_blocks for one in every)
        return cls(
            max_model_len=min(_known(one.max_model_len for one in every), default=None),
            num_gpu_blocks=sum(blocks) if blocks else None,
            block_size=next(iter(_known(one.block_size for one in every)), None),
            vllm_version=next((one.vllm_version for one in every if one.vllm_version), None),
            registrations=registrations,
        )


def _known(values: Iterable[int | None]) -> list[int]:
    return [value for value in values if value is not None]


@attrs.frozen(kw_only=True)
class RankSnapshot:
    """One engine at one moment."""

    rank: int
    state: RankState
    seconds_in_state: float
    error: str | None
    """Why it is not READY, where that is known."""

    load_seconds: float | None
    """How long its last process took to load."""

    incarnation: int
    """How many processes have said HELLO under this rank."""

    weight_version: str = "default"
    """What its last output was made by."""

    in_flight: int
    seconds_since_output: float | None
    """None where it never sent any."""


@attrs.frozen(kw_only=True)
class ClientSnapshot:
    """A client at one moment."""

    state: EngineState
    seconds_in_state: float
    error: str | None
    """What ended the last READY, while nothing serves."""

    seconds_until_ready: float | None
    """Until an engine that does not serve may, if that is known."""

    ranks: tuple[RankSnapshot, ...]
    requests: int
    """Streams in flight; one with several choices counts once."""

    waiting: int
    """Those of them that wait for an engine, in part at least."""

    engine_requests: int
    """Engine requests in flight, those that wait included."""

    pending_calls: int
    deadlines: int
    """Engine requests that must end by a certain time."""

    resent_requests: int
    """Sent again since the start, because their engine was lost."""

    continued_requests: int
    """As many as went on elsewhere with the tokens that they had."""

    holds: tuple[HoldSnapshot, ...] = ()
    """What keeps all requests from the engines now."""

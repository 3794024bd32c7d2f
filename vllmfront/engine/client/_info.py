"""What the engines of a client are, and how they fare."""

from collections.abc import Iterable, Mapping

import attrs

from vllmfront.engine.client._state import EngineState
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
    state: EngineState
    error: str | None
    incarnation: int
    """How many processes have said HELLO under this rank."""

    in_flight: int
    seconds_since_output: float | None
    """None where it never sent any."""


@attrs.frozen(kw_only=True)
class ClientSnapshot:
    """A client at one moment."""

    state: EngineState
    error: str | None
    ranks: tuple[RankSnapshot, ...]
    requests: int
    """Streams in flight; one with several choices counts once."""

    engine_requests: int
    pending_calls: int

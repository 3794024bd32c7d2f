"""Ranks to choose from."""

import attrs

from vllmfront.engine import EngineRequest, SamplingParams
from vllmfront.engine.routing import RankLoad


@attrs.define(eq=False)
class Rank:
    """A rank, as far as routing looks at it."""

    rank: int
    load: RankLoad = attrs.field(factory=RankLoad)
    cache_tokens: int = 0

    def send(self, count: int) -> None:
        """Have *count* requests more in flight."""
        for _ in range(count):
            self.load.send()


def ranks(count: int) -> list[Rank]:
    return [Rank(rank) for rank in range(count)]


def request(tokens: range, **fields: str | None) -> EngineRequest:
    return EngineRequest(
        request_id="r",
        prompt_token_ids=list(tokens),
        sampling=SamplingParams(max_tokens=1),
        **fields,  # type: ignore[arg-type] # texts
    )

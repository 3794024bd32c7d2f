"""Sampling parameters that many requests share: checked and encoded once."""

import attrs

from vllmfront.engine._request import SamplingParams
from vllmfront.engine.client.requests._continuation import may_continue_sampling
from vllmfront.engine.wire import pack_sampling

_MOST = 256
"""Entries kept; clients of one service share a handful."""

_CANDIDATES = 16
"""Parameters that were seen once, lately; most are never seen again."""

_MOST_IDS = 256
"""Ids in one of their lists: more would cost more to keep than to check."""

_IMMUTABLE = frozenset({int, float, bool, tuple, type(None)})


@attrs.frozen
class KnownForm:
    """What was found out about parameters that many requests share."""

    encoded: bytes
    """Their wire form."""

    continuable: bool
    """Whether requests with them can go on elsewhere when their engine is lost."""


class KnownParams:
    """Remembers parameters by identity, if nobody can change them, and what follows from them.

    What is in here has passed the guard under the present limits: ``clear`` it when they change.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[SamplingParams, KnownForm]] = {}
        self._candidates: dict[int, SamplingParams] = {}

    def find(self, params: SamplingParams | None) -> KnownForm | None:
        """Return what is known about *params*, None when they have to be checked."""
        # An entry holds its parameters, so no other object can have their address.
        entry = self._known.get(id(params))
        return None if entry is None else entry[1]

    def add(self, params: SamplingParams) -> KnownForm | None:
        """Remember *params*, which have just passed the guard, if they come a second time.

        Returns:
            What is known about them now, None if they are not kept.
        """
        if self._candidates.pop(id(params), None) is None:
            if _can_be_shared(params):
                if len(self._candidates) >= _CANDIDATES:
                    del self._candidates[next(iter(self._candidates))]
                self._candidates[id(params)] = params
            return None
        if len(self._known) >= _MOST:
            self._known.clear()
        form = KnownForm(pack_sampling(params), may_continue_sampling(params))
        self._known[id(params)] = params, form
        return form

    def clear(self) -> None:
        self._known.clear()
        self._candidates.clear()


_FIELDS = SamplingParams.__struct_fields__


def _can_be_shared(params: SamplingParams) -> bool:
    """Tell whether nobody can change *params*, and the guard's verdict holds for all prompts."""
    if params.routed_experts_prompt_start or params.prompt_logprob_start is not None:
        return False
    return all(
        type(value) in _IMMUTABLE
        and (
            type(value) is not tuple or (len(value) <= _MOST_IDS and set(map(type, value)) <= {int})
        )
        for value in (getattr(params, name) for name in _FIELDS)
    )

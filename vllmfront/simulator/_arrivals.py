"""Requests that arrive, with what the script has for them."""

import zlib
from collections import deque

from vllmfront.engine.wire import Add
from vllmfront.simulator._config import SimulatorConfig
from vllmfront.simulator._sampling import Sampler
from vllmfront.simulator._sequence import Sequence
from vllmfront.simulator._tokens import TokenSource


class Arrivals:
    """Counts requests and the uses of each rule of the script."""

    def __init__(self, config: SimulatorConfig, source: TokenSource) -> None:
        self._config = config
        self._source = source
        self._arrived = 0
        self._spent = [0] * len(config.script.rules)

    def sequence(self, add: Add, now: float, origin: int) -> Sequence:
        """Return the newest request, with the script that it matches.

        Args:
            add: The request.
            now: When it came.
            origin: The token source's state before its prompt.
        """
        request = add.request
        assert request.sampling is not None
        state = origin
        for token in request.prompt_token_ids:
            state = self._source.extend(state, token)
        nth, self._arrived = self._arrived, self._arrived + 1
        adapter = f"{request.lora.name}\0{request.lora.path}" if request.lora else ""
        salt = f"{request.cache_salt or ''}\0{adapter}"
        sequence = Sequence(
            request_id=add.internal_id,
            request=request,
            client=add.client_index,
            nth=nth,
            salt=zlib.crc32(salt.encode()),
            params=request.sampling,
            sampler=Sampler(self._source, request.sampling, state, nth, self._config.eos_chance),
            origin=origin,
            state=state,
        )
        self._give_script(sequence, now)
        return sequence

    def _give_script(self, sequence: Sequence, now: float) -> None:
        prompt = sequence.request.prompt_token_ids
        for index, rule in enumerate(self._config.script.rules):
            if rule.times is not None and self._spent[index] >= rule.times:
                continue
            if rule.matches(sequence.request_id, prompt, sequence.nth):
                self._spent[index] += 1
                sequence.said = deque(rule.tokens)
                sequence.acts = deque(rule.acts)
                if not rule.tokens and rule.acts:
                    sequence.not_before = now + rule.acts[0].after
                return

"""What a simulated pooling model returns: a unit vector, fixed by the prompt."""

import math
import random
import struct

from vllmfront.engine import EngineRequest
from vllmfront.engine.wire import Tensor
from vllmfront.simulator._tokens import TokenSource


def embed(request: EngineRequest, source: TokenSource, size: int) -> Tensor:
    """Return the vector of *request*'s prompt, float32, ``[size]``."""
    state = source.start()
    for token in request.prompt_token_ids:
        state = source.extend(state, token)
    numbers = random.Random(state)  # noqa: S311  # repeatable, not secret
    vector = [numbers.gauss(0.0, 1.0) for _ in range(size)]
    length = math.sqrt(sum(value * value for value in vector)) or 1.0
    scaled = [value / length for value in vector]
    return Tensor("float32", (size,), struct.pack(f"<{size}f", *scaled))

"""Several choices for one prompt: one engine request each."""

from collections.abc import Iterable

from msgspec.structs import replace

from vllmfront.engine._request import GREEDY_BELOW, EngineRequest, SamplingParams
from vllmfront.engine.guard import check_integer
from vllmfront.errors import RequestRejected

_INT64 = 1 << 64
_INT64_MAX = (1 << 63) - 1


def fan_out(request: EngineRequest, most: int) -> Iterable[EngineRequest]:
    """Give one request a choice, at most *most*, in order; itself alone when ``n`` is 1.

    Choice *i* is called ``<i>_<id>`` and draws with the request's seed plus *i*.

    Raises:
        RequestRejected: ``n`` is out of range, or greedy sampling would make all choices equal.
    """
    sampling = request.sampling
    if sampling is None:
        return [request]
    n = sampling.n
    if n == 1 and type(n) is int:
        return [request]
    check_integer(n, "n", 1)
    if n > most:
        raise RequestRejected(f"n must be at most {most}, got {n}.", param="n")
    check_choices(n, sampling.temperature)
    if request.resumable:
        raise RequestRejected("n must be 1 with streaming input.", param="n")
    # Made one by one, as they are taken: there may be very many.
    return (_choice(request, sampling, index) for index in range(n))


def check_choices(n: int, temperature: float) -> None:
    """Refuse several choices where all of them would be the same.

    Raises:
        RequestRejected: *temperature* makes sampling greedy.
    """
    if n > 1 and temperature < GREEDY_BELOW:
        raise RequestRejected(f"n must be 1 when using greedy sampling, got {n}.", param="n")


def _choice(request: EngineRequest, sampling: SamplingParams, index: int) -> EngineRequest:
    seed = sampling.seed
    # Engines take -1 for no seed, so it stays one; the largest seeds wrap around.
    if seed is not None and seed != -1:
        seed += index
        if seed > _INT64_MAX:
            seed -= _INT64
    return replace(
        request,
        request_id=f"{index}_{request.request_id}",
        sampling=replace(sampling, n=1, seed=seed),
    )

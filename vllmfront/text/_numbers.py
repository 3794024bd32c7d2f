"""The real numbers of a sampling request: defaults resolved, ranges checked, rounded to 32 bits."""

from typing import TypedDict, cast

from vllmfront.errors import RequestRejected
from vllmfront.models import GenerationDefaults
from vllmfront.text._debug import display_f32
from vllmfront.text._json import f32
from vllmfront.text._request import SamplingRequest


class Numbers(TypedDict):
    """The real numbers of ``SamplingParams``."""

    temperature: float
    top_p: float
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float


def resolve_numbers(request: SamplingRequest, defaults: GenerationDefaults) -> Numbers:
    """Return the real numbers by name, rounded to 32 bits as the peer has them.

    Raises:
        RequestRejected: One is out of range.
    """
    values: dict[str, float] = {}
    for name, neutral in _NEUTRAL.items():
        value = getattr(request, name)
        if value is None:
            value = getattr(defaults, name)
        values[name] = neutral if value is None else _checked(name, f32(value))
    return cast("Numbers", values)


_NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
_RANGES = {
    "temperature": (0.0, 2.0, "[0, 2]"),
    "top_p": (0.0, 1.0, "(0, 1]"),
    "min_p": (0.0, 1.0, "[0, 1]"),
    "frequency_penalty": (-2.0, 2.0, "[-2, 2]"),
    "presence_penalty": (-2.0, 2.0, "[-2, 2]"),
    "repetition_penalty": (0.0, float("inf"), "(0, inf)"),
}


def _checked(name: str, value: float) -> float:
    low, high, shown = _RANGES[name]
    if value - value != 0.0:  # an infinity or NaN
        raise RequestRejected(f"{name} must be a finite number, got {display_f32(value)}")
    if not low <= value <= high or (value == low and shown[0] == "("):
        raise RequestRejected(f"{name} must be in {shown}, got {display_f32(value)}")
    return value


def resolve_top_k(request: SamplingRequest, defaults: GenerationDefaults) -> int:
    """Return the number of candidates; 0 is all of them.

    Raises:
        RequestRejected: It is below -1.
    """
    value = request.top_k
    if value is None:
        value = defaults.top_k or 0
    if value < -1:
        raise RequestRejected(f"top_k: top_k must be -1, 0, or a positive integer, got {value}")
    return max(value, 0)

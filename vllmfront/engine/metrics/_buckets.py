"""Upper bounds of the histograms, as the reference has them. ``+Inf`` is implied."""

FIRST_TOKEN_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip

TOKEN_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip

REQUEST_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip

CACHE_BLOCK_SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
    120.0, 300.0, 600.0, 1200.0, 1800.0,
)  # fmt: skip

ITERATION_TOKENS = (1.0, *(float(2**power) for power in range(3, 15)))
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


def token_counts(maximum: int) -> tuple[float, ...]:
    """Return the series 1, 2, 5, 10, 20, 50, ... up to and including *maximum*."""
    bounds: list[float] = []
    decade = 1
    while decade <= maximum:
        bounds += [float(decade * digit) for digit in (1, 2, 5) if decade * digit <= maximum]
        decade *= 10
    return tuple(bounds)


def defaults(max_model_len: int) -> dict[str, tuple[float, ...]]:
    """Return the bounds by family, under the names that operators override them by."""
    return {
        "request_latency": REQUEST_SECONDS,
        "time_to_first_token": FIRST_TOKEN_SECONDS,
        "inter_token_latency": TOKEN_SECONDS,
        "iteration_tokens": ITERATION_TOKENS,
        "request_params_n": CHOICES,
        "request_num_preemptions": PREEMPTIONS,
        "request_tokens": token_counts(max_model_len),
        "kv_cache_residency": CACHE_BLOCK_SECONDS,
    }


FAMILIES = tuple(defaults(1))
"""The names that operators override bounds by."""

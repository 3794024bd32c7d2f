import logging

from vllmfront.api.metrics import StatsReporter
from vllmfront.engine.metrics import RankLoadSnapshot


def load(
    *, running: int = 0, prompt: int = 0, generation: int = 0, queries: int = 0, hits: int = 0
) -> RankLoadSnapshot:
    return RankLoadSnapshot(running, 0, 0.5, prompt, generation, queries, hits)


def test_rates_are_those_of_the_interval() -> None:
    reporter = StatsReporter(0.0)
    reporter.report({0: load(running=1, prompt=100, generation=50)}, 10.0)
    line = reporter.report(
        {0: load(running=2, prompt=150, generation=250, queries=100, hits=25), 1: load(running=1)},
        20.0,
    )

    assert line.level == logging.INFO
    assert line.text == (
        "Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: 20.0 tokens/s, "
        "Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 50.0%, "
        "Prefix cache hit rate: 25.0%"
    )


def test_the_line_grows_quiet_after_two_idle_intervals() -> None:
    reporter = StatsReporter(0.0)
    levels = [reporter.report({0: load()}, 10.0 * n).level for n in range(1, 5)]

    assert levels == [logging.INFO, logging.INFO, logging.DEBUG, logging.DEBUG]
    assert reporter.report({0: load(running=1)}, 50.0).level == logging.INFO

import msgpack

from vllmfront.engine import SamplingParams
from vllmfront.engine.client.requests._known import KnownParams


def test_shared_parameters_are_found_by_identity() -> None:
    known = KnownParams()
    params = SamplingParams(max_tokens=3, stop_token_ids=(5,))
    assert known.add(params) is None
    form = known.add(params)

    assert form is not None
    assert known.find(params) is form
    assert known.find(SamplingParams(max_tokens=3, stop_token_ids=(5,))) is None
    assert msgpack.unpackb(form.encoded)["stop_token_ids"] == [5]


def test_whether_they_can_go_on_elsewhere_is_known() -> None:
    known = KnownParams()
    for params, continuable in (
        (SamplingParams(temperature=0.0), True),
        (SamplingParams(presence_penalty=0.5), False),
    ):
        known.add(params)
        form = known.add(params)

        assert form is not None
        assert form.continuable is continuable


def test_what_could_change_later_is_checked_each_time() -> None:
    known = KnownParams()
    for params in (
        SamplingParams(stop_token_ids=[5]),
        SamplingParams(logit_bias={5: 1.0}),
        SamplingParams(extra_args={"a": 1}),
        SamplingParams(bad_words_token_ids=([1],)),
    ):
        known.add(params)
        known.add(params)
        assert known.find(params) is None


def test_a_verdict_that_depends_on_the_prompt_is_not_kept() -> None:
    known = KnownParams()
    params = SamplingParams(routed_experts_prompt_start=3)
    known.add(params)

    assert known.add(params) is None


def test_new_limits_forget_all() -> None:
    known = KnownParams()
    params = SamplingParams()
    known.add(params)
    known.add(params)
    known.clear()

    assert known.find(params) is None


def test_what_is_kept_is_bounded() -> None:
    known = KnownParams()
    everything = [SamplingParams(seed=seed) for seed in range(300)]
    for params in everything:
        known.add(params)
        known.add(params)

    assert sum(known.find(params) is not None for params in everything) <= 256


def test_what_comes_once_is_never_kept() -> None:
    known = KnownParams()
    shared = SamplingParams(seed=-1)
    known.add(shared)
    known.add(shared)
    once = [SamplingParams(seed=seed) for seed in range(1000)]
    for params in once:
        known.add(params)

    assert known.find(shared) is not None
    assert not any(known.find(params) for params in once)


def test_long_lists_are_not_kept() -> None:
    known = KnownParams()
    params = SamplingParams(stop_token_ids=tuple(range(257)))
    known.add(params)

    assert known.add(params) is None

from vllmfront.simulator._prefix import PrefixCache


def test_whole_blocks_are_cached_but_never_the_last_token() -> None:
    cache = PrefixCache(block_size=4, capacity=100)
    tokens = list(range(12))
    cold = cache.cached_tokens(tokens, 0)
    cache.store(tokens, 0)

    assert cold == 0
    assert cache.cached_tokens(tokens, 0) == 8
    assert cache.cached_tokens([*tokens, 99], 0) == 12
    assert cache.cached_tokens([*tokens[:6], 99, 99, 99], 0) == 4
    assert cache.cached_tokens([99, *tokens], 0) == 0


def test_salts_keep_apart() -> None:
    cache = PrefixCache(block_size=2, capacity=100)
    cache.store([1, 2, 3], 7)

    assert cache.cached_tokens([1, 2, 3], 7) == 2
    assert cache.cached_tokens([1, 2, 3], 8) == 0


def test_the_oldest_blocks_go_first() -> None:
    cache = PrefixCache(block_size=1, capacity=2)
    cache.store([1], 0)
    cache.store([2], 0)
    cache.store([1], 0)
    cache.store([3], 0)

    assert cache.cached_tokens([1, 9], 0) == 1
    assert cache.cached_tokens([2, 9], 0) == 0


def test_clearing_forgets() -> None:
    cache = PrefixCache(block_size=1, capacity=2)
    cache.store([1], 0)
    cache.clear()

    assert cache.cached_tokens([1, 9], 0) == 0

"""Descriptors that are kept back for who must get in."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllmfront.api.http._reserve import DescriptorReserve


def descriptors() -> list[int]:
    """Return those that this process has, and the one that this took."""
    return [int(each.name) for each in Path("/proc/self/fd").iterdir()]


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Let this process open a few more descriptors than it has."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(descriptors())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_what_is_given_away_can_be_had_when_there_is_nothing_else(few_descriptors: None) -> None:
    del few_descriptors
    taken: list[int] = []
    with DescriptorReserve(2) as reserve:
        with pytest.raises(OSError, match="Too many open files"):
            take_all(taken)
        for _ in range(2):
            assert reserve.give()
            taken.append(os.open("/dev/null", os.O_RDONLY))
        assert not reserve.give()

        reserve.refill()
        assert not reserve.give(), "there is none to take back"
        os.close(taken.pop())
        reserve.refill()
        assert reserve.give()
    for descriptor in taken:
        os.close(descriptor)


def take_all(taken: list[int]) -> None:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))


def test_nothing_is_held_after_the_block() -> None:
    before = len(descriptors())
    with DescriptorReserve(3) as reserve:
        assert len(descriptors()) == before + 3

    assert not reserve.give()
    assert len(descriptors()) == before

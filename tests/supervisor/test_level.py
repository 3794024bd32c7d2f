import trio
from trio.testing import wait_all_tasks_blocked

from vllmfront.supervisor._level import Level


async def test_a_value_that_is_there_is_returned_at_once() -> None:
    with trio.fail_after(1.0):
        assert await Level(3).wait(2, 3) == 3


async def test_a_value_that_has_gone_again_is_not_missed() -> None:
    level, got = Level(0), list[int]()

    async def observe() -> None:
        got.append(await level.wait(1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(observe)
        await wait_all_tasks_blocked()
        level.set(1)
        level.set(2)

    assert got == [1]
    assert level.value == 2


async def test_each_waiter_waits_for_its_own_values() -> None:
    level, got = Level(0), list[tuple[str, int]]()

    async def observe(name: str, *wanted: int) -> None:
        got.append((name, await level.wait(*wanted)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(observe, "one", 1)
        nursery.start_soon(observe, "either", 1, 2)
        nursery.start_soon(observe, "two", 2)
        await wait_all_tasks_blocked()
        level.set(1)
        await wait_all_tasks_blocked()
        before = sorted(got)
        level.set(2)

    assert before == [("either", 1), ("one", 1)]
    assert got[-1] == ("two", 2)


async def test_a_wait_that_is_cancelled_leaves_nothing_behind() -> None:
    level = Level(0)
    with trio.move_on_after(0.0):
        await level.wait(1)

    assert level._waiters == []
    assert repr(level) == "<Level 0>"


async def test_waiting_is_a_checkpoint_even_if_the_value_is_there() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await Level(1).wait(1)

    assert scope.cancelled_caught

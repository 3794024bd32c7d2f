"""Which losses are those of all engines."""

from collections.abc import Callable

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from vllmfront.engine import EngineInfo
from vllmfront.engine.wire import Registration
from vllmfront.errors import EngineDied, VllmFrontError
from vllmfront.lifecycles.worker._engines import EngineWatch
from vllmfront.supervisor import Shutdown

Observer = Callable[[int, VllmFrontError], None]


@attrs.define
class FakeEngines:
    """Two engines that say how many of them step together."""

    together: int | None
    observers: list[Observer] = attrs.field(factory=list)
    given_up: list[str] = attrs.field(factory=list)

    @property
    def info(self) -> EngineInfo:
        registration = Registration(data_parallel_size=self.together)
        return EngineInfo.of({0: registration, 1: registration})

    async def wait_lost(self) -> VllmFrontError:
        await trio.sleep_forever()
        raise AssertionError

    def on_loss(self, observer: Observer) -> None:
        self.observers.append(observer)

    def give_up(self, error: VllmFrontError) -> None:
        self.given_up.append(str(error))

    def lose(self, rank: int) -> None:
        for observer in self.observers:
            observer(rank, EngineDied(f"engine {rank} is gone"))


@pytest.mark.parametrize(("together", "given_up"), [(2, ["engine 1 is gone"]), (1, []), (None, [])])
async def test_engines_that_step_together_are_lost_with_the_first(
    together: int | None, given_up: list[str], autojump_clock: MockClock
) -> None:
    engines = FakeEngines(together)
    shutdown = Shutdown(budget=1.0, margin=1.0)
    watch = EngineWatch(client=engines, shutdown=shutdown, grace=10.0)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.run, stop)
        began = autojump_clock.current_time()
        engines.lose(1)
        engines.lose(0)
        await trio.sleep(9.9)
        early = shutdown.requested.is_set()
        await trio.sleep(0.2)
        late = shutdown.requested.is_set()
        stop.set()

    assert engines.given_up == given_up
    assert not early
    assert late is bool(given_up)
    assert (watch.loss is None) is not bool(given_up)
    assert autojump_clock.current_time() - began < 11


async def test_a_loss_after_the_order_to_stop_ends_requests_and_is_no_failure() -> None:
    engines = FakeEngines(2)
    shutdown = Shutdown(budget=60.0, margin=1.0)
    watch = EngineWatch(client=engines, shutdown=shutdown)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            await nursery.start(watch.run, trio.Event())
            shutdown.request("told to")
            await wait_all_tasks_blocked()
            engines.lose(0)

    assert engines.given_up == ["engine 0 is gone"]
    assert watch.loss is None

"""Updates of several servers: all of them, or back to what is known."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import attrs
import pytest

from tests.rl.servers import FakeServer, conflict, failed, lost, refused, transport
from vllmfront.rl import (
    ControlTimeout,
    EngineFailed,
    LeaseLost,
    Phase,
    Progress,
    RetryPolicy,
    ServerState,
    ServerUnreachable,
    StateConflict,
    UpdateFailed,
    Upload,
    WeightSyncClient,
)

QUICK = RetryPolicy(retries=2, base=0.001, cap=0.002)
OLD = (["old"], "v0")
NEW = (["old", "a", "b"], "v1")

Body = Callable[["Trainer"], Awaitable[None]]


@attrs.define
class Trainer:
    """A client and the servers that it updates."""

    client: WeightSyncClient
    one: FakeServer
    two: FakeServer
    progress: list[Progress]

    async def update(self, **options: Any) -> None:
        async with self.client.update_window(version="v1", **options) as window:
            await window.send({"piece": "a"})
            await window.send(per_server=[{"piece": "b"}, {"piece": "b"}])


def run(backend: str, body: Body) -> None:
    async def main() -> None:
        one, two = FakeServer(initialised=True), FakeServer(initialised=True)
        progress: list[Progress] = []
        client = WeightSyncClient(
            ["http://one", "http://two/"],
            owner="trainer",
            retries=QUICK,
            on_progress=progress.append,
            transport=transport({"one": one, "two": two}),
        )
        with anyio.fail_after(10):
            async with client:
                await body(Trainer(client, one, two, progress))

    anyio.run(main, backend=backend)


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_all_servers_get_all_pieces_and_go_on(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        await trainer.update()

        assert trainer.one.serves == trainer.two.serves == NEW
        assert await trainer.client.weight_versions() == {"http://one": "v1", "http://two": "v1"}
        assert [each.phase for each in trainer.progress if each.server == "http://one"] == [
            Phase.PAUSED,
            Phase.STARTED,
            Phase.SENT,
            Phase.SENT,
            Phase.FINISHED,
            Phase.RESUMED,
        ]
        assert [each.chunk for each in trainer.progress if each.phase is Phase.SENT] == [1, 1, 2, 2]

    run(backend, body)


def test_each_order_says_whose_pause_it_relies_on(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        await trainer.update()
        said = dict(zip(trainer.one.calls, trainer.one.owners, strict=True))

        for path in ("/pause", "/start_weight_update", "/update_weights", "/finish_weight_update"):
            assert said[path] == "trainer"

    run(backend, body)


def test_they_are_paused_while_pieces_are_sent(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        async with trainer.client.update_window(lease=7.5):
            assert trainer.one.owner == trainer.two.owner == "trainer"
            assert trainer.one.lease == "7.5"

        assert trainer.one.owner is None

    run(backend, body)


@pytest.mark.parametrize("route", ["/pause", "/start_weight_update"])
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (failed(500), EngineFailed),
        (failed(504, phase="start"), ControlTimeout),
        (lambda: conflict("paused", holder="somebody", since=3.0), StateConflict),
    ],
)
def test_before_anything_is_sent_all_go_on_as_before(
    backend: str, route: str, fault: Callable[[], Any], error: type[Exception]
) -> None:
    async def body(trainer: Trainer) -> None:
        trainer.two.faults[route] = fault
        with pytest.raises(error):
            await trainer.update()

        assert trainer.one.serves == trainer.two.serves == OLD

    run(backend, body)


def test_a_pause_of_somebody_else_stays_theirs(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        trainer.two.owner = "other"
        with pytest.raises(StateConflict, match="two /pause") as caught:
            await trainer.update()

        assert (caught.value.state, caught.value.holder, caught.value.since) == (
            "paused",
            "other",
            1.5,
        )
        assert trainer.one.serves == OLD
        assert trainer.two.owner == "other"

    run(backend, body)


@pytest.mark.parametrize("route", ["/update_weights", "/finish_weight_update"])
def test_with_some_weights_sent_all_stay_paused(backend: str, route: str) -> None:
    async def body(trainer: Trainer) -> None:
        trainer.two.faults[route] = failed()
        with pytest.raises(UpdateFailed, match="worker 1 says no") as caught:
            await trainer.update()

        outcomes = caught.value.outcomes
        assert {outcome.state for outcome in outcomes.values()} == {ServerState.HELD}
        assert outcomes["http://one"].error is None
        assert isinstance(outcomes["http://two"].error, EngineFailed)
        assert isinstance(caught.value.__cause__, EngineFailed)
        assert trainer.one.owner == trainer.two.owner == "trainer"
        assert not trainer.one.updating
        assert not trainer.two.initialised

    run(backend, body)


def test_after_that_the_next_update_needs_no_restart(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        trainer.two.faults["/update_weights"] = failed()
        with pytest.raises(UpdateFailed):
            await trainer.update()
        await trainer.client.init_transfer({"port": 1})
        await trainer.update()

        assert trainer.one.serves[1] == trainer.two.serves[1] == "v1"

    run(backend, body)


def test_the_old_weights_can_be_sent_again(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        async def restore(upload: Upload) -> None:
            await trainer.client.init_transfer({})
            await upload.start()
            await upload.send({"piece": "old"})

        trainer.two.faults["/update_weights"] = failed()
        with pytest.raises(EngineFailed):
            await trainer.update(restore=restore)

        assert trainer.one.serves == (["old", "a", "old"], "v0")
        assert trainer.two.serves == (["old", "old"], "v0")

    run(backend, body)


def test_where_that_fails_all_stay_paused(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        async def restore(upload: Upload) -> None:
            await upload.start()

        trainer.two.faults["/update_weights"] = failed()
        with pytest.raises(UpdateFailed) as caught:
            await trainer.update(restore=restore)

        assert {each.state for each in caught.value.outcomes.values()} == {ServerState.HELD}
        assert isinstance(caught.value.outcomes["http://one"].error, StateConflict)

    run(backend, body)


def test_a_server_that_is_gone_does_not_keep_the_others(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        async def go_deaf() -> None:
            async with trainer.client.update_window():
                trainer.two.deaf = True
                raise KeyError("the trainer failed")

        with pytest.raises(UpdateFailed) as caught:
            await go_deaf()

        states = {url: outcome.state for url, outcome in caught.value.outcomes.items()}
        assert states == {"http://one": ServerState.RESUMED, "http://two": ServerState.UNKNOWN}
        assert isinstance(caught.value.__cause__, KeyError)
        assert trainer.one.serves == OLD

    run(backend, body)


def test_what_the_block_raises_comes_out_as_it_is(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        with pytest.raises(KeyError):
            async with trainer.client.update_window():
                raise KeyError("the trainer failed")

        assert trainer.one.serves == trainer.two.serves == OLD

    run(backend, body)


def test_a_trainer_that_is_cancelled_leaves_nothing_half_done(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        with anyio.CancelScope() as scope:
            async with trainer.client.update_window():
                scope.cancel()
                await anyio.sleep_forever()

        assert scope.cancelled_caught
        assert trainer.one.serves == trainer.two.serves == OLD
        assert not trainer.one.updating

    run(backend, body)


def test_answers_that_got_lost_are_asked_for_again_where_that_is_safe(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        trainer.one.faults |= {"/pause": lost, "/resume": failed(503), "/weight_info": lost}
        trainer.one.faults["/update_weights"] = refused
        await trainer.update()

        assert trainer.one.serves == trainer.two.serves == NEW
        assert trainer.one.calls.count("/pause") == trainer.one.calls.count("/resume") == 2

    run(backend, body)


def test_a_piece_whose_answer_got_lost_is_not_sent_twice(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        trainer.one.faults["/update_weights"] = lost
        with pytest.raises(UpdateFailed) as caught:
            await trainer.update()

        assert trainer.one.calls.count("/update_weights") == 1
        assert isinstance(caught.value.outcomes["http://one"].error, ServerUnreachable)

    run(backend, body)


def test_the_lease_is_renewed_while_the_block_runs(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        async with trainer.client.update_window(lease=0.06, version="v1"):
            while trainer.two.calls.count("/renew_pause") < 4:  # noqa: ASYNC110 - servers set no event
                await anyio.sleep(0.01)

        assert trainer.one.serves[1] == "v1"

    run(backend, body)


def test_the_lease_is_renewed_while_another_server_waits_for_its_requests(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        trainer.one.busy = lambda: trainer.two.calls.count("/renew_pause") < 2
        await trainer.update(mode="wait", lease=0.6)

        assert trainer.one.serves == trainer.two.serves == NEW

    run(backend, body)


def test_engines_that_do_not_agree_on_their_weights_can_be_updated(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        # One of them was started anew meanwhile.
        trainer.one.faults["/weight_info"] = lambda: conflict("initialized")
        await trainer.update()

        assert trainer.one.serves == trainer.two.serves == NEW

    run(backend, body)


def test_weights_that_somebody_left_incomplete_are_no_pause_of_others(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        trainer.one.faults["/start_weight_update"] = lambda: conflict("updating")
        trainer.one.faults["/resume"] = lambda: conflict("uninitialized")
        with pytest.raises(UpdateFailed) as caught:
            await trainer.update()

        states = {url: outcome.state for url, outcome in caught.value.outcomes.items()}
        assert states == {"http://one": ServerState.HELD, "http://two": ServerState.RESUMED}
        assert trainer.one.owner == "trainer"

    run(backend, body)


@pytest.mark.parametrize(
    ("taken", "why"),
    [(True, "two is not paused by us any more"), (False, r"two could not .* for 0\.09 seconds")],
)
def test_a_lease_that_is_lost_ends_the_block(backend: str, taken: bool, why: str) -> None:
    async def body(trainer: Trainer) -> None:
        with pytest.raises(LeaseLost if taken else UpdateFailed) as caught:
            async with trainer.client.update_window(lease=0.09):
                if taken:
                    trainer.two.owner = "other"
                trainer.two.deaf = not taken
                await anyio.sleep_forever()

        error = caught.value if taken else caught.value.__cause__
        assert re.search(why, str(error))
        assert trainer.one.serves == OLD
        assert trainer.two.owner == ("other" if taken else "trainer")

    run(backend, body)


@pytest.mark.parametrize("lease", [0, -1, float("nan"), float("inf")])
def test_a_lease_is_a_time(backend: str, lease: float) -> None:
    async def body(trainer: Trainer) -> None:
        with pytest.raises(ValueError, match="lease"):
            await trainer.update(lease=lease)

        assert trainer.one.calls == []

    run(backend, body)


def test_there_must_be_as_many_pieces_as_servers(backend: str) -> None:
    async def body(trainer: Trainer) -> None:
        with pytest.raises(ValueError, match="1 entries for 2 servers"):
            async with trainer.client.update_window() as window:
                await window.send(per_server=[{"piece": "a"}])

        assert trainer.one.serves == OLD

    run(backend, body)


@pytest.mark.parametrize("servers", [[], ["http://one", "http://one"]])
def test_servers_are_named_once(servers: list[str]) -> None:
    with pytest.raises(ValueError, match="servers"):
        WeightSyncClient(servers)

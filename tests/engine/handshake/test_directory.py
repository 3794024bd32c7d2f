"""What engines are told, and which frontends belong together."""

from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from vllmfront.engine.handshake import (
    ClientAddresses,
    CoordinatorAddresses,
    Directory,
    DirectoryConfig,
    Epochs,
)
from vllmfront.engine.wire import FrontendHello

FIRST = ClientAddresses("tcp://a:1", "tcp://a:2")
SPARE = ClientAddresses("tcp://a:3", "tcp://a:4")
NODE = FrontendHello(
    start_rank=2, count=2, size=6, inputs="tcp://b:1", outputs="tcp://b:2", lockstep=False
)
LAST = attrs.evolve(NODE, start_rank=4, inputs="tcp://c:1", outputs="tcp://c:2")


def directory(**changes: Any) -> Directory:
    config = DirectoryConfig(**{"size": 6, "count": 2, "lockstep": False, **changes})
    return Directory(config, [FIRST, SPARE])


def test_a_lone_frontend_has_an_answer_at_once() -> None:
    coordinator = CoordinatorAddresses(inputs="tcp://a:5", outputs="tcp://a:6", stats="tcp://a:7")
    made = Directory(
        DirectoryConfig(size=2, count=2, lockstep=True), [FIRST, SPARE], coordinator=coordinator
    )
    init = made.init_for(0)

    assert init is not None
    assert made.missing() == []
    assert list(init.addresses.inputs) == ["tcp://a:1", "tcp://a:3"]
    assert list(init.addresses.outputs) == ["tcp://a:2", "tcp://a:4"]
    assert init.addresses.coordinator_input == "tcp://a:5"
    assert init.addresses.coordinator_output == "tcp://a:6"
    assert init.addresses.frontend_stats_publish_address == "tcp://a:7"
    assert init.parallel_config == {}


def test_a_frontends_index_is_its_place_whoever_came_first() -> None:
    made = directory()
    before = made.init_for(0)
    replies = [made.introduce(hello) for hello in (LAST, NODE)]
    init = made.init_for(5)

    assert before is None
    assert [list(reply.missing) for reply in replies] == [[2, 3], []]
    assert init is not None
    assert list(init.addresses.inputs) == ["tcp://a:1", "tcp://b:1", "tcp://c:1", "tcp://a:3"]


def test_a_frontend_that_comes_back_replaces_what_it_said() -> None:
    made = directory()
    for hello in (NODE, LAST, attrs.evolve(NODE, inputs="tcp://b:9")):
        made.introduce(hello)
    init = made.init_for(2)

    assert init is not None
    assert init.addresses.inputs[1] == "tcp://b:9"


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"size": 8}, "--data-parallel-size is 8 there and 6 at the first node"),
        ({"count": 1}, "--data-parallel-size-local is 1 there and 2"),
        ({"lockstep": True}, "takes the model for a mixture of experts"),
        ({"start_rank": 3}, "--data-parallel-start-rank 3 is no multiple"),
        ({"start_rank": 0}, "--data-parallel-start-rank 0 is no multiple"),
        ({"start_rank": 6}, "exceed --data-parallel-size 6"),
        ({"start_rank": -2}, "--data-parallel-start-rank -2 is no multiple"),
    ],
)
def test_a_frontend_of_another_deployment_is_refused(
    changes: Mapping[str, Any], refusal: str
) -> None:
    made = directory()
    reply = made.introduce(attrs.evolve(NODE, **changes))

    assert reply.refusal is not None
    assert refusal in reply.refusal
    assert list(made.missing()) == [2, 3, 4, 5]


def test_a_rank_that_comes_back_begins_an_epoch_that_the_others_have_to_join() -> None:
    ended: list[list[int]] = []
    ports = iter(range(100))
    epochs = Epochs(lambda: {"port": next(ports)}, lambda ranks: ended.append(list(ranks)))
    first = [epochs.join(rank)["port"] for rank in (0, 1, 2)]
    second = [epochs.join(rank)["port"] for rank in (1, 2, 0)]
    third = [epochs.join(rank)["port"] for rank in (2, 2, 0, 1)]

    epochs.lose(1)
    epochs.lose(1)

    assert first == [0, 0, 0]
    assert second == [1, 1, 1]
    # One that comes twice, before the others are back, has them wait for its last process.
    assert third == [2, 3, 3, 3]
    assert ended == [[0, 2], [0, 1], [], [0, 2]]
    assert epochs.count == 5


def test_what_other_frontends_have_lost_is_passed_on() -> None:
    lost: list[int] = []
    config = DirectoryConfig(size=6, count=2, lockstep=False)
    made = Directory(config, [FIRST], on_lost=lost.append)
    instances = {
        made.introduce(hello).instance for hello in (NODE, attrs.evolve(NODE, lost=[3, 2]))
    }

    assert lost == [3, 2]
    assert len(instances) == 1
    assert instances != {Directory(config, [FIRST]).introduce(NODE).instance}


def test_other_frontends_hear_which_of_their_engines_were_told() -> None:
    epochs = Epochs(dict, lambda _ranks: None)
    config = DirectoryConfig(size=6, count=2, lockstep=True)
    made = Directory(
        config,
        [FIRST],
        parallel_config=epochs.join,
        on_lost=epochs.lose,
        told=lambda: epochs.told,
    )
    hello = attrs.evolve(NODE, lockstep=True)
    made.introduce(attrs.evolve(hello, start_rank=4 if hello.start_rank == 2 else 2))
    before = made.introduce(hello)
    for rank in range(6):
        assert made.init_for(rank) is not None
    after = made.introduce(hello)
    lost = made.introduce(attrs.evolve(hello, lost=[hello.start_rank]))

    assert list(before.told) == []
    assert list(after.told) == [hello.start_rank, hello.start_rank + 1]
    assert list(lost.told) == []

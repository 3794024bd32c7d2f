"""The client that vLLM's trainer-side engines are handed."""

import base64
import pickle
from collections.abc import Generator

import attrs
import pytest

from tests.rl.servers import FakeServer, failed, transport
from vllmfront.rl import BlockingWeightSyncClient, EngineFailed, ServerState, UpdateFailed


@attrs.define
class Trainer:
    client: BlockingWeightSyncClient
    server: FakeServer


@pytest.fixture
def trainer() -> Generator[Trainer]:
    server = FakeServer()
    with BlockingWeightSyncClient(
        "http://one", owner="trainer", transport=transport({"one": server})
    ) as client:
        yield Trainer(client, server)


def test_the_four_methods_make_an_update(trainer: Trainer) -> None:
    trainer.client.init_weight_transfer_engine({"master_port": 1})
    for version in ("v1", "v2"):
        trainer.client.start_weight_update()
        assert trainer.server.owner == "trainer"
        trainer.client.update_weights({"piece": version})
        trainer.client.finish_weight_update(version)

    assert trainer.server.serves == (["old", "v1", "v2"], "v2")


def test_an_update_that_fails_is_ended_by_the_next(trainer: Trainer) -> None:
    trainer.client.init_weight_transfer_engine({})
    trainer.client.start_weight_update()
    trainer.server.faults["/update_weights"] = failed()
    with pytest.raises(EngineFailed):
        trainer.client.update_weights({"piece": "a"})
    with pytest.raises(UpdateFailed) as caught:
        trainer.client.start_weight_update()
    assert caught.value.outcomes["http://one"].state is ServerState.HELD

    trainer.client.init_weight_transfer_engine({})
    trainer.client.start_weight_update()
    trainer.client.update_weights({"piece": "b"})
    trainer.client.finish_weight_update("v1")
    assert trainer.server.serves == (["old", "b"], "v1")


def test_leaving_lets_servers_go_on() -> None:
    server = FakeServer(initialised=True)
    with BlockingWeightSyncClient(
        "http://one", owner="trainer", transport=transport({"one": server})
    ) as client:
        client.start_weight_update()

    assert server.serves == (["old"], "v0")
    assert not server.updating


def test_weights_need_an_update(trainer: Trainer) -> None:
    with pytest.raises(RuntimeError, match="call start_weight_update first"):
        trainer.client.update_weights({"piece": "a"})


def test_handles_of_device_memory_travel_as_vllm_sends_them(trainer: Trainer) -> None:
    trainer.client.init_weight_transfer_engine({})
    trainer.client.start_weight_update()
    trainer.client.update_weights({"piece": "a", "ipc_handles": [("gpu-1", 2)]})
    trainer.client.finish_weight_update()

    sent = trainer.server.last_update
    assert sent.keys() == {"piece", "ipc_handles_pickled"}
    assert pickle.loads(base64.b64decode(sent["ipc_handles_pickled"])) == [("gpu-1", 2)]

"""What comes down to the next generation arrives as it was."""

import json
from typing import Any

import attrs
import pytest

from vllmfront.engine import EngineLegacy, Inheritance, LoraRequest
from vllmfront.engine.wire import Registration
from vllmfront.lifecycles.upgrade import ChannelBroken, Estate, HeldListener
from vllmfront.lifecycles.upgrade._channel import Message
from vllmfront.lifecycles.upgrade._estate import decode_estate, encode_estate
from vllmfront.supervisor import ProcessHandle

ESTATE = Estate(
    listeners=[
        HeldListener(descriptor=3, name="[127.0.0.1]:80"),
        HeldListener(descriptor=4, name="unix:/s", unlink=("/s", 5, 6)),
    ],
    engines=Inheritance(
        descriptors=[7, 8, 9, 10, 11],
        legacy=EngineLegacy(
            slot=1,
            registrations={0: Registration(max_model_len=7, vllm_version="0.33.0")},
            lost={3: "engine 3 closed its connection"},
            coordinated=True,
            adapters=(
                LoraRequest(name="a", int_id=2, path="/a", is_3d_lora_weight=True),
                LoraRequest(name="b", int_id=4, path="org/b", base_model_name="m"),
            ),
            last_adapter_id=5,
        ),
    ),
    processes={
        "rank-0": ProcessHandle(
            pid=12, reaper=13, control=14, reports=15, unread='{"st', token="t"
        ),
        "rank-1": ProcessHandle(pid=16, reaper=17, control=18, reports=19, token="u"),
    },
)


def over_the_line(estate: Estate, **changes: Any) -> Message:
    fields = json.loads(json.dumps({**encode_estate(estate), **changes}))
    return Message(fields, [fd + 100 for fd in estate.descriptors])


def test_everything_arrives_under_new_descriptors() -> None:
    found = decode_estate(over_the_line(ESTATE))

    assert found.engines.legacy == ESTATE.engines.legacy
    assert [each.descriptor for each in found.listeners] == [103, 104]
    assert [each.unlink for each in found.listeners] == [None, ("/s", 5, 6)]
    assert list(found.engines.descriptors) == [107, 108, 109, 110, 111]
    assert list(found.processes.items()) == [
        ("rank-0", attrs.evolve(ESTATE.processes["rank-0"], control=114, reports=115)),
        ("rank-1", attrs.evolve(ESTATE.processes["rank-1"], control=118, reports=119)),
    ]


def test_there_may_be_no_process_of_ours() -> None:
    found = decode_estate(over_the_line(attrs.evolve(ESTATE, processes={})))

    assert found.processes == {}
    assert list(found.engines.descriptors) == [107, 108, 109, 110, 111]


def test_another_form_is_refused_in_words_for_an_operator() -> None:
    with pytest.raises(ChannelBroken, match="in form 1, this one takes them in form 2: restart"):
        decode_estate(over_the_line(ESTATE, version=1))


@pytest.mark.parametrize(
    "change",
    [
        {"listeners": None},
        {"registrations": {"a": "b"}},
        {"lost": 1},
        {"adapters": [["a"]]},
        {"processes": {"rank-0": {"pid": 1}}},
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ChannelBroken, match="makes no sense"):
        decode_estate(over_the_line(ESTATE, **change))

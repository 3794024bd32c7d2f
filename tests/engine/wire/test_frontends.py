"""What frontends say to each other."""

from typing import Any

import msgpack
import pytest

from vllmfront.engine.wire import (
    FrontendHello,
    FrontendReply,
    decode_frontend_hello,
    decode_frontend_reply,
    encode_frontend_hello,
    encode_frontend_reply,
)
from vllmfront.errors import ProtocolError

HELLO = FrontendHello(
    start_rank=2, count=2, size=4, inputs="tcp://b:1", outputs="tcp://b:2", lockstep=True, lost=[3]
)


def test_a_hello_arrives_as_it_was_said() -> None:
    assert decode_frontend_hello(encode_frontend_hello(HELLO)) == HELLO


@pytest.mark.parametrize(
    "reply",
    [
        FrontendReply(instance="a", missing=[2, 3], told=[1]),
        FrontendReply(instance="a", missing=[], told=[], refusal="no"),
    ],
)
def test_a_reply_arrives_as_it_was_said(reply: FrontendReply) -> None:
    assert decode_frontend_reply(encode_frontend_reply(reply)) == reply


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "HELLO"}, "a frontend says 'HELLO'"),
        ({"version": 2}, "run the same version on all nodes"),
        ({"start_rank": "2"}, "start_rank must be an integer"),
        ({"lockstep": 1}, "lockstep must be true or false"),
        ({"inputs": None}, "inputs must be text"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    fields = msgpack.unpackb(encode_frontend_hello(HELLO))
    with pytest.raises(ProtocolError, match=message):
        decode_frontend_hello(msgpack.packb({**fields, **changes}))

"""Start-up: HELLO, INIT and READY on the handshake socket."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from vllmfront.engine.wire import _check as check
from vllmfront.engine.wire._msgpack import pack, unpack
from vllmfront.errors import ProtocolError


@attrs.frozen(kw_only=True)
class Hello:
    """An engine asks for its addresses."""

    local: bool
    headless: bool


@attrs.frozen(kw_only=True)
class Ready:
    """An engine is completely built; its registration is already on the input socket."""

    local: bool
    headless: bool
    parallel_config_hash: str | None = None
    """Must be equal on all ranks of a mixture-of-experts deployment."""

    coord_store_port: int | None = None
    elastic_ep_max_dp_size: int | None = None
    num_redundant_experts: int | None = None


@attrs.frozen(kw_only=True)
class EngineAddresses:
    """Where an engine connects to: one input and one output socket a client."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    coordinator_input: str | None = None
    coordinator_output: str | None = None
    frontend_stats_publish_address: str | None = None


@attrs.frozen
class Init:
    """The answer to HELLO."""

    addresses: EngineAddresses
    parallel_config: Mapping[str, Any]


_READY_EXTRAS = {
    "parallel_config_hash": check.text,
    "coord_store_port": check.integer,
    "elastic_ep_max_dp_size": check.integer,
    "num_redundant_experts": check.integer,
}


def decode_handshake(payload: bytes | memoryview) -> Hello | Ready:
    """Read what an engine sends on the handshake socket.

    Raises:
        ProtocolError: It is neither HELLO nor READY.
    """
    fields = check.text_map(unpack(payload), "handshake message")
    status = fields.get("status")
    local = check.boolean(fields.get("local"), "local")
    headless = check.boolean(fields.get("headless"), "headless")
    if status == "HELLO":
        return Hello(local=local, headless=headless)
    if status == "READY":
        extras: dict[str, Any] = {
            name: read(fields[name], name)
            for name, read in _READY_EXTRAS.items()
            if fields.get(name) is not None
        }
        return Ready(local=local, headless=headless, **extras)
    raise ProtocolError(f"handshake status must be HELLO or READY, not {status!r:.40}")


def encode_hello(hello: Hello) -> bytes:
    """Return an engine's first message."""
    return pack({"status": "HELLO", "local": hello.local, "headless": hello.headless})


def encode_ready(ready: Ready) -> bytes:
    """Return an engine's message that it can serve."""
    extras = {name: value for name in _READY_EXTRAS if (value := getattr(ready, name)) is not None}
    return pack({"status": "READY", "local": ready.local, "headless": ready.headless, **extras})


_ADDRESS_KEYS = ("coordinator_input", "coordinator_output", "frontend_stats_publish_address")


def encode_init(
    addresses: EngineAddresses, parallel_config: Mapping[str, Any] | None = None
) -> bytes:
    """Return the answer to HELLO; each key of *parallel_config* is set on the engine's own."""
    return pack(
        {
            "addresses": {
                "inputs": list(addresses.inputs),
                "outputs": list(addresses.outputs),
                **{name: getattr(addresses, name) for name in _ADDRESS_KEYS},
            },
            "parallel_config": dict(parallel_config or {}),
        }
    )


def decode_init(payload: bytes | memoryview) -> Init:
    """Read INIT as an engine does.

    Raises:
        ProtocolError: An engine could not use it.
    """
    fields = check.text_map(unpack(payload), "INIT")
    addresses = check.text_map(fields.get("addresses"), "addresses")
    inputs = check.texts(addresses.get("inputs"), "addresses.inputs")
    outputs = check.texts(addresses.get("outputs"), "addresses.outputs")
    if len(inputs) != len(outputs):
        raise ProtocolError("addresses.inputs and addresses.outputs differ in length")
    others = {
        name: None if addresses.get(name) is None else check.text(addresses[name], name)
        for name in _ADDRESS_KEYS
    }
    return Init(
        EngineAddresses(inputs=inputs, outputs=outputs, **others),
        check.text_map(fields.get("parallel_config", {}), "parallel_config"),
    )

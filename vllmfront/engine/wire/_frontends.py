"""What frontends of one deployment say to the first of them, on the socket where engines say HELLO.

Not a part of vLLM's protocol: a connection whose identity is not that of an engine, two bytes long,
is that of a frontend.
"""

from collections.abc import Sequence

import attrs

from vllmfront.engine.wire import _check as check
from vllmfront.engine.wire._msgpack import pack, unpack
from vllmfront.errors import ProtocolError

VERSION = 1
"""Of the form below."""

_STATUS = "FRONTEND"


@attrs.frozen(kw_only=True)
class FrontendHello:
    """A frontend says which engines it serves, and where they reach it."""

    start_rank: int
    count: int
    size: int
    """Engines of the whole deployment."""

    inputs: str
    outputs: str
    lockstep: bool
    """Whether it takes the engines for such that step together."""

    lost: Sequence[int] = ()
    """Those of its ranks that are gone, and have no other process yet."""


@attrs.frozen(kw_only=True)
class FrontendReply:
    """What the first frontend makes of that."""

    instance: str
    """Another one where it was started anew."""

    missing: Sequence[int] = ()
    """Ranks whose frontend has not said anything yet; engines wait for all."""

    told: Sequence[int] = ()
    """Ranks of that frontend that know all others which they step together with. One that was
    among them, and is not any more, can only end."""

    refusal: str | None = None
    """Why the two cannot belong to one deployment."""


def encode_frontend_hello(hello: FrontendHello) -> bytes:
    """Return what a frontend says, again and again."""
    return pack({"status": _STATUS, "version": VERSION, **attrs.asdict(hello)})


def decode_frontend_hello(payload: bytes | memoryview) -> FrontendHello:
    """Read what a frontend says.

    Raises:
        ProtocolError: It is no such thing, or of another version.
    """
    fields = _fields(payload)
    return FrontendHello(
        start_rank=check.integer(fields.get("start_rank"), "start_rank"),
        count=check.integer(fields.get("count"), "count"),
        size=check.integer(fields.get("size"), "size"),
        inputs=check.text(fields.get("inputs"), "inputs"),
        outputs=check.text(fields.get("outputs"), "outputs"),
        lockstep=check.boolean(fields.get("lockstep"), "lockstep"),
        lost=_ranks(fields.get("lost"), "lost"),
    )


def encode_frontend_reply(reply: FrontendReply) -> bytes:
    """Return the answer."""
    return pack(
        {
            "status": _STATUS,
            "version": VERSION,
            "instance": reply.instance,
            "missing": list(reply.missing),
            "told": list(reply.told),
            "refusal": reply.refusal,
        }
    )


def decode_frontend_reply(payload: bytes | memoryview) -> FrontendReply:
    """Read the answer.

    Raises:
        ProtocolError: It is no such thing, or of another version.
    """
    fields = _fields(payload)
    refusal = fields.get("refusal")
    return FrontendReply(
        instance=check.text(fields.get("instance"), "instance"),
        missing=_ranks(fields.get("missing"), "missing"),
        told=_ranks(fields.get("told"), "told"),
        refusal=None if refusal is None else check.text(refusal, "refusal"),
    )


def _ranks(value: object, name: str) -> list[int]:
    return [check.integer(rank, name) for rank in check.array(value, name)]


def _fields(payload: bytes | memoryview) -> dict[str, object]:
    fields = check.text_map(unpack(payload), "message of a frontend")
    if fields.get("status") != _STATUS:
        raise ProtocolError(f"a frontend says {fields.get('status')!r:.40}")
    if fields.get("version") != VERSION:
        raise ProtocolError(
            f"a frontend of another version of this program: form {fields.get('version')!r:.10}, "
            f"ours is {VERSION}; run the same version on all nodes"
        )
    return fields

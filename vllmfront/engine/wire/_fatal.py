"""The message that ends an engine: what its own executor says when a worker has failed."""

from vllmfront.engine.wire._msgpack import pack

_EXECUTOR_FAILED = b"\x04"


def encode_executor_failed() -> list[bytes]:
    """Return the frames upon which an engine fails and ends, as it does when a worker dies."""
    return [_EXECUTOR_FAILED, pack(None)]

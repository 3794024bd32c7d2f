"""What all connections of one server share."""

from collections import Counter

import attrs

from vllmfront.api.http._config import HttpConfig
from vllmfront.api.http._deadlines import Deadlines
from vllmfront.api.http._head import HeadEncoder
from vllmfront.api.http._message import Handler
from vllmfront.api.http._readiness import Readiness
from vllmfront.api.http._request_head import HeadReader
from vllmfront.api.http._write_batch import WriteBatch


@attrs.define(kw_only=True)
class ServerState:
    """The mutable middle of a server; connections read it and count in it."""

    config: HttpConfig
    handler: Handler
    readiness: Readiness
    deadlines: Deadlines = attrs.field(factory=Deadlines)
    heads: HeadEncoder = attrs.field(factory=HeadEncoder)
    writes: WriteBatch = attrs.field(factory=WriteBatch)
    head_reader: HeadReader = attrs.field(init=False)
    draining: bool = False
    """Each connection ends after the response in progress."""

    announcing_close: bool = False
    """Responses that begin now are the last of their connections, and say so."""

    requests_active: int = 0
    requests_total: int = 0
    connections_total: int = 0
    rejected: Counter[int] = attrs.field(factory=Counter)
    """Requests that never reached a handler, by status."""

    ended: Counter[str] = attrs.field(factory=Counter)
    """Requests whose handler was cancelled, by cause."""

    def __attrs_post_init__(self) -> None:
        self.head_reader = HeadReader(self.config)

"""What the main process and its workers say to each other."""

from msgspec import Struct

from vllmfront.api.metrics import PackedFamily
from vllmfront.engine import EngineView, LoraRequest


class Welcome(Struct, kw_only=True):
    """Main, first of all: who you are, and what you serve. Descriptors are inherited."""

    version: str
    """Of the program that speaks: a worker of another one would not understand the rest."""

    number: int
    """From 1."""

    workers: int
    """How many there may be."""

    settings: bytes
    """The ``ServeConfig`` and the ``EngineClientConfig``, pickled."""

    connections: int
    """Where accepted connections are taken out."""

    board: int


class Accepting(Struct):
    """Worker: connections are answered from now on."""


class Serving(Struct):
    """Worker: the model's files are loaded, too, and the engines that serve are mine as well."""


class Leaving(Struct):
    """Worker: give me no connections any more, I end."""

    reason: str


class Failed(Struct):
    """Worker, last: why I end."""

    text: str
    configuration: bool
    """Whether it is the operator's to mend: another start would end in the same way."""


class EngineSilent(Struct):
    """Worker: this engine does not answer; whoever runs it should start it anew."""

    rank: int
    incarnation: int
    text: str


class Stop(Struct):
    """Main: end; asked again, at once."""

    reason: str
    seconds: float | None
    """For running work; None: a part of the server has failed, nothing goes on."""


class Hurry(Struct):
    """Main: end at once."""

    reason: str


class Reload(Struct):
    """Main: read anew what can change while the program runs."""


class HoldNews(Struct, kw_only=True):
    """What holds generation back: see ``Hold``."""

    kind: str
    mode: str
    wall: float
    owner: str | None
    clear_cache: bool
    level: int
    asleep: list[str]


class State(Struct, kw_only=True):
    """Main: how engines, holds and adapters are."""

    view: EngineView
    holds: list[HoldNews]
    adapters: list[LoraRequest]
    standing: bool
    """Whether all engines stand still in a pause."""


class AdapterIdle(Struct):
    """Worker: I know that this adapter is gone, and use it no more."""

    lora_id: int


class AskCounts(Struct):
    """Main: what have you counted?"""


class Load(Struct, array_like=True):
    """One engine, as the periodic line sums it up."""

    running: int
    waiting: int
    kv_cache_usage: float
    prompt_tokens_computed: int
    generation_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int


class Counts(Struct):
    """Worker: all that I have counted."""

    families: list[PackedFamily]
    loads: dict[int, Load]


class AskInside(Struct):
    """Main: how are you inside?"""


class Inside(Struct, kw_only=True):
    """Worker: how I am."""

    requests: int
    waiting: int
    engine_requests: int
    pending_calls: int
    resent_requests: int
    continued_requests: int
    in_flight: dict[int, int]
    """Engine requests, by rank."""

    seconds_since_output: dict[int, float]
    tasks: int
    load: int
    """Inference requests that are not answered in full."""

    connections: int


class Forwarded(Struct, kw_only=True):
    """Worker: a request that only you can answer for all of us. Main: your part in one."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    client: tuple[str, int] | None


class Answered(Struct):
    """The answer to it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

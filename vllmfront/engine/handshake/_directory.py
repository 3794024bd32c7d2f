"""What engines are told in answer to HELLO. Pure.

Most deployments have one frontend. Of several, the first one does the handshake, and knows the
others: each serves as many engines as the first, in order of rank. An engine is told the addresses
of all of them, the first one's first, so that a frontend's place is its ``client_index``.
"""

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence

import attrs

from vllmfront.engine.handshake._addresses import (
    ClientAddresses,
    CoordinatorAddresses,
    init_addresses,
)
from vllmfront.engine.wire import FrontendHello, FrontendReply, Init


@attrs.frozen(kw_only=True)
class DirectoryConfig:
    """What the first frontend knows from the start."""

    size: int
    """Engines of the whole deployment."""

    count: int
    """Engines of each frontend."""

    lockstep: bool
    """Whether all engines step together."""

    def index(self, start_rank: int) -> int:
        """Return the place of the frontend whose lowest rank that is."""
        return start_rank // self.count


def no_parallel_config(_rank: int) -> Mapping[str, object]:
    """Set nothing on an engine's parallel configuration."""
    return {}


class Directory:
    """Knows what to tell engines, once all frontends have said where they are.

    An engine is told once in its life; it waits for what is missing, five minutes at most.
    """

    def __init__(
        self,
        config: DirectoryConfig,
        own: Sequence[ClientAddresses],
        *,
        coordinator: CoordinatorAddresses | None = None,
        parallel_config: Callable[[int], Mapping[str, object]] = no_parallel_config,
        on_lost: Callable[[int], None] = lambda _rank: None,
        told: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """Wait for the others.

        Args:
            config: The deployment.
            own: The first frontend's addresses: the one in use, and spare ones, which engines are
                told last.
            coordinator: Where engines meet, if they have to.
            parallel_config: Called with the rank of each engine that is told; what is set on it.
            on_lost: Called with each rank that another frontend has lost, as often as it says so.
            told: Returns the ranks that know all others which they step together with.
        """
        self._config = config
        first, *self._spare = own
        self._clients: dict[int, ClientAddresses] = {0: first}
        self._coordinator = coordinator
        self._parallel_config = parallel_config
        self._on_lost = on_lost
        self._told = told
        self._instance = secrets.token_hex(8)

    def missing(self) -> Sequence[int]:
        """Return the ranks whose frontend is not known yet."""
        count = self._config.count
        return [rank for rank in range(self._config.size) if rank // count not in self._clients]

    def init_for(self, rank: int) -> Init | None:
        """Return the answer to the HELLO of *rank*, once all frontends are known."""
        if self.missing():
            return None
        clients = [self._clients[place] for place in sorted(self._clients)]
        addresses = init_addresses([*clients, *self._spare], self._coordinator)
        return Init(addresses, self._parallel_config(rank))

    def introduce(self, hello: FrontendHello) -> FrontendReply:
        """Take note of another frontend, or of the same one at other addresses."""
        refusal = self._refusal(hello)
        if refusal is not None:
            return FrontendReply(instance=self._instance, refusal=refusal)
        place = self._config.index(hello.start_rank)
        self._clients[place] = ClientAddresses(hello.inputs, hello.outputs)
        for rank in hello.lost:
            self._on_lost(rank)
        theirs = range(hello.start_rank, hello.start_rank + hello.count)
        told = sorted(rank for rank in self._told() if rank in theirs)
        return FrontendReply(instance=self._instance, missing=self.missing(), told=told)

    def _refusal(self, hello: FrontendHello) -> str | None:
        config = self._config
        if hello.size != config.size:
            return f"--data-parallel-size is {hello.size} there and {config.size} at the first node"
        if hello.count != config.count:
            return (
                f"--data-parallel-size-local is {hello.count} there and {config.count} at the "
                "first node; all nodes have to run as many engines"
            )
        if hello.lockstep != config.lockstep:
            return "one of the two takes the model for a mixture of experts, the other does not"
        if hello.start_rank <= 0 or hello.start_rank % config.count:
            return (
                f"--data-parallel-start-rank {hello.start_rank} is no multiple of "
                f"--data-parallel-size-local {config.count}, above zero"
            )
        if hello.start_rank + hello.count > config.size:
            return (
                f"--data-parallel-start-rank {hello.start_rank} and --data-parallel-size-local "
                f"{hello.count} exceed --data-parallel-size {config.size}"
            )
        return None

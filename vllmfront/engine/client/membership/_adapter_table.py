"""Which LoRA adapters there are, by name and by id, and how many requests use each. Pure.

A name leads to an adapter until it is withdrawn. The adapter itself is *held* for longer, as long
as requests that began with it run: an engine that lacks it would load it again for them from its
path, or die where there is nothing any more.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from vllmfront.engine._request import LoraRequest


class AdapterTable:
    """All adapters of one client. Ids count up from 1, and none is used twice."""

    def __init__(self) -> None:
        self._held: dict[int, LoraRequest] = {}
        self._ids: dict[str, int] = {}
        self._uses = Counter[int]()
        self.last_id = 0
        """The highest that was given to an adapter."""

        self._idle_observers: list[Callable[[], None]] = []
        self._idle: list[int] = []
        self._dropped = set[int]()
        """Those that are not held any more although requests with them run."""

    def __repr__(self) -> str:
        return f"<AdapterTable {', '.join(self._ids) or 'empty'}, {len(self._held)} held>"

    @property
    def ids(self) -> AbstractSet[int]:
        """Those that are held, as a live view."""
        return self._held.keys()

    @property
    def held(self) -> tuple[LoraRequest, ...]:
        """What engines must have loaded."""
        return tuple(self._held.values())

    @property
    def served(self) -> tuple[LoraRequest, ...]:
        """What new requests may name, in the order of loading."""
        return tuple(self._held[number] for number in self._ids.values())

    def find(self, name: str) -> LoraRequest | None:
        """Return the adapter that *name* leads to."""
        number = self._ids.get(name)
        return None if number is None else self._held[number]

    def holds(self, lora: LoraRequest) -> bool:
        """Tell whether *lora* is as it was: neither gone nor loaded anew in place."""
        return self._held.get(lora.int_id) is lora

    def uses(self, lora_id: int) -> int:
        """Return how many engine requests use that adapter."""
        return self._uses[lora_id]

    def new_id(self) -> int:
        """Return an id that no adapter has had."""
        self.last_id += 1
        return self.last_id

    def serve(self, lora: LoraRequest) -> None:
        """Let its name lead to *lora*, in place of an earlier one with that name."""
        before = self._ids.get(lora.name)
        self._held[lora.int_id] = lora
        self._ids[lora.name] = lora.int_id
        self.last_id = max(self.last_id, lora.int_id)
        if before is not None and before != lora.int_id:
            self._let_go(before)

    def withdraw(self, name: str) -> LoraRequest:
        """Let *name* lead nowhere any more; what runs with its adapter goes on.

        Raises:
            KeyError: It leads nowhere.
        """
        number = self._ids.pop(name)
        lora = self._held[number]
        self._let_go(number)
        return lora

    def drop(self, number: int) -> None:
        """Hold an adapter no longer, whatever uses it: some engine cannot load it."""
        lora = self._held.pop(number, None)
        if lora is None:
            return
        if self._ids.get(lora.name) == number:
            del self._ids[lora.name]
        if self._uses[number]:
            self._dropped.add(number)
        else:
            self._note_idle(number)

    def on_idle(self, observer: Callable[[], None]) -> None:
        """Call *observer* whenever adapters are held no longer: see ``take_idle``."""
        self._idle_observers.append(observer)

    def take_idle(self) -> list[int]:
        """Return ids that are held no longer, each once: engines may forget them."""
        idle, self._idle = self._idle, []
        return idle

    def begin(self, lora: LoraRequest) -> None:
        """Take note that an engine request with *lora* is in flight."""
        self._uses[lora.int_id] += 1

    def end(self, lora: LoraRequest) -> None:
        """Take note that it has ended."""
        number = lora.int_id
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._uses[number]
            if number in self._dropped:
                self._dropped.discard(number)
                self._note_idle(number)
            else:
                self._let_go(number)

    def _let_go(self, number: int) -> None:
        """Hold an adapter no longer that nobody can ask for and nobody uses."""
        if number not in self._held or self._uses[number] or number in self._ids.values():
            return
        del self._held[number]
        self._note_idle(number)

    def _note_idle(self, number: int) -> None:
        self._idle.append(number)
        for observer in self._idle_observers:
            observer()

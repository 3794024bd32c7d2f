"""Engines that step together and are started by several programs: who belongs together. Pure.

They find each other at ports that all of them are told, and none can take the place of one that
was lost: once one is lost, or says HELLO that was told before, all are told anew, at other ports,
and those who know the old ones only have to end.
"""

from collections.abc import Callable, Collection, Mapping, Sequence


class Epochs:
    """What each engine is told about the others."""

    def __init__(
        self,
        settle: Callable[[], Mapping[str, object]],
        end: Callable[[Sequence[int]], None],
    ) -> None:
        """Begin.

        Args:
            settle: Returns where the engines of one epoch find each other; called once for each.
            end: Called with engines that cannot go on.
        """
        self._settle = settle
        self._end = end
        self._present = settle()
        self._told: set[int] = set()
        self.count = 1
        """Epochs so far."""

    @property
    def told(self) -> Collection[int]:
        """Ranks whose processes know the others of the present epoch."""
        return self._told

    def join(self, rank: int) -> Mapping[str, object]:
        """Return what the process of *rank* that says HELLO is told; it may begin a new epoch."""
        self.lose(rank)
        self._told.add(rank)
        return self._present

    def lose(self, rank: int) -> None:
        """Take note that the process of *rank* is gone; where it was told, a new epoch begins."""
        if rank not in self._told:
            return
        outdated, self._told = self._told - {rank}, set()
        self._present = self._settle()
        self.count += 1
        self._end(sorted(outdated))

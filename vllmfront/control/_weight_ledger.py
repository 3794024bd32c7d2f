"""What is known of the weights that each engine has. Pure."""

from collections.abc import Collection

import attrs


@attrs.define
class WeightLedger:
    """Kept while the order of updates is; the engines themselves know less of it."""

    draft: bool = False
    """Whether the update under way is one of the draft model."""

    chunks: int = 0
    """How many have come of the update under way."""

    began_chunks: bool = False
    """Whether some weights of the update may have come."""

    expected: str | None = None
    """What the engines were last told that their weights are called."""

    changed: bool = False
    """Whether the weights are not those of the model's files."""

    stale: set[int] = attrs.field(factory=set)
    """Ranks that have other weights than the rest: those of the model's files, or of before."""

    incomplete_models: set[int] = attrs.field(factory=set)
    incomplete_drafts: set[int] = attrs.field(factory=set)

    @property
    def incomplete(self) -> tuple[int, ...]:
        """Ranks that must not serve: their last update was broken off, or is under way."""
        return tuple(sorted(self.incomplete_models | self.incomplete_drafts))

    def begin(self, ranks: Collection[int], *, draft: bool) -> None:
        """Note that an update of *ranks* begins."""
        self.draft, self.chunks, self.began_chunks = draft, 0, False
        (self.incomplete_drafts if draft else self.incomplete_models).update(ranks)

    def finish(self, ranks: Collection[int], serving: Collection[int]) -> None:
        """Note that the update is complete.

        Args:
            ranks: All engines.
            serving: Those that have it, should nobody have seen it begin.
        """
        if self.draft:
            self.incomplete_drafts.clear()
        else:
            # Those that were away, or were lost on the way, have none of it.
            updated = self.incomplete_models or set(serving)
            self.changed, self.stale = True, set(ranks) - updated
            self.incomplete_models.clear()
        self.draft = False

    def name(self, label: str) -> None:
        """Note that the engines call their weights *label*."""
        self.expected, self.changed = label, True

    def restore(self) -> None:
        """Note that the update has ended, and all have again what they had before it."""
        self.incomplete_models.clear()
        self.incomplete_drafts.clear()

    def lose(self, rank: int) -> None:
        """Note that the process of *rank* is lost: the next one has other weights."""
        self.incomplete_models.discard(rank)
        self.incomplete_drafts.discard(rank)
        if self.changed:
            self.stale.add(rank)

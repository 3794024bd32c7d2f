"""What an engine may have to be told before it gets requests."""

from typing import Protocol


class RankSetup(Protocol):
    """Something that engines have to be told, each process of them anew, before they get requests.

    Asked whenever one joins or is connected again.
    """

    def due(self, rank: int) -> bool:
        """Whether engine *rank* lacks something now; asked again after ``apply``."""

    async def apply(self, rank: int) -> None:
        """Tell engine *rank* what it lacks; may call its utilities, naming the rank.

        Raises:
            VllmFrontError: It cannot be told, and must not serve; it counts as lost.
        """

"""Between the processes of one server: a board of shared numbers, and lines for calls.

``Board`` is memory that all of them see, each writing on a page of its own: what a request on the
hot path needs to know of the others. ``Line`` is a socket pair between two of them: typed messages,
and calls that are answered. ``hand`` and ``take`` pass on connections that somebody has accepted.
"""

from vllmfront.interprocess._board import Board, Cell, Page, RankCell
from vllmfront.interprocess._frames import CallFailed, LineBroken, LineFull
from vllmfront.interprocess._handing import hand, handing_pair, take
from vllmfront.interprocess._handlers import Handlers
from vllmfront.interprocess._line import Line, line_pair
from vllmfront.interprocess._lines import Lines

__all__ = [
    "Board",
    "CallFailed",
    "Cell",
    "Handlers",
    "Line",
    "LineBroken",
    "LineFull",
    "Lines",
    "Page",
    "RankCell",
    "hand",
    "handing_pair",
    "line_pair",
    "take",
]

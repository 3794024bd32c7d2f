"""What two generations say to each other."""

import enum

CHANNEL_VARIABLE = "VLLMFRONT_UPGRADE_FD"
"""Tells a new generation the descriptor on which the running one speaks."""


class MessageKind(enum.StrEnum):
    """The kinds of messages, in the order in which they are said."""

    ESTATE = "estate"
    """Old: what you will get; it is yours at once should I die."""

    PREPARED = "prepared"
    """New: all files are loaded, I could take over."""

    TAKE_OVER = "take over"
    """Old: I have stepped aside; this is how things are now."""

    SERVING = "serving"
    """New: the engines are connected, clients are accepted."""

    FAILED = "failed"
    """New, at any time before: I cannot."""

    STOPPING = "stopping"
    """New, later: we were both told to stop."""

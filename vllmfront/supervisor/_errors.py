"""Failures of children that are no errors of their bodies."""

from vllmfront.errors import VllmFrontError


class ChildReturned(VllmFrontError):
    """Raised for a permanent child that returned although nobody had asked it to."""


class ChildNotReady(VllmFrontError):
    """Raised for a child that used up its start budget."""


class ChildCannotEnd(VllmFrontError):
    """Raised for a child that runs on although it was cancelled, so that it cannot be replaced."""

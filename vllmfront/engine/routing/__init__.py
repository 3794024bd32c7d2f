"""Which engine rank gets a request."""

from vllmfront.engine.routing._load import RankLoad, choose

__all__ = ["RankLoad", "choose"]

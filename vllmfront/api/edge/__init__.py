"""What surrounds every route: access, CORS, request ids, metrics."""

from vllmfront.api.edge._access import ADMIN_PATHS, OPEN_PATHS, AccessControl
from vllmfront.api.edge._cors import CorsPolicy
from vllmfront.api.edge._edge import UNKNOWN_HANDLER, Edge
from vllmfront.api.edge._hidden import Hidden

__all__ = [
    "ADMIN_PATHS",
    "OPEN_PATHS",
    "UNKNOWN_HANDLER",
    "AccessControl",
    "CorsPolicy",
    "Edge",
    "Hidden",
]

"""What surrounds every route: access, CORS, request ids, metrics."""

from vllmfront.api.edge._access import OPEN_PATHS, AccessControl
from vllmfront.api.edge._cors import CorsPolicy
from vllmfront.api.edge._edge import UNKNOWN_HANDLER, Edge

__all__ = ["OPEN_PATHS", "UNKNOWN_HANDLER", "AccessControl", "CorsPolicy", "Edge"]

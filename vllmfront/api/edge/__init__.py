"""What surrounds every route: access, CORS, request ids, metrics."""

from vllmfront.api.edge._access import OPEN_PATHS, AccessControl
from vllmfront.api.edge._cors import CorsPolicy

__all__ = ["OPEN_PATHS", "AccessControl", "CorsPolicy"]

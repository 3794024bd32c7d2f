"""Developer routes: pauses, new weights, and whatever else changes the engines' state."""

from vllmfront.api.developer._routes import DEVELOPER_PATHS, DeveloperRoutes

__all__ = ["DEVELOPER_PATHS", "DeveloperRoutes"]

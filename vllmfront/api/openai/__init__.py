"""The OpenAI-compatible inference routes: chat and text completions, tokenize, detokenize."""

from vllmfront.api.openai._body import Body
from vllmfront.api.openai._closing import shutting_down
from vllmfront.api.openai._gate import GateLimits, ServiceCounts
from vllmfront.api.openai._routes import OpenAiRoutes
from vllmfront.api.openai._service import Engine, ModelService, ServiceOptions, ServiceSlot

__all__ = [
    "Body",
    "Engine",
    "GateLimits",
    "ModelService",
    "OpenAiRoutes",
    "ServiceCounts",
    "ServiceOptions",
    "ServiceSlot",
    "shutting_down",
]

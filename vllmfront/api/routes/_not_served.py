"""Routes of the reference that this build knows and does not serve: 501, naming the feature."""

from collections.abc import Mapping, Sequence

import attrs

_RESPONSES = "the Responses API"
_ANTHROPIC = "the Anthropic Messages API"
_RENDER = "rendering without generating"
_TOKENS = "token-in, token-out generation"
_POOLING = "pooling models"
_AUDIO = "audio models"

_FEATURES: Mapping[str, Sequence[str]] = {
    _RESPONSES: (
        "POST /v1/responses",
        "GET /v1/responses/<response_id>",
        "POST /v1/responses/<response_id>/cancel",
        "POST /v1/responses/render",
    ),
    _ANTHROPIC: (
        "POST /v1/messages",
        "POST /v1/messages/count_tokens",
        "POST /v1/messages/render",
    ),
    _RENDER: (
        "POST /v1/chat/completions/render",
        "POST /v1/completions/render",
        "POST /v1/chat/completions/derender",
        "POST /v1/completions/derender",
    ),
    _TOKENS: ("POST /inference/v1/generate", "POST /inference/v1/abort_requests"),
    "batches of chats": ("POST /v1/chat/completions/batch",),
    "decisions": ("POST /v1/decisions", "POST /v1/systemone"),
    "the Cohere chat API": ("POST /cohere/v2/chat",),
    "SageMaker invocations": ("POST /invocations",),
    "generative scoring": ("POST /generative_scoring",),
    "tokenizer information": ("GET /tokenizer_info",),
    _POOLING: (
        "POST /v1/embeddings",
        "POST /v2/embed",
        "POST /pooling",
        "POST /classify",
        "POST /score",
        "POST /v1/score",
        "POST /rerank",
        "POST /v1/rerank",
        "POST /v2/rerank",
    ),
    _AUDIO: (
        "POST /v1/audio/transcriptions",
        "POST /v1/audio/translations",
        "GET /v1/realtime",
    ),
}


@attrs.frozen
class NotServed:
    """One such route; ``path`` may hold ``<name>`` segments."""

    method: str
    path: str
    feature: str


NOT_SERVED: Sequence[NotServed] = tuple(
    NotServed(method, path, feature)
    for feature, routes in _FEATURES.items()
    for method, path in (route.split(" ") for route in routes)
)
"""All of them."""

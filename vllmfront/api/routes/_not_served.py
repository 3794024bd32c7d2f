"""Routes of the reference that this build knows and does not serve: 501, naming the feature."""

from collections.abc import Mapping, Sequence

import attrs

from vllmfront.environment import nonzero


@attrs.frozen
class Gate:
    """A switch that the reference hides routes behind; without it they do not exist."""

    name: str


ALWAYS = Gate("always")
DEVELOPMENT = Gate("VLLM_SERVER_DEV_MODE")

_RESPONSES = "the Responses API"
_ANTHROPIC = "the Anthropic Messages API"
_RENDER = "rendering without generating"
_TOKENS = "token-in, token-out generation"
_POOLING = "pooling models"
_AUDIO = "audio models"
_SLEEP = "engine sleep mode"
_CACHES = "resetting caches"
_ELASTIC = "elastic expert parallelism"
_PROFILE = "profiling"

_FEATURES: Mapping[tuple[Gate, str], Sequence[str]] = {
    (ALWAYS, _RESPONSES): (
        "POST /v1/responses",
        "GET /v1/responses/<response_id>",
        "POST /v1/responses/<response_id>/cancel",
        "POST /v1/responses/render",
    ),
    (ALWAYS, _ANTHROPIC): (
        "POST /v1/messages",
        "POST /v1/messages/count_tokens",
        "POST /v1/messages/render",
    ),
    (ALWAYS, _RENDER): (
        "POST /v1/chat/completions/render",
        "POST /v1/completions/render",
        "POST /v1/chat/completions/derender",
        "POST /v1/completions/derender",
    ),
    (ALWAYS, _TOKENS): ("POST /inference/v1/generate", "POST /inference/v1/abort_requests"),
    (ALWAYS, "batches of chats"): ("POST /v1/chat/completions/batch",),
    (ALWAYS, "decisions"): ("POST /v1/decisions", "POST /v1/systemone"),
    (ALWAYS, "the Cohere chat API"): ("POST /cohere/v2/chat",),
    (ALWAYS, "SageMaker invocations"): ("POST /invocations",),
    (ALWAYS, "generative scoring"): ("POST /generative_scoring",),
    (ALWAYS, "tokenizer information"): ("GET /tokenizer_info",),
    (ALWAYS, "key-value cache events"): ("GET /kv_event_sources",),
    (ALWAYS, _POOLING): (
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
    (ALWAYS, _AUDIO): (
        "POST /v1/audio/transcriptions",
        "POST /v1/audio/translations",
        "GET /v1/realtime",
    ),
    (ALWAYS, _ELASTIC): ("POST /scale_elastic_ep", "POST /is_scaling_elastic_ep"),
    (ALWAYS, _PROFILE): ("POST /start_profile", "POST /stop_profile"),
    (DEVELOPMENT, _CACHES): (
        "POST /reset_prefix_cache",
        "POST /reset_mm_cache",
        "POST /reset_encoder_cache",
    ),
    (DEVELOPMENT, _SLEEP): (
        "POST /sleep",
        "POST /wake_up",
        "POST /release_kv_cache_memory",
        "GET /is_sleeping",
    ),
    (DEVELOPMENT, "calling engine workers"): ("POST /collective_rpc",),
    (DEVELOPMENT, "server information"): ("GET /server_info",),
}


@attrs.frozen
class NotServed:
    """One such route; ``path`` may hold ``<name>`` segments."""

    method: str
    path: str
    feature: str


def not_served_routes(environ: Mapping[str, str]) -> list[NotServed]:
    """Return the routes whose gate is open in *environ*; the others answer 404."""
    gates = {ALWAYS}
    if nonzero(environ, DEVELOPMENT.name):
        gates.add(DEVELOPMENT)
    return [
        NotServed(method, path, feature)
        for (gate, feature), routes in _FEATURES.items()
        if gate in gates
        for method, path in (route.split(" ") for route in routes)
    ]

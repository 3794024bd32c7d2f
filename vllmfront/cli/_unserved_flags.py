"""Options of other servers that ``serve`` knows but does not serve."""

from collections.abc import Mapping

INEFFECTIVE = (
    "--disable-access-log-for-endpoints",
    "--disable-fastapi-docs",
    "--disable-uvicorn-access-log",
    "--enable-auto-tool-choice",
    "--enable-flash-late-interaction",
    "--enable-server-load-tracking",
    "--renderer-num-workers",
)
"""Options of other servers that are accepted with a warning."""

PROBES = (
    "--dp-supervisor-probe-failure-threshold",
    "--dp-supervisor-probe-interval-s",
    "--dp-supervisor-probe-timeout-s",
)
"""Options about processes that ask each other for their health, where we have one: as above."""

UNSERVED: Mapping[str, str] = {
    "--grpc-port": "gRPC",
    "--enable-scale-out": "token-in token-out generation",
    "--enable-tokenizer-info-endpoint": "the route /tokenizer_info",
    "--tool-strict-level": "tool-call parsing",
}
"""Options of the reference that this build does not serve yet, and what they would switch on."""

REJECTED = (
    "--aggregate-engine-logging",
    "--allowed-local-media-path",
    "--allowed-media-domains",
    "--collect-detailed-traces",
    "--config",
    "--default-mm-loras",
    "--enable-elastic-ep",
    "--enable-fault-tolerance",
    "--enable-force-include-usage",
    "--enable-log-deltas",
    "--enable-log-outputs",
    "--enable-offline-docs",
    "--enable-prompt-embeds",
    "--enable-ssl-refresh",
    "--enable-tower-connector-lora",
    "--fingerprint-mode",
    "--fingerprint-value",
    "--grpc",
    "--h11-max-header-count",
    "--h11-max-incomplete-event-size",
    "--hf-token",
    "--io-processor-plugin",
    "--kv-sharing-fast-prefill",
    "--log-config-file",
    "--log-error-stack",
    "--max-log-len",
    "--media-io-kwargs",
    "--middleware",
    "--mm-hasher-algorithm",
    "--mm-ipc-gpu-memory-gb",
    "--mm-processor-cache-gb",
    "--mm-processor-cache-type",
    "--mm-processor-device",
    "--mm-processor-kwargs",
    "--mm-tensor-ipc",
    "--otlp-traces-endpoint",
    "--override-generation-config",
    "--reasoning-parser-plugin",
    "--response-role",
    "--root-path",
    "--skip-tokenizer-init",
    "--tokens-only",
    "--tool-parser-plugin",
    "--tool-server",
    "--trust-request-mm-kwargs",
    "--uvicorn-log-level",
)
"""Options of the Python server that no frontend of this kind serves."""


def negated(name: str) -> str:
    """Spell the ``--no-`` form of an option."""
    return f"--no-{name.removeprefix('--')}"


def option_names() -> list[str]:
    """List all their spellings."""
    names = list(UNSERVED)
    for name in (*INEFFECTIVE, *PROBES, *REJECTED):
        names += [name, negated(name)]
    return names

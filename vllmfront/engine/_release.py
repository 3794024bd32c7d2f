"""Which release of vLLM an engine is of: they differ in what they take."""

_NEWEST = (999, 0)


def release_of(vllm_version: str | None) -> tuple[int, int]:
    """Return major and minor version; what cannot be read counts as the newest."""
    try:
        major, minor = (vllm_version or "").split(".")[:2]
        return int(major), int(minor)
    except ValueError:
        return _NEWEST

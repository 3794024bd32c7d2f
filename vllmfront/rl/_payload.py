"""What a trainer sends, made fit for JSON. The format is that of vLLM's own HTTP client."""

import base64
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

UpdateInfo = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""One description of weights for all workers of a server, or one for each worker."""


def json_safe(info: UpdateInfo) -> Any:
    """Return *info* with handles of CUDA memory pickled, in base64, as workers expect them.

    Workers unpickle them only where ``VLLM_ALLOW_INSECURE_SERIALIZATION=1`` is set.
    """
    if not isinstance(info, Mapping):
        return [_json_safe(each) for each in info]
    return _json_safe(info)


def _json_safe(info: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(info)
    if fields.get("ipc_handles") is not None:
        pickled = pickle.dumps(fields.pop("ipc_handles"))
        fields["ipc_handles_pickled"] = base64.b64encode(pickled).decode()
    return fields

"""A vLLM plugin: a weight-transfer backend that needs no GPU, since weights come in the request.

vLLM finds it where this folder is on its path; ``{"backend": "inline"}`` chooses it. An update is
``{"tensors": {NAME: {"dtype": "bfloat16", "shape": [...], "data": BASE64}}}``.
"""

# mypy: ignore-errors
# It runs where vLLM is, which is not where types are checked.

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


def register() -> None:
    """Add the backend; called by vLLM in each of its processes."""
    import torch
    from vllm.distributed.weight_transfer import base
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader import reload

    @dataclass
    class Init(base.WeightTransferInitInfo):
        pass

    @dataclass
    class Update(base.WeightTransferUpdateInfo):
        tensors: dict[str, dict[str, Any]]

        def decoded(self) -> Iterator[tuple[str, Any]]:
            for name, tensor in self.tensors.items():
                content = bytearray(base64.b64decode(tensor["data"]))
                dtype = getattr(torch, tensor["dtype"])
                yield name, torch.frombuffer(content, dtype=dtype).reshape(tensor["shape"])

    class Inline(base.WeightTransferEngine):
        init_info_cls = Init
        update_info_cls = Update

        def init_transfer_engine(self, init_info: Any) -> None:
            """There is nobody to connect to."""

        def start_weight_update(self) -> None:
            reload.initialize_layerwise_reload(self.model)

        def update_weights(self, update_info: Any) -> None:
            self.receive_weights(self.parse_update_info(update_info))

        def receive_weights(self, update_info: Any) -> None:
            self.model.load_weights(update_info.decoded())

        def finish_weight_update(self) -> None:
            reload.finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None:
            """There is nobody to disconnect from."""

    if "inline" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("inline", Inline)

"""Adapters of the command line, as engines are told of them."""

from collections.abc import Sequence

from vllmfront.engine import LoraRequest
from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles._config import ServeConfig
from vllmfront.lifecycles._model import served_names


def adapters_of(config: ServeConfig) -> Sequence[LoraRequest]:
    """Return the adapters that engines load before they serve; ids are still to be given.

    Raises:
        ConfigurationError: Two have one name, or one has that of the model.
    """
    names = served_names(config)
    found: dict[str, LoraRequest] = {}
    for module in config.model.adapters:
        if module.name in names:
            raise ConfigurationError(
                f"--lora-modules: LoRA adapter `{module.name}` conflicts with a served base model"
            )
        if module.name in found:
            raise ConfigurationError(f"--lora-modules: two adapters are called {module.name!r}")
        base = module.base_model_name
        found[module.name] = LoraRequest(
            name=module.name,
            int_id=0,
            path=module.path,
            base_model_name=base if base in names else None,
            is_3d_lora_weight=module.is_3d_lora_weight,
        )
    return tuple(found.values())

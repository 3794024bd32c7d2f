"""Loading and unloading LoRA adapters while the server runs."""

from vllmfront.api.lora._paths import AdapterPaths
from vllmfront.api.lora._routes import ENABLED_BY, LoraRoutes

__all__ = ["ENABLED_BY", "AdapterPaths", "LoraRoutes"]

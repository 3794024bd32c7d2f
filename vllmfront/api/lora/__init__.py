"""Loading and unloading LoRA adapters while the server runs."""

from vllmfront.api.lora._paths import AdapterPaths
from vllmfront.api.lora._routes import LoraRoutes

__all__ = ["AdapterPaths", "LoraRoutes"]

"""Model files: where they are and what they say. The only place that talks to a model hub."""

from vllmfront.models._config import GenerationDefaults, ModelConfig, TokenizerConfig
from vllmfront.models._description import ModelDescription, load_model_description, read_text
from vllmfront.models._files import ModelFiles, files_in_folder
from vllmfront.models._resolve import resolve_model

__all__ = [
    "GenerationDefaults",
    "ModelConfig",
    "ModelDescription",
    "ModelFiles",
    "TokenizerConfig",
    "files_in_folder",
    "load_model_description",
    "read_text",
    "resolve_model",
]

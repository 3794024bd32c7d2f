"""A serving frontend for vLLM engines."""

__version__ = "0.1.0"

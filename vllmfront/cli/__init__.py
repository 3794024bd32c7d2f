"""The command line: one module a subcommand."""

from vllmfront.cli._errors import UsageError
from vllmfront.cli._main import main

__all__ = ["UsageError", "main"]

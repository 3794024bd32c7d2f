"""From what a person asks for to how orders are given."""

from vllmfront.control import ControlConfig
from vllmfront.lifecycles._config import ControlFlags


def control_config(flags: ControlFlags) -> ControlConfig:
    """Make the configuration of a control plane."""
    return ControlConfig(timeout=flags.timeout, guarded=not flags.unsafe_weight_sync)

"""An engine without a model: speaks the engine side of the boundary, token by seeded token."""

from vllmfront.simulator._config import VLLM_VERSIONS, SimulatorConfig
from vllmfront.simulator._engine import EngineSnapshot, SimulatedEngine
from vllmfront.simulator._script import Act, Rule, Script, load_script
from vllmfront.simulator._serve import Simulator, open_simulator, serve_simulator
from vllmfront.simulator._tokens import TokenSource

__all__ = [
    "VLLM_VERSIONS",
    "Act",
    "EngineSnapshot",
    "Rule",
    "Script",
    "SimulatedEngine",
    "Simulator",
    "SimulatorConfig",
    "TokenSource",
    "load_script",
    "open_simulator",
    "serve_simulator",
]

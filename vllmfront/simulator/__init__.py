"""An engine without a model: speaks the engine side of the boundary, token by seeded token."""

from vllmfront.simulator._config import VLLM_VERSIONS, SimulatorConfig
from vllmfront.simulator._engine import SimulatedEngine
from vllmfront.simulator._messages import Answer, Raw, StepOutput
from vllmfront.simulator._rim import Encode, Mortal, Rim, RimFactory, Spoken, StartPhase, no_rim
from vllmfront.simulator._script import Act, Rule, Script, load_script
from vllmfront.simulator._serve import Simulator, open_simulator, serve_simulator
from vllmfront.simulator._snapshot import EngineSnapshot
from vllmfront.simulator._tokens import TokenSource

__all__ = [
    "VLLM_VERSIONS",
    "Act",
    "Answer",
    "Encode",
    "EngineSnapshot",
    "Mortal",
    "Raw",
    "Rim",
    "RimFactory",
    "Rule",
    "Script",
    "SimulatedEngine",
    "Simulator",
    "SimulatorConfig",
    "Spoken",
    "StartPhase",
    "StepOutput",
    "TokenSource",
    "load_script",
    "no_rim",
    "open_simulator",
    "serve_simulator",
]

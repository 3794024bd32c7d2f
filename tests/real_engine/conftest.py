"""Engines under test."""

import pytest

from tests.real_engine._process import EnginePool
from tests.real_engine._subject import Subject

SIMULATORS = ("simulator-0.32.0", "simulator-0.33.0")
FAKE = "fake-0.33.0"
ENGINES = ("real-0.32.0", "real-0.33.0")


@pytest.fixture(
    params=[*SIMULATORS, FAKE, *(pytest.param(name, marks=pytest.mark.engine) for name in ENGINES)]
)
def subject(request: pytest.FixtureRequest) -> Subject:
    """Every engine that has to behave alike."""
    if request.param in (*SIMULATORS, FAKE):
        return Subject(request.param)
    pool: EnginePool = request.getfixturevalue("engine_pool")
    found = Subject(request.param, pool)
    pool.get(found.version)
    return found

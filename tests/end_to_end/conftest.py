"""Frontends with real engines behind them."""

from collections import deque
from collections.abc import Generator
from itertools import repeat

import pytest

from tests.end_to_end.deployments import DEPLOYMENTS, Ahead, Deployment
from tests.end_to_end.rig import (
    Server,
    external_options,
    managed_options,
    relaying,
    running,
)
from tests.real_engine._process import engine_python

FRONTENDS = ("managed-0.32.0", "external-real-0.33.0")
"""The second is served by the engine that all tests share."""


@pytest.fixture(scope="package", params=FRONTENDS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Server]:
    """A frontend in front of a real engine of each version in turn.

    Leave both alive and without requests.
    """
    folder = tmp_path_factory.mktemp("frontend")
    if request.param == "managed-0.32.0":
        with running(folder, *managed_options()) as frontend:
            frontend.wait_ready()
            yield frontend
        return
    engine = request.getfixturevalue("engine_pool").get("0.33.0")
    with (
        running(folder, *external_options()) as frontend,
        relaying(engine, frontend.handshake_address),
    ):
        frontend.wait_ready()
        yield frontend


@pytest.fixture(scope="package")
def ahead(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Ahead]:
    """The deployments that tests of this session have for themselves."""
    engine_python()
    wanted = [kind for item in request.session.items for kind in DEPLOYMENTS if _uses(item, kind)]
    ahead = Ahead((tmp_path_factory.mktemp(name) for name in repeat("deployment")), deque(wanted))
    yield ahead
    ahead.close()


def _uses(item: pytest.Item, fixture: str) -> bool:
    return fixture in getattr(item, "fixturenames", ())


@pytest.fixture
def managed(ahead: Ahead) -> Generator[Deployment]:
    """A frontend that runs its engine, for the test to end; it drains for ten seconds."""
    with ahead.take() as deployment:
        yield deployment


@pytest.fixture
def mortal(ahead: Ahead) -> Generator[Deployment]:
    """A frontend that runs its engine, and ends with it."""
    with ahead.take() as deployment:
        yield deployment


@pytest.fixture
def external(ahead: Ahead) -> Generator[Deployment]:
    """A frontend with an engine that was started apart from it."""
    with ahead.take() as deployment:
        yield deployment


@pytest.fixture
def parallel(ahead: Ahead) -> Generator[Deployment]:
    """A frontend with two engines that were started apart from it."""
    with ahead.take() as deployment:
        yield deployment

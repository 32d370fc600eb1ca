"""A real Envoy in every test of this folder; async ones share one event loop, so fixtures can be shared.

A default test that fails is run once more, and the summary says so: docs/decisions/0011.
"""

import inspect
from pathlib import Path

import pytest
import pytest_asyncio

from tests.envoy import fleet as fleets

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if _HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.envoy)
        if not any(item.iter_markers("heavy")) and not any(item.iter_markers("bench")):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture
def fleet(tmp_path):
    """`async with fleet(replicas=3, policy="cost", body_mode=..., ...) as running`: an own Fleet."""
    return lambda **options: fleets.fleet(tmp_path, **options)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_fleet(tmp_path_factory):
    """One default Fleet for all tests that leave it as they found it."""
    async with fleets.fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running

"""What every test is run with."""

import signal

import pytest
from hypothesis import settings

# Tests are never timed: a busy machine must not fail an example.
settings.register_profile("kvring", deadline=None)
settings.load_profile("kvring")


@pytest.fixture
def interruptible():
    """Children obey SIGINT even if this process was started to ignore it, as a job in the background is."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)

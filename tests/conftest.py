"""What every test is run with."""

from hypothesis import settings

# Tests are never timed: a busy machine must not fail an example.
settings.register_profile("kvring", deadline=None)
settings.load_profile("kvring")

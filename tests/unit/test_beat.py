"""When questions to many endpoints are asked: together, and never too early."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc import beat

moments = st.floats(0, 1e7)
waits = st.floats(0, 600)


@given(moments, waits)
def test_a_beat_is_never_early_and_less_than_a_tick_late(started_s: float, wait_s: float) -> None:
    late_s = beat.due_s(started_s, wait_s) - (started_s + wait_s)
    assert -1e-6 <= late_s < beat.TICK_S + 1e-6


def test_beats_of_many_endpoints_come_in_bunches() -> None:
    spread = [number / 256 for number in range(256)]  # over one second
    bunches = {beat.due_s(1000.0, wait_s) for wait_s in spread}
    assert len(bunches) <= 1 / beat.TICK_S + 1

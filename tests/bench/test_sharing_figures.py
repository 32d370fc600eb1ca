"""What sharing is worth: one process, three with a store, three workers, and three apart, side by side.

Each arm has its own Envoy, processes and eight simulated engines, and the first article's users; all run at
the same time, so that whatever the machine does hits them alike. Hits are the engines' own, times to first
token are engine time.

    pytest tests/bench/test_sharing_figures.py -m bench -s    # about four minutes
    FIGURES_S=300 pytest ...                                  # longer: P99 rests on more requests
"""

# ruff: noqa: T201

import contextlib
import os
from pathlib import Path

import pytest

from extproc.sim import driver, report, workload
from tests import valkey_server
from tests.envoy import several

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

SPEED = 1.0  # more, and the machine's own delays would show
USERS = 30
WARM_S, MEASURED_S = 40.0, float(os.environ.get("FIGURES_S", "160"))


def cpu_s(pid: int) -> float:
    """CPU seconds that a process and its children have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + sum(
        map(cpu_s, map(int, children))
    )


async def test_three_are_as_good_as_one(tmp_path, capsys):
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(valkey_server.running(tmp_path))
        arms = {}
        for name, url, options in (
            ("one", None, {"count": 1}),
            ("store", store.url, {"count": 3}),
            ("workers", None, {"workers": 3}),
            ("apart", None, {"count": 3}),
        ):
            directory = tmp_path / name
            directory.mkdir()
            arms[name] = await stack.enter_async_context(
                several.several(directory, url, engines=8, speed=SPEED, **options)
            )
        pids = {name: {one.child.pid for one in running.kvrings} for name, running in arms.items()}
        before = {name: sum(map(cpu_s, ours)) for name, ours in pids.items()}
        store_before_s = cpu_s(store.pid)
        load = driver.Driver(
            {name: running.url for name, running in arms.items()},
            workload.Workload(1, USERS),
            driver.Schedule(WARM_S + MEASURED_S, SPEED),
        )
        machine = await load.run()
        spent_s = {name: sum(map(cpu_s, ours)) - before[name] for name, ours in pids.items()}
        store_s = cpu_s(store.pid) - store_before_s
    window = report.Window(WARM_S, WARM_S + MEASURED_S)
    found = {name: report.arm_report(samples, window, 8) for name, samples in load.samples.items()}
    with capsys.disabled():
        print(f"\n{machine}\n{'':8} requests  hit   TTFT P50, P95, P99 [ms]   CPU a request [ms]")
        for name, arm in found.items():
            cpu_ms = 1e3 * spent_s[name] / len(load.samples[name])
            print(
                f"{name:8} {arm.requests:8} {100 * arm.engine_hit:5.1f} {arm.ttft_p50_ms:8.0f}"
                f" {arm.ttft_p95_ms:8.0f} {arm.ttft_p99_ms:8.0f} {cpu_ms:12.2f}"
            )
        print(f"the store itself: {1e3 * store_s / len(load.samples['store']):.2f} ms a request")
    assert not any(one.errors for one in found.values())
    for name in ("store", "workers"):
        assert found[name].engine_hit > found["one"].engine_hit - 0.02
        assert found[name].ttft_p99_ms < 1.15 * found["one"].ttft_p99_ms

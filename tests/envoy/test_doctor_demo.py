"""The doctor's promise against the demo: what it predicts from round robin's metrics is what kvring then
brings.

Minutes long. The demo's fleet runs faster than the engines it models and tells engine time, so looks are
dated in engine time, too.
"""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from rich.console import Console

from extproc.doctor import diagnosis, gain, sample
from extproc.doctor.finding import Kind
from extproc.sim import demo, driver, report, workload

pytestmark = [pytest.mark.envoy, pytest.mark.heavy, pytest.mark.timeout(400)]

WITHIN = 0.25


async def test_the_gain_predicted_is_the_gain_measured() -> None:
    settings = demo.Settings()
    load = workload.Workload(settings.seed, settings.users)
    samples: list[sample.Sample] = []
    async with demo._running(settings, Console(quiet=True)) as (envoy, children):
        arms = {arm: envoy.url(arm) for arm in (report.BASELINE, report.CANDIDATE)}
        client = driver.Driver(arms, load, driver.Schedule(settings.duration_s, settings.speed))

        async def look() -> None:
            async with aiohttp.ClientSession() as session:
                for address in children[0].ready["replicas"]:  # round robin's
                    async with session.get(f"http://{address}/metrics") as answer:
                        samples.append(sample.read(address, client.elapsed_s, await answer.read()))

        async def looks() -> None:
            for at_s in (settings.window.start_s, settings.window.end_s):
                await asyncio.sleep((at_s - client.elapsed_s) / settings.speed)
                await look()

        await asyncio.gather(client.run(), looks())
    found = {
        name: report.arm_report(some, settings.window, settings.endpoints)
        for name, some in client.samples.items()
    }
    before, after = found[report.BASELINE], found[report.CANDIDATE]
    (fleet,) = diagnosis.diagnose(samples)
    assert fleet.findings[0].kind is Kind.SCATTERED
    predicted = fleet.case.estimate.gains[gain.Change.ROUTING]
    rate = before.requests_per_s * predicted.throughput
    saved_ms = before.ttft_mean_ms - predicted.ttft_mean_s * 1000
    rows = {
        "engine hit": (predicted.hit, after.engine_hit),
        "hit gained": (predicted.hit - before.engine_hit, after.engine_hit - before.engine_hit),
        "TTFT mean saved [ms]": (saved_ms, before.ttft_mean_ms - after.ttft_mean_ms),
        "requests/s": (rate, after.requests_per_s),
        "throughput gained": (predicted.throughput - 1, after.requests_per_s / before.requests_per_s - 1),
    }
    for label, (ours, theirs) in rows.items():
        print(f"{label}: predicted {ours:.3g}, measured {theirs:.3g}")  # noqa: T201
    p50, p99 = predicted.ttft_p50_s * 1000, predicted.ttft_p99_s * 1000
    print(f"TTFT P50 / P99 [ms]: predicted {p50:.0f} / {p99:.0f}, "  # noqa: T201
          f"measured {after.ttft_p50_ms:.0f} / {after.ttft_p99_ms:.0f}")  # fmt: skip
    for label, (ours, theirs) in rows.items():
        assert ours == pytest.approx(theirs, rel=WITHIN), label

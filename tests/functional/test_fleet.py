"""A fleet at work over real HTTP: who may be chosen, what is known of the engines, what follows from it."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from extproc import choice, config, gauges, pool, signals
from tests import ports
from tests.functional import engines
from tests.functional.conftest import ROOT, eventually


def homes(running: engines.Running, texts: list[str]) -> dict[str, str]:
    return {text: str(running.send(text).endpoint.id) for text in texts}


# ---- restarts and lost caches: M08 ----


async def test_a_restart_in_place_drops_what_that_endpoint_held_and_keeps_its_homes() -> None:
    async with engines.running(engines.several(3), policy="ring") as running:
        texts = list(engines.prompts(40))
        before = homes(running, texts)
        held = {name: running.router.residency.blocks(pool.EndpointId(name)) for name in running.engines}
        assert all(held.values())
        for engine in running.engines.values():
            await engine.scraped()
        await running.engines["e1"].restart()
        await eventually(lambda: running.events("restarted") == 1)
        now = {name: running.router.residency.blocks(pool.EndpointId(name)) for name in running.engines}
        assert now == held | {"e1": 0}
        await running.becomes("e0", "e1", "e2")
        assert homes(running, texts) == before
        assert running.events("restarted") == 1


async def test_a_restart_of_an_engine_that_tells_nothing_is_seen_by_its_refusals() -> None:
    async with engines.running(engines.several(2, metrics_status=404)) as running:
        texts = list(engines.prompts(20))
        homes(running, texts)
        await running.engines["e0"].stop()
        await running.becomes("e1")
        await running.engines["e0"].start()
        await running.becomes("e0", "e1")
        assert running.events("restarted") == 1
        assert running.router.residency.blocks(pool.EndpointId("e0")) == 0
        assert running.router.residency.blocks(pool.EndpointId("e1")) > 0


async def test_a_cache_reset_without_a_restart_is_seen_in_the_hits() -> None:
    counters = {"prefix_cache_queries_total": 0.0, "prefix_cache_hits_total": 0.0}
    one = engines.Engine(counters=counters)
    async with engines.running({"e0": one}) as running:
        texts = list(engines.prompts(10))
        await one.scraped()
        for _ in range(2):
            for text in texts:
                tokens = running.send(text).prompt_tokens
                counters["prefix_cache_queries_total"] += tokens
            await one.scraped()
        assert running.events("cache_lost") == 1  # all of the second round was thought to be there
        assert running.router.residency.blocks(pool.EndpointId("e0")) == 0
        running.send(texts[0])
        await one.scraped()
        assert running.events("cache_lost") == 1


async def test_a_sleeping_engine_takes_nothing_and_holds_nothing() -> None:
    async with engines.running(engines.several(2)) as running:
        homes(running, list(engines.prompts(20)))
        running.engines["e0"].asleep = True
        await running.becomes("e1")
        assert running.against("e0") == {"asleep"}
        assert running.router.residency.blocks(pool.EndpointId("e0")) == 0
        running.engines["e0"].asleep = False
        await running.becomes("e0", "e1")


# ---- signals ----


async def test_an_engine_slow_to_tell_is_asked_one_question_at_a_time_and_delays_no_choice() -> None:
    """M10."""
    slow, quick = engines.Engine(delay_s=60.0), engines.Engine()
    patient = config.Signals(interval_s=0.05, timeout_s=60.0, models_interval_s=0.05)
    async with engines.running({"slow": slow, "quick": quick}, signals=patient) as running:
        await quick.scraped(5)
        chosen = Counter(str(running.send(text).endpoint.id) for text in engines.prompts(50))
        assert chosen["slow"] > 10
        assert slow.scraping_max == 1
        assert slow.scrapes == 0
        assert running.router.signals.age(pool.EndpointId("slow"), time.monotonic()) == "absent"


async def test_an_engine_without_metrics_is_chosen_by_what_was_counted_and_that_is_told() -> None:
    """O03."""
    dumb, good = engines.Engine(metrics_status=404), engines.Engine(kv_usage=0.5)
    async with engines.running({"dumb": dumb, "good": good}) as running:
        await good.scraped()
        for text in engines.prompts(40):
            running.send(text)

        def count(age: str) -> float:
            labels = {"signals": age}
            return running.metrics.registry.get_sample_value("kvring_choice_signals_total", labels) or 0.0

        assert count("fresh") > 5
        assert count("absent") > 5
        assert count("stale") == 0
        view = {one.endpoint.id: one for one in running.fleet.view(time.monotonic()).endpoints}
        assert view[pool.EndpointId("dumb")].known.scrape_problem == "status 404"
        assert view[pool.EndpointId("dumb")].signal is None
        text = running.metrics.exposition().decode()
        assert 'kvring_scrapes_total{result="status"}' in text
        assert 'kvring_choice_signals_total{signals="absent"}' in text


async def test_signals_that_grow_old_are_used_no_more() -> None:
    settings = config.Signals(interval_s=0.05, age_max_s=1.0, models_interval_s=0)
    one = engines.Engine(kv_usage=0.9, running=7)
    async with engines.running({"e0": one}, signals=settings) as running:
        await one.scraped()
        name, board = pool.EndpointId("e0"), running.router.signals
        assert board.load(name, 0.0, time.monotonic()) == (0.9, 7)
        one.delay_s = 60
        await eventually(lambda: board.age(name, time.monotonic()) is signals.SignalAge.STALE)
        assert board.load(name, 0.0, time.monotonic()) == (None, 0)
        assert running.send("x" * 1000).signals is signals.SignalAge.STALE


async def test_an_engine_busy_with_what_others_sent_is_avoided() -> None:
    busy, free = engines.Engine(running=40, waiting=10), engines.Engine()
    async with engines.running({"busy": busy, "free": free}) as running:
        await busy.scraped()
        await free.scraped()
        assert {str(running.send(text).endpoint.id) for text in engines.prompts(30)} == {"free"}


async def test_our_own_requests_in_the_engine_count_once() -> None:
    one = engines.Engine()
    async with engines.running({"e0": one}) as running:
        leases = [running.choose(text) for text in engines.prompts(5)]
        one.running = 5
        await one.scraped()
        signal = running.router.signals.newest(pool.EndpointId("e0"))
        assert signal is not None
        assert signal.foreign == 0
        for decided in leases:
            assert isinstance(decided, choice.Decision)
            decided.lease.release()


async def test_kv_that_our_own_requests_hold_is_not_that_of_others() -> None:
    one = engines.Engine()
    async with engines.running({"e0": one}) as running:
        name = pool.EndpointId("e0")
        decided = running.choose("x" * 100_000)
        assert isinstance(decided, choice.Decision)
        own = running.router.ledger.load(name, time.monotonic()).kv_tokens
        assert own > 20_000
        one.kv_usage = 0.5
        await one.scraped()
        signal = running.router.signals.newest(name)
        assert signal is not None
        assert signal.foreign_kv_tokens == max(0.0, 0.5 * signal.kv_tokens - own)
        assert 0.0 < signal.foreign_kv_tokens < 0.5 * signal.kv_tokens
        decided.lease.release()


async def test_the_engine_tells_its_capacity_unless_it_is_configured() -> None:
    texts = list(engines.prompts(100))  # 1,000 tokens each
    for given, expected in ((None, 20_000), (8_000, 8_000)):
        one = engines.Engine(kv_tokens=20_000)
        async with engines.running({"e0": one}, kv_tokens=given) as running:
            await one.scraped()
            homes(running, texts)
            held = running.router.residency.blocks(pool.EndpointId("e0")) * 64
            assert expected - 64 <= held <= expected


async def test_prefill_rate_and_bytes_per_token_are_learned_from_the_engines() -> None:
    names = ("request_prefill_kv_computed_tokens_sum", "request_prefill_time_seconds_sum",
             "request_prompt_tokens_count", "request_prompt_tokens_sum")  # fmt: skip
    one = engines.Engine(counters=dict.fromkeys(names, 0.0))
    async with engines.running({"e0": one}) as running:
        await one.scraped()
        for text in engines.prompts(30):
            running.send(text)
            one.counters[names[2]] += 1
            one.counters[names[3]] += len(text) / 3
        one.counters[names[0]], one.counters[names[1]] = 40_000.0, 2.0
        await eventually(lambda: running.router.settings.bytes_per_token == pytest.approx(3.0, rel=0.05))
        assert running.router.settings.prefill_tokens_per_s == 20_000
        assert running.router.ledger.prefill_tokens_per_s == 20_000


# ---- refusals ----


async def test_an_engine_that_answers_5xx_while_its_health_is_well_is_kept_out_for_a_while() -> None:
    health = config.Health(interval_s=0.05, timeout_s=10.0, eject_s=1.5)
    async with engines.running(engines.several(3), health=health) as running:
        sick = running.engines["e1"]
        await sick.scraped()
        sick.posts["5xx"] += 10
        await running.becomes("e0", "e2")
        assert running.against("e1") == {"failing"}
        assert running.events("ejected") == 1
        await running.becomes("e0", "e1", "e2")
        assert running.router.ramp.share(pool.EndpointId("e1"), time.monotonic()) < 0.5
        sick.posts["5xx"] += 10
        await running.becomes("e0", "e2")
        assert running.events("ejected") == 2


async def test_answers_seen_on_their_way_count_too() -> None:
    async with engines.running(engines.several(3)) as running:
        for _ in range(3):
            running.fleet.answered(running.member("e2"), good=False)
        assert running.ready() == {"e0", "e1"}
        running.fleet.answered(pool.Endpoint(pool.EndpointId("nobody"), "127.0.0.1:1"), good=False)


async def test_a_fault_that_all_share_empties_no_pool() -> None:
    async with engines.running(engines.several(5)) as running:
        for _ in range(3):
            for name in running.engines:
                running.fleet.answered(running.member(name), good=False)
        await running.engines["e0"].scraped()
        assert len(running.ready()) == 3


async def test_an_engine_whose_queue_is_full_is_passed_over_until_it_rejects_no_more() -> None:
    one = engines.Engine(counters={"admission_rejections_total": 0.0})
    async with engines.running({"e0": one, "e1": engines.Engine()}) as running:
        await one.scraped()

        def passed_over() -> bool:  # while it goes on to reject: two scrapes without and it is back
            one.counters["admission_rejections_total"] += 3
            one.posts["5xx"] += 3
            return running.ready() == {"e1"} and running.against("e0") == {"full"}

        await eventually(passed_over)
        await running.becomes("e0", "e1")
        assert running.events("ejected") == 0


async def test_an_envoys_view_counts_and_its_silence_does_not() -> None:
    failed: set[str] = set()

    async def clusters(_: web.Request) -> web.Response:
        hosts = [
            {
                "address": {"socket_address": {"address": "127.0.0.1", "port_value": int(port)}},
                "health_status": {"failed_outlier_check": True} if port in failed else {},
            }
            for port in listed
        ]
        return web.json_response({"cluster_statuses": [{"name": "llm", "host_statuses": hosts}]})

    app = web.Application()
    app.router.add_get("/clusters", clusters)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    admin = f"http://127.0.0.1:{runner.addresses[0][1]}"
    view = config.EnvoyCluster(admin=admin, cluster="llm", poll_interval_s=0.05)
    health = config.Health(interval_s=0.05, timeout_s=10.0, envoy=view)
    made = engines.several(2)
    listed: list[str] = []
    async with engines.running(made, health=health) as running:
        listed += [engine.address.rpartition(":")[2] for engine in made.values()]
        failed.add(listed[0])
        await running.becomes("e1")
        assert running.against("e0") == {"envoy"}
        await ports.leave(runner)
        await running.becomes("e0", "e1")


# ---- membership ----


async def test_a_newcomer_is_chosen_once_it_answered_and_then_ramps_up() -> None:
    made = engines.several(3)
    made["e2"].health = 503
    async with engines.running(made, slow_start_s=60) as running:
        old = [running.member("e0"), running.member("e1")]
        running.script.list(*old)
        await eventually(lambda: len(running.router.pool.endpoints) == 2)
        running.script.list(*old, running.member("e2"))
        await eventually(lambda: len(running.router.pool.endpoints) == 3)
        await made["e2"].scraped()
        assert running.ready() == {"e0", "e1"}
        made["e2"].health = 200
        await running.becomes("e0", "e1", "e2")
        assert running.router.ramp.share(pool.EndpointId("e2"), time.monotonic()) == 0.1
        assert running.router.ramp.share(pool.EndpointId("e0"), time.monotonic()) == 1.0


async def test_a_draining_endpoint_takes_nothing_new_and_keeps_its_open_requests() -> None:
    """M03."""
    async with engines.running(engines.several(2)) as running:
        opened = [running.choose(text) for text in engines.prompts(20)]
        inflight = running.router.ledger.load(pool.EndpointId("e0"), time.monotonic()).inflight
        assert inflight > 0
        running.script.list(running.member("e0", ready=False), running.member("e1"))
        await running.becomes("e1")
        assert running.against("e0") == {"source"}
        assert {str(running.send(text).endpoint.id) for text in engines.prompts(20, 100)} == {"e1"}
        assert running.router.ledger.load(pool.EndpointId("e0"), time.monotonic()).inflight == inflight
        for decided in opened:
            assert isinstance(decided, choice.Decision)
            decided.lease.release()
        assert running.router.ledger.load(pool.EndpointId("e0"), time.monotonic()).inflight == 0


async def test_an_endpoint_that_leaves_and_rejoins_with_requests_open_starts_clean() -> None:
    """L03."""
    async with engines.running(engines.several(2), policy="round_robin") as running:
        name = pool.EndpointId("e0")
        opened = [running.choose(text) for text in engines.prompts(20)]
        of_it = [d for d in opened if isinstance(d, choice.Decision) and d.choice.endpoint.id == name]
        assert len(of_it) == 10
        running.script.list(running.member("e1"))
        await running.becomes("e1")
        running.script.list(running.member("e0"), running.member("e1"))
        await running.becomes("e0", "e1")

        def load() -> tuple[int, int]:
            found = running.router.ledger.load(name, time.monotonic())
            return found.inflight, found.pending

        assert load() == (0, 0)
        more = [running.choose(text) for text in engines.prompts(6, 50)]
        counted = load()
        assert counted[0] == 3
        for decided in of_it:
            decided.lease.release()
        assert load() == counted
        for decided in more:
            assert isinstance(decided, choice.Decision)
            decided.lease.release()
        assert load() == (0, 0)


async def test_another_address_under_an_old_name_is_another_process() -> None:
    made = engines.several(2) | {"other": engines.Engine()}
    async with engines.running(made) as running:
        running.script.list(running.member("e0"), running.member("e1"))
        await running.becomes("e0", "e1")
        homes(running, list(engines.prompts(30)))
        moved = pool.Endpoint(pool.EndpointId("e0"), made["other"].address)
        running.script.list(moved, running.member("e1"))
        await eventually(lambda: made["other"].address in {e.address for e in running.router.pool.ready})
        assert running.router.residency.blocks(pool.EndpointId("e0")) == 0
        await made["e0"].stop()
        await asyncio.sleep(0.2)
        assert running.ready() == {"e0", "e1"}


async def test_data_parallel_ranks_are_endpoints_of_their_own() -> None:
    """M09."""
    async with engines.running(engines.several(8), policy="ring") as running:
        assert len({endpoint.address.rpartition(":")[0] for endpoint in running.router.pool.endpoints}) == 1
        chosen = Counter(homes(running, list(engines.prompts(400))).values())
        assert len(chosen) == 8
        running.engines["e3"].health = 500
        await running.becomes(*(set(running.engines) - {"e3"}))


async def test_nobody_left_is_told_loudly(caplog: pytest.LogCaptureFixture) -> None:
    async with engines.running(engines.several(2)) as running:
        for engine in running.engines.values():
            engine.health = 500
        await running.becomes()
        assert isinstance(running.choose("x"), choice.NoEndpoint)
        assert running.fleet.view(time.monotonic()).panics
        assert sum("nobody can be chosen" in record.message for record in caplog.records) == 1


# ---- models ----


async def test_an_adapter_is_sent_only_to_those_that_have_it_as_it_comes_and_goes() -> None:
    made = engines.several(4)
    for name in ("e0", "e2"):
        made[name].models = ["base", "adapter"]
    async with engines.running(made) as running:
        texts = list(engines.prompts(40))
        assert {str(running.send(text, "adapter").endpoint.id) for text in texts} == {"e0", "e2"}
        assert {str(running.send(text).endpoint.id) for text in texts} == {"e0", "e1", "e2", "e3"}
        made["e0"].models = ["base"]
        made["e3"].models = ["base", "adapter"]
        await eventually(lambda: {e.id for e in running.router.pool.serving("adapter")} == {"e2", "e3"})
        assert {str(running.send(text, "adapter").endpoint.id) for text in texts} == {"e2", "e3"}


async def test_an_adapter_at_work_is_known_before_the_models_are_asked_for_again() -> None:
    made = engines.several(2)
    settings = config.Signals(interval_s=0.05, models_interval_s=600)
    async with engines.running(made, signals=settings) as running:
        assert running.router.pool.models == {"base"}
        made["e1"].adapters = "new,"
        await eventually(lambda: {e.id for e in running.router.pool.serving("new")} == {"e1"})
        assert {e.id for e in running.router.pool.serving("base")} == {"e0", "e1"}


async def test_nobody_listening_is_noticed_by_the_scraper_too() -> None:
    made = engines.several(2)
    health = config.Health(interval_s=3.0, timeout_s=10.0)  # they have just been probed
    async with engines.running(made, health=health) as running:
        await made["e0"].stop()
        await running.becomes("e1")
        bad = running.metrics.registry.get_sample_value("kvring_health_probes_total", {"result": "bad"})
        assert not bad
        assert running.against("e0") == {"refused"}
        await made["e0"].start()
        await running.becomes("e0", "e1")


async def test_who_does_not_tell_its_models_is_taken_to_serve_all() -> None:
    made = engines.several(2)
    made["e0"].models_status = 401
    async with engines.running(made) as running:
        assert {str(running.send(text, "adapter").endpoint.id) for text in engines.prompts(10)} == {"e0"}
        assert {str(running.send(text).endpoint.id) for text in engines.prompts(30)} == {"e0", "e1"}


# ---- truth ----


async def test_an_engine_that_evicts_more_than_thought_is_counted_on_for_less() -> None:
    counters = {"prefix_cache_queries_total": 0.0, "prefix_cache_hits_total": 0.0}
    one = engines.Engine(counters=counters, kv_tokens=100_000)
    async with engines.running({"e0": one}) as running:
        running.fleet.clock = _Clock()
        name = pool.EndpointId("e0")
        texts = list(engines.prompts(90))  # fit by the engine's word; in truth it keeps 60 of them
        for _ in range(8):
            for number, text in enumerate(texts):
                chosen = running.send(text)
                counters["prefix_cache_queries_total"] += chosen.prompt_tokens
                counters["prefix_cache_hits_total"] += 0.6 * chosen.prompt_tokens * (number < 60)
            running.fleet.clock.now += 20
            await one.scraped()
        (view,) = running.fleet.view(0.0).endpoints
        assert view.known.scale < 0.9
        assert view.known.true == pytest.approx(0.4, abs=0.05)
        assert running.router.residency.blocks(name) * 64 < 95_000
        text = running.metrics.exposition().decode()
        assert "kvring_endpoint_predicted_cached_tokens_total{" in text


async def test_an_engine_that_lost_its_cache_shows_as_a_gap_that_raises_the_alerts() -> None:
    """O01: foretold and found diverge for that endpoint by more than the alerts fire at.

    Nothing found is a cache that was lost; little, one that is counted on for less.
    """
    rules = (ROOT / "helm/kvring/files/rules/kvring-alerts.yaml").read_text(encoding="utf-8")
    (gap_most,) = re.findall(r"kvring_prediction_gap_ratio\[3m\]\)\) > ([0-9.]+)", rules)
    (scale_least,) = re.findall(r"\(kvring_residency_scale\) < ([0-9.]+)", rules)
    counters = {"prefix_cache_queries_total": 0.0, "prefix_cache_hits_total": 0.0}
    one = engines.Engine(counters=counters, kv_tokens=100_000)
    async with engines.running({"e0": one}) as running:
        running.fleet.clock = _Clock()
        texts = list(engines.prompts(50))
        shown = CollectorRegistry()
        shown.register(gauges.Gauges(lambda now: [running.fleet.view(now)], time.monotonic))

        def told(metric: str) -> float:
            value = shown.get_sample_value(metric, {"pool": "default", "endpoint": "e0"})
            assert value is not None
            return value

        gaps: dict[float, list[float]] = {1.0: [], 0.0: [], 0.3: []}
        for found, seen in gaps.items():
            for _ in range(8):
                for text in texts:
                    chosen = running.send(text)
                    counters["prefix_cache_queries_total"] += chosen.prompt_tokens
                    counters["prefix_cache_hits_total"] += chosen.cached_tokens * found
                running.fleet.clock.now += 20
                await one.scraped()
                gap = told("kvring_prediction_gap_ratio")
                if not math.isnan(gap):
                    seen.append(gap)
            if found == 1.0:
                assert max(seen) < float(gap_most)
                assert told("kvring_residency_scale") == 1.0
                assert running.events("cache_lost") == 0
        assert max(gaps[0.0]) > float(gap_most)
        assert running.events("cache_lost") >= 1
        assert max(gaps[0.3]) > float(gap_most)
        assert told("kvring_residency_scale") < float(scale_least)


class _Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now

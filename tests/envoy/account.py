"""Account: what kvring says is in flight, against what really is."""

from __future__ import annotations

from pathlib import Path

from tests.envoy import client
from tests.envoy import fleet as fleets


def endpoints(state: dict) -> list[dict]:
    return state["pools"][0]["endpoints"]


def inflight(state: dict) -> dict[str, int]:
    """By endpoint name."""
    return {each["name"]: each["inflight"] for each in endpoints(state)}


def really_inflight(running: fleets.Fleet) -> dict[str, int]:
    """By replica name, what its engine holds."""
    return {each.settings.name: each.engine.running + each.engine.waiting for each in running.replicas}


def tokens_made(running: fleets.Fleet) -> int:
    """Tokens of answers that the replicas have made since they were started."""
    return sum(each.engine.tally.generation_tokens for each in running.replicas)


def ready(state: dict) -> set[str]:
    """Names of the endpoints that may be chosen."""
    return {each["name"] for each in endpoints(state) if each["ready"]}


async def settled(running: fleets.Fleet) -> None:
    """Returns when nothing is open in kvring or in a replica; fails saying what is left if that never comes.

    Exactly zero: a count that is off by one never comes back.
    """
    left = ""

    async def empty() -> bool:
        nonlocal left
        state = await running.state()
        pool = state["pools"][0]
        left = f"leases {pool['open_leases']}, {pool['endpoints']}, replicas {really_inflight(running)}"
        return (
            pool["open_leases"] == 0
            and all(each["inflight"] == each["pending_tokens"] == 0 for each in pool["endpoints"])
            and await running.metric("kvring_streams_open") == 0
            and not any(really_inflight(running).values())
        )

    try:
        await client.until(empty)
    except AssertionError:
        raise AssertionError(f"not settled: {left}") from None


async def bypassed(running: fleets.Fleet) -> bool:
    """Whether Envoy knows that kvring serves no more, and asks nobody."""
    stats = await running.envoy.stats("cluster.kvring.membership_healthy")
    return stats["cluster.kvring.membership_healthy"] == 0


async def retries(running: fleets.Fleet) -> int:
    """How often Envoy sent a request of kvring's door again, to another endpoint."""
    stats = await running.envoy.stats(r"cluster\.llm\.upstream_rq_retry$")
    return stats["cluster.llm.upstream_rq_retry"]


def rss_bytes(running: fleets.Fleet) -> int:
    """Resident memory of the kvring process."""
    status = Path(f"/proc/{running.kvring.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


async def series(running: fleets.Fleet) -> set[str]:
    """Names and labels of all samples kvring exposes."""
    lines = (await running.metrics()).splitlines()
    return {line.rsplit(" ", 1)[0] for line in lines if line and not line.startswith("#")}

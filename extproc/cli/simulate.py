"""What if: policies compared on a modelled fleet, without one.

The production router runs under a virtual clock over engines whose steps are computed, not waited for:
minutes of traffic take seconds. Every policy gets the same requests. Figures stand beside their ratio to
round robin.

    kvring simulate                                    # the first article's load, kvring against round robin
    kvring simulate --workload first:prefixes=20 --seeds 3 --policy all
    kvring simulate --trace requests.jsonl --endpoints 4 --preset 8b-h100 --policy cost,ring --out result
    kvring simulate --workload chat --from-metrics http://vllm-0:8000/metrics
    kvring simulate --list

Round robin always runs too, and a sentence says whether prefix routing pays on that load. Times are those of
the modelled hardware. Exit code: 0, or 2 for a request that makes no sense.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from extproc.cli import ranges, targets
from extproc.sim import (
    chooser,
    comparison,
    comparison_files,
    comparison_table,
    content,
    observed,
    performance,
    policies,
    scenario,
    traces,
    workloads,
)

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `kvring simulate`."""
    load = parser.add_argument_group("load")
    load.add_argument(
        "--workload",
        default="first",
        metavar="NAME[:KEY=VALUE,...]",
        help="a generated load, see --list (default: %(default)s)",
    )
    load.add_argument("--trace", metavar="FILE", help="replay this file, or the one in $KVRING_DATA/traces")
    load.add_argument(
        "--scale",
        type=ranges.number(0.01, 100),
        default=1.0,
        help="how busy, 1 is as given (default: %(default)g)",
    )
    load.add_argument(
        "--duration", type=ranges.number(1, 86_400), metavar="S", help="how long load is sent [s]"
    )
    load.add_argument(
        "--warmup", type=ranges.number(0, 86_400), metavar="S", help="not measured at the start [s]"
    )
    load.add_argument(
        "--seeds", type=ranges.whole(1, 100), default=1, help="runs of each policy (default: 1)"
    )
    load.add_argument("--list", action="store_true", help="name workloads, policies and presets, and stop")
    routing = parser.add_argument_group("routing")
    routing.add_argument(
        "--policy",
        action="append",
        metavar="NAME,...",
        help=f"to compare with round robin; `all` for every one (default: {policies.OWN})",
    )
    routing.add_argument("--replicas", type=ranges.whole(1, 64), default=1, help="of kvring (default: 1)")
    routing.add_argument("--shared-view", action="store_true", help="they share residency and load at once")
    routing.add_argument(
        "--sharing-delay", type=ranges.number(0, 3600), metavar="S", help="... or so many seconds late"
    )
    routing.add_argument(
        "--blind", action="store_true", help="routers do not see answers begin: no response bodies"
    )
    fleet = parser.add_argument_group("fleet")
    fleet.add_argument(
        "--endpoints", type=ranges.whole(1, 256), metavar="N", help="model servers at the start"
    )
    fleet.add_argument("--preset", choices=sorted(performance.PRESETS), help="model and GPU of each")
    fleet.add_argument(
        "--from-metrics",
        metavar="URL",
        help="take KV capacity, prefill rate and time between tokens from a vLLM's /metrics (or a saved one)",
    )
    fleet.add_argument(
        "--speeds",
        type=_speeds,
        metavar="X,...",
        help="speed of each relative to the preset, the last for the rest: 1,1,.5",
    )
    fleet.add_argument(
        "--kv-tokens", type=ranges.whole(16, 1 << 40), metavar="N", help="GPU KV cache of each"
    )
    fleet.add_argument(
        "--host-kv-tokens", type=ranges.whole(0, 1 << 40), metavar="N", help="CPU tier of each"
    )
    fleet.add_argument(
        "--external-kv-tokens", type=ranges.whole(0, 1 << 40), metavar="N", help="store shared by all"
    )
    fleet.add_argument(
        "--block-tokens",
        type=ranges.whole(16, 1024),
        metavar="N",
        help="of a KV block, a multiple of 16; larger runs quicker (default: 16, traces 64)",
    )
    for kind, text in (
        ("fail", "its process ends for good"),
        ("restart", "its process starts anew, cold"),
        ("add", "a new one joins"),
    ):
        fleet.add_argument(
            f"--{kind}",
            action="append",
            type=_event(kind),
            default=[],
            metavar="NAME@T",
            help=f"at T s {text}",
        )
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write all figures of all seeds")
    output.add_argument(
        "--out", type=Path, metavar="DIR", help="write page, pictures (PNG, SVG), CSV and JSON there"
    )
    output.add_argument(
        "--node-price",
        type=ranges.number(0, 1e6),
        metavar="USD",
        help=f"of all endpoints, per hour (default: {comparison.NODE_PRICE_USD_PER_H:g} for each)",
    )


def run(args: argparse.Namespace) -> int:
    """Simulates; the exit code."""
    console = Console()
    if args.list:
        _list(console)
        return 0
    missing: str | None = None
    try:
        asked = _scenario(args)
        chosen = _policies(args.policy)
        made = _compare(asked, chosen, args.seeds, args.node_price)
        if args.json:
            args.json.write_text(comparison_files.json_text(made), encoding="utf-8")
        if args.out:
            missing = comparison_files.write(made, args.out)
    except KeyboardInterrupt:
        print("kvring simulate: interrupted", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"kvring simulate: {error}", file=sys.stderr)
        return 2
    comparison_table.tell(made, console)
    if missing:
        print(f"kvring simulate: {missing}", file=sys.stderr)
    if args.out:
        print(f"Page, pictures and figures: {args.out.resolve()}")
    return 0


def _scenario(args: argparse.Namespace) -> scenario.Scenario:
    """The scenario asked for. Errors: ValueError, OSError."""
    if args.trace:
        model = performance.PRESETS[args.preset or "32b-fp8-h100"]
        model = replace(model, block_tokens=args.block_tokens or 64)
        asked = traces.load(traces.find(args.trace), model, args.endpoints or 8, args.scale)
    else:
        asked = workloads.make(args.workload, args.scale)
    changes: dict[str, object] = {"models": _models(args, asked)}
    if args.duration is not None:
        changes["duration_s"] = args.duration
        changes["warmup_s"] = min(asked.warmup_s, args.duration / 5)
    if args.warmup is not None:
        changes["warmup_s"] = args.warmup
    if args.external_kv_tokens is not None:
        changes["external_kv_tokens"] = args.external_kv_tokens
    changes["routers"] = args.replicas
    if args.shared_view:
        changes["sharing"] = scenario.Sharing.EXACT
    elif args.sharing_delay is not None:
        changes["sharing"] = scenario.Sharing.DELAYED
        changes["sharing_delay_s"] = args.sharing_delay
    changes["sees_first_token"] = not args.blind
    changes["events"] = (*asked.events, *args.fail, *args.restart, *args.add)
    made = replace(asked, **changes)  # type: ignore[arg-type]  # values by name, each checked above
    _check(made)
    return made


def _models(args: argparse.Namespace, asked: scenario.Scenario) -> tuple[performance.Performance, ...]:
    model = performance.PRESETS[args.preset] if args.preset and not args.trace else asked.models[0]
    if args.from_metrics:
        seen = observed.observe(_exposition(args.from_metrics), model)
        model = seen.model
        for label, phrases in (("observed", seen.told), ("not told", seen.untold)):
            if phrases:
                print(f"{label}: {', '.join(phrases)}", file=sys.stderr)
    for name in ("kv_tokens", "host_kv_tokens", "block_tokens"):
        if getattr(args, name) is not None:
            model = replace(model, **{name: getattr(args, name)})
    count = args.endpoints or len(asked.models)
    speeds: list[float] = args.speeds or [1.0]
    speeds = (speeds + speeds[-1:] * count)[:count]
    return tuple(performance.scaled(model, speed) for speed in speeds)


def _exposition(source: str) -> bytes:
    """What a URL answers or a file holds. Errors: ValueError, OSError."""
    if "://" not in source:
        return targets.unpacked(Path(source))
    shown = targets.without_user(source)
    if not source.startswith(("http://", "https://")):
        raise ValueError(f"--from-metrics {shown}: must be http:// or https:// or a file")
    try:
        return asyncio.run(targets.answered(source))
    except ValueError as error:
        raise ValueError(f"--from-metrics {shown}: {error}") from error


def _check(asked: scenario.Scenario) -> None:
    if asked.warmup_s >= asked.duration_s:
        raise ValueError(
            f"warm-up {asked.warmup_s:g} s: must end before the duration, {asked.duration_s:g} s"
        )
    block_tokens = asked.models[0].block_tokens
    if block_tokens % content.BLOCK_TOKENS:
        raise ValueError(f"block_tokens is {block_tokens}, must be a multiple of {content.BLOCK_TOKENS}")
    known = {f"replica-{number}" for number in range(len(asked.models))}
    added = {event.endpoint for event in asked.events if event.kind is scenario.Kind.ADD}
    for event in asked.events:
        if event.kind is scenario.Kind.ADD:
            if event.endpoint in known:
                raise ValueError(f"add {event.endpoint}: is there already")
        elif event.endpoint not in known | added | {"*"}:
            raise ValueError(f"{event.kind} {event.endpoint}: there are {', '.join(sorted(known))}, or *")


def _policies(names: list[str] | None) -> Mapping[str, chooser.Factory]:
    """The baseline first, unless it was placed by name."""
    known = policies.factories()
    asked = [name.strip() for text in names or [policies.OWN] for name in text.split(",")]
    if "all" in asked:
        return known
    for name in asked:
        if name not in known:
            raise ValueError(f"policy {name}: unknown, there are {', '.join(known)}")
    if comparison.BASELINE not in asked:
        asked.insert(0, comparison.BASELINE)
    return {name: known[name] for name in asked}


def _compare(
    asked: scenario.Scenario, chosen: Mapping[str, chooser.Factory], seeds: int, node_price: float | None
) -> comparison.Comparison:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=len(chosen) * seeds)
        order = list(chosen)

        def tell(name: str, seed: int, share: float) -> None:
            done = order.index(name) * seeds + seed - 1 + share
            bar.update(task, completed=done, description=f"{name}, seed {seed}")

        return comparison.compare(asked, chosen, range(1, seeds + 1), tell, node_price)


def _list(console: Console) -> None:
    table = Table(title="workloads", title_justify="left", show_header=False, box=None)
    for name in workloads.WORKLOADS:
        known = ", ".join(f"{key}={value}" for key, value in workloads.parameters(name).items())
        table.add_row(name, f"{workloads.summary(name)}\n[dim]{known}[/dim]")
    console.print(table, highlight=False)
    table = Table(title="policies", title_justify="left", show_header=False, box=None)
    for name in policies.factories():
        table.add_row(name, policies.summary(name))
    console.print(table, highlight=False)
    console.print(f"presets: {', '.join(sorted(performance.PRESETS))}", highlight=False)


def _event(kind: str) -> Callable[[str], scenario.Event]:
    def parse(text: str) -> scenario.Event:
        name, _, at = text.rpartition("@")
        try:
            at_s = float(at)
        except ValueError:
            at_s = -1.0
        if not name or not 0 <= at_s <= 86_400:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME@SECONDS")
        return scenario.Event(scenario.Kind(kind), name, at_s)

    return parse


def _speeds(text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0.01 <= speed <= 100 for speed in found):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers in 0.01..100")
    return found

"""The proof, on this machine: the same seeded requests through Envoy's own round robin and through kvring.

Starts two equal fleets of simulated replicas (the first article's set-up: CodeLlama-13B on A100-40, 30
users, 5 shared prefixes), one real Envoy with a door for each way of routing, and kvring behind one of
them; sends both the same load at the same time; prints the comparison and writes a picture (PNG, SVG), a
page and the figures into a folder.

Times are engine time: the replicas run --speed times faster than the hardware they model, and durations
are stretched back by the same factor.

Exit code: 0 when every request of the measured part was answered, 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path

from rich.console import Console

from extproc import gateway
from extproc.cli import ranges
from extproc.sim import demo, live, report

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `kvring demo`."""
    default = demo.Settings()
    parser.add_argument(
        "--seed", type=int, default=default.seed, help="of all requests (default: %(default)s)"
    )
    parser.add_argument(
        "--users",
        type=ranges.whole(1, 500),
        default=default.users,
        help="simulated users per arm, 1..500 (default: %(default)s)",
    )
    parser.add_argument(
        "--endpoints",
        type=ranges.whole(1, 64),
        default=default.endpoints,
        help="simulated replicas per arm, 1..64 (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=ranges.number(2, 3600),
        default=default.seconds,
        help="how long load is sent, real time, 2..3600 (default: %(default)g)",
    )
    parser.add_argument(
        "--speed",
        type=ranges.number(0.1, 20),
        default=default.speed,
        help="engine seconds per real second, 0.1..20; lower it on a slow machine (default: %(default)g)",
    )
    parser.add_argument(
        "--node-price",
        type=ranges.number(0, 1e6),
        default=default.node_price_usd_per_h,
        metavar="USD",
        help="price of the node of all replicas per hour (default: %(default)g)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as JSON")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for picture and page (default: out/demo-SEED)"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the demo; the exit code."""
    settings = demo.Settings(
        seed=args.seed,
        users=args.users,
        endpoints=args.endpoints,
        seconds=args.seconds,
        speed=args.speed,
        node_price_usd_per_h=args.node_price,
    )
    directory = (args.out or Path("out") / f"demo-{args.seed}").resolve()
    console = Console()
    try:
        result = asyncio.run(_measure(settings, console))
        missing = demo.write(result, directory)
        if args.json:
            args.json.write_text(json.dumps(report.to_json(result), indent=2) + "\n")
    except gateway.ChildError as error:
        print(f"kvring demo: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"kvring demo: cannot write the result: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("kvring demo: interrupted; everything it started is stopped", file=sys.stderr)
        return 1
    _tell(result, console)
    if missing:
        console.print(missing, style="yellow", highlight=False, soft_wrap=True)
    print(f"Page, picture and figures: {directory}")
    served = all(arm.requests > 0 and arm.errors == 0 for arm in result.arms.values())
    return 0 if served else 1


async def _measure(settings: demo.Settings, console: Console) -> report.Report:
    task = asyncio.current_task()
    # As Ctrl-C: the children are stopped in order, not left to the kernel.
    if task is not None:
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await demo.measure(settings, console)


def _tell(result: report.Report, console: Console) -> None:
    """Print the table, the claims and what to doubt."""
    setup = result.setup
    title = (
        f"seed {setup.seed}, {setup.users} users, {setup.endpoints} replicas per arm, "
        f"{setup.measured_s:.0f} s of engine time"
    )
    console.print(live.table(result.arms, setup.node_price_usd_per_h, title))
    for claim in report.claims(result.arms):
        verdict = "[green]holds [/green]" if claim.holds else "[bold red]MISSED[/bold red]"
        console.print(f"{verdict} {claim.text}: {claim.measured}", highlight=False, soft_wrap=True)
    saving = report.saving_usd(result)
    if saving is not None:
        change = f"${saving:,.0f} a month less" if saving >= 0 else f"${-saving:,.0f} a month MORE"
        console.print(
            f"Round robin's throughput costs {change}, of "
            f"${setup.node_price_usd_per_h * report.HOURS_PER_MONTH:,.0f} for the node.",
            highlight=False,
            soft_wrap=True,
        )
    for name, arm in result.arms.items():
        if arm.errors_by_kind:
            console.print(
                f"errors of {name}: {arm.errors_by_kind}", style="red", highlight=False, soft_wrap=True
            )
    for warning in report.doubts(result):
        console.print(f"Doubt the figures: {warning}", style="yellow", highlight=False, soft_wrap=True)

"""Reads the metrics of your engines and says what is wrong, what to do about it, and what that is worth.

  kvring doctor 10.0.0.1:8000 10.0.0.2:8000 --interval 60     two looks a minute apart
  kvring doctor http://prometheus:9090 --selector 'job="vllm"'     the last ten minutes, of all replicas
  kvring doctor saved/ --gpu-hour-price 1.25                  files saved with --save, or by curl
  kvring doctor --promql                                      each figure as a query, for a dashboard

TARGETs are addresses of vLLM or SGLang servers, a Prometheus server, files with expositions, or folders of
them. It changes nothing and needs no kvring; name kvring's own admin address among the targets to say that it
routes. A look without --interval sees everything since each process started.

Exit code: 0 nothing to act on; 1 something to act on (with --strict: to consider); 2 nothing could be read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from extproc.cli import progress, ranges, targets
from extproc.doctor import diagnosis, document, finding, gain, promql, sample, saved, series, table
from extproc.signals import Engine

__all__ = ["add_arguments", "run"]

_WIDTH = 130  # where no terminal tells its own
_LOOKS_MAX = 10  # --watch: the newest are compared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `kvring doctor`."""
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="HOST:PORT, URL, file or folder")
    look = parser.add_argument_group("looking")
    look.add_argument(
        "--interval", type=ranges.number(1, 86_400), metavar="S", help="look again after S seconds"
    )
    look.add_argument(
        "--watch", type=ranges.number(1, 86_400), metavar="S", help="... again and again, until Ctrl-C"
    )
    look.add_argument("--prometheus", metavar="URL", help="ask this server (found out for a bare address)")
    look.add_argument("--selector", default="", metavar="MATCHERS", help="""which series, as 'job="vllm"'""")
    look.add_argument(
        "--window",
        type=ranges.number(10, 604_800),
        default=600.0,
        metavar="S",
        help="how far back Prometheus is asked [s] (default: %(default)g)",
    )
    look.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="to send; repeatable"
    )
    look.add_argument("--save", type=Path, metavar="DIR", help="keep what engines say, for later")
    worth = parser.add_argument_group("what it is worth")
    worth.add_argument("--gpu-hour-price", type=ranges.number(0, 1e6), metavar="USD", help="of one GPU")
    worth.add_argument(
        "--gpus",
        type=ranges.whole(1, 1024),
        default=1,
        metavar="N",
        help="of one replica (default: %(default)s)",
    )
    worth.add_argument(
        "--think",
        type=ranges.number(0, 3600),
        default=1.0,
        metavar="S",
        help="from an answer to its reader's next request [s] (default: %(default)g)",
    )
    worth.add_argument("--routed", action="store_true", help="requests go by prefix already")
    worth.add_argument("--no-simulation", action="store_true", help="no estimates: quicker")
    output = parser.add_argument_group("output")
    form = output.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs")
    form.add_argument("--markdown", action="store_true", help="for issues and reports")
    form.add_argument("--promql", action="store_true", help="only print each figure as PromQL")
    output.add_argument("--strict", action="store_true", help="exit code 1 for what is to be considered, too")


def run(args: argparse.Namespace) -> int:
    """0, 1 or 2; see above."""
    if args.promql:
        _print_promql(args)
        return 0
    if not args.targets and not args.prometheus:
        print("kvring doctor: no TARGET; see kvring doctor --help", file=sys.stderr)
        return 2
    try:
        headers = dict(_header(text) for text in args.header)
        asked = targets.Targets(
            args.targets,
            prometheus=args.prometheus,
            selector=args.selector,
            window_s=args.window,
            headers=headers,
        )
        return asyncio.run(_look(args, asked))
    except (ValueError, OSError) as error:
        print(f"kvring doctor: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 0 if args.watch else 130


async def _look(args: argparse.Namespace, asked: targets.Targets) -> int:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    async with asked:
        heard = await _ask(asked, args.save, again=False)
        if args.interval and asked.live and not args.watch:
            with progress.shown(f"looking for {args.interval:g} s") as tell:
                await _wait(args.interval, tell)
            later = await _ask(asked, args.save, again=True)
            heard.samples += later.samples
            heard.problems |= later.problems
        if not args.watch:
            return _conclude(args, console, heard, simulate=not args.no_simulation)
        looks = [heard.samples]
        while True:
            heard.samples = [one for look in looks for one in look]
            if console.is_terminal:
                console.clear()
            _conclude(args, console, heard, simulate=False)
            await asyncio.sleep(args.watch)
            heard = await _ask(asked, args.save, again=True)
            looks = [*looks[-_LOOKS_MAX + 1 :], heard.samples]


def _conclude(args: argparse.Namespace, console: Console, heard: targets.Heard, *, simulate: bool) -> int:
    """Diagnose, print; the exit code."""
    question = diagnosis.Question(
        routed=args.routed or heard.routed,
        think_s=args.think,
        simulate=simulate,
        price=gain.Price(args.gpu_hour_price, args.gpus),
    )
    with progress.shown("simulating this fleet") as tell:
        fleets = diagnosis.diagnose(heard.samples, question, tell)
    if args.json:
        print(json.dumps(document.to_json(fleets, heard.problems), indent=2))
    elif args.markdown:
        print(document.to_markdown(fleets, heard.problems))
    else:
        console.print(table.drawn(fleets, heard.problems))
        if fleets and not args.watch and any(fleet.case.whole.since_start for fleet in fleets):
            console.print(_hint(heard.samples), style="dim")
    if not fleets:
        print("kvring doctor: nothing was read", file=sys.stderr)
        return 2
    worst = min(fleet.verdict.value for fleet in fleets)
    limit = finding.Verdict.CONSIDER if args.strict else finding.Verdict.ACT
    return 1 if worst <= limit.value else 0


def _hint(samples: Sequence[sample.Sample]) -> str:
    live = any(one.at_s is not None for one in samples)
    how = "look twice with --interval 60" if live else "save two looks with --interval 60 --save DIR"
    return f"Figures since the processes started hide what is wrong now: {how}."


async def _ask(asked: targets.Targets, save: Path | None, *, again: bool) -> targets.Heard:
    heard = await asked.ask(again=again)
    if save is not None:
        _save(heard, save)
    return heard


def _save(heard: targets.Heard, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for replica, body in heard.raw.items():
        (directory / saved.name_of(replica, time.time())).write_bytes(saved.thinned(body))


async def _wait(seconds: float, tell: Callable[[float], None]) -> None:
    started = time.monotonic()
    while (gone := time.monotonic() - started) < seconds:
        tell(gone / seconds)
        await asyncio.sleep(min(0.25, seconds - gone))


def _print_promql(args: argparse.Namespace) -> None:
    window = f"{args.window:g}s" if args.window % 60 else f"{args.window / 60:g}m"
    selector = series.matchers(args.selector)
    for engine in (Engine.VLLM, Engine.SGLANG):
        for per_replica in (False, True):
            print(f"# {engine.value}, {'per replica' if per_replica else 'fleet'}")
            for row in promql.rows(promql.Asked(engine, selector, window, per_replica)):
                if row.query is not None:
                    print(f"# {row.figure} [{row.unit}]\n{row.query}")
            print()


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ValueError("--header must be NAME:VALUE")
    return name.strip(), value.strip()

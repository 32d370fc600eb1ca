"""Show how one request would be routed: API, prompt, chain, key, ring order, costs and the choice.

Reads a request body from a file ("-" for stdin) and runs the same code as the sidecar, over an idle pool from
--config or --endpoint. What has been sent before is not known here, so every endpoint is cold: the key, the
order and the home are those of the live sidecar, the costs are not. Prompt text is shown only with --text.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from extproc import config, explanation, groups, router
from extproc.config import values

__all__ = ["add_arguments", "run"]

_FILE_BYTES_MAX = 256 * 1024 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the request and the pool."""
    parser.add_argument("request", metavar="REQUEST.json", help="request body; - reads stdin")
    parser.add_argument("--path", default="/v1/chat/completions", help="request path (default: %(default)s)")
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="request header; repeatable"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="kvring.yaml, for pool and settings")
    parser.add_argument(
        "--endpoint",
        action="append",
        default=[],
        metavar="NAME=HOST:PORT",
        help="in place of --config; repeatable (default: endpoint-0=127.0.0.1:8000)",
    )
    parser.add_argument("--cluster", metavar="NAME", help="Envoy cluster, where pools are told apart by it")
    parser.add_argument("--route", metavar="NAME", help="Envoy route, in the same way")
    parser.add_argument("--cut", action="store_true", help="the body is only the start of a longer one")
    parser.add_argument("--text", action="store_true", help="show the first characters of each segment")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")


def run(args: argparse.Namespace) -> int:
    """0 if the request was routed, 2 if the arguments can't be used."""
    try:
        settings = _settings(args)
        asked = explanation.Asked(
            {"content-type": "application/json", **_headers(args.header), ":path": args.path},
            _body(args.request),
            not args.cut,
            _attributes(args),
        )
    except (config.ConfigError, OSError, ValueError) as error:
        print(f"kvring explain: {error}", file=sys.stderr)
        return 2
    explained = explanation.explain(
        _pools(settings), settings.exchange_settings(), asked, 0.0, show_text=args.text
    )
    if isinstance(explained, explanation.Unanswered):
        print(f"kvring explain: {explained.why}; name some with --endpoint", file=sys.stderr)
        return 2
    try:
        if args.json:
            print(json.dumps(explained, indent=2))
        else:
            _print(explained)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _settings(args: argparse.Namespace) -> values.Config:
    if args.config and args.endpoint:
        raise ValueError("--config and --endpoint exclude each other")
    if args.config:
        return config.load(args.config, os.environ)
    for text in args.endpoint:
        if not all(text.partition("=")):
            raise ValueError(f"--endpoint {text!r} is not NAME=HOST:PORT")
    named = [text.partition("=") for text in args.endpoint or ["endpoint-0=127.0.0.1:8000"]]
    listed = [{"name": name, "address": address} for name, _, address in named]
    return config.loads(json.dumps({"pools": [{"endpoints": listed}]}), {})


def _headers(lines: list[str]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not name.strip() or not colon:
            raise ValueError(f"--header {line!r} is not NAME:VALUE")
        headers[name.strip().lower()] = value.strip()
    return headers


def _attributes(args: argparse.Namespace) -> dict[str, str]:
    told = {groups.CLUSTER: args.cluster, groups.ROUTE: args.route}
    return {name: value for name, value in told.items() if value}


def _body(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read(_FILE_BYTES_MAX)
    try:
        with Path(name).open("rb") as file:
            return file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise ValueError(f"{name}: can't be read: {error.strerror}") from None


def _pools(settings: values.Config) -> groups.Groups:
    """All pools, of the endpoints that the file lists."""
    return groups.Groups(
        [
            groups.Group(
                config.hasher_of(one) or router.Router(config.static_pool(one), config.router_settings(one)),
                config.match_of(one),
            )
            for one in settings.pools
        ]
    )


def _print(explained: Mapping[str, Any]) -> None:
    # A model's name is the client's: neither markup nor control characters of it may reach the terminal.
    console = Console(highlight=False, markup=False, emoji=False)
    model = explained["model"] or "-"
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    chained = explained["chain"]
    shown = " ".join(block[:8] for block in chained[:4]) + (" ..." if len(chained) > 4 else "")
    rows = {
        "api": explained["api"] or "-",
        "model": model if model.isprintable() else repr(model),
        "pool": explained["pool"],
        "body": f"{explained['body_bytes']:,} bytes" + (", cut off" if explained["cut"] else ""),
        "no chain": explained["unkeyed"],
        "chain": f"{len(chained)} blocks of {explained['block_bytes']} bytes  {shown}",
        "anchor": None if explained["anchor"] is None else f"block {explained['anchor']}",
        "key": f"{explained['key']} ({explained['keyed_by']})" if explained["key"] else "-",
        **_chosen(explained),
    }
    for name, value in rows.items():
        if value is not None:
            facts.add_row(name, value)
    console.print(facts)
    if explained["segments"]:
        console.print(_segment_table(explained))
    if explained.get("costs"):
        costs = Table("endpoint", "cost [tokens]", title="costs, all cold", title_justify="left")
        for name, cost in explained["costs"].items():
            costs.add_row(name, f"{cost:,.0f}")
        console.print(costs)


def _chosen(explained: Mapping[str, Any]) -> dict[str, str]:
    """Who would have it, as far as kvring decides that."""
    if explained["steering"] == "hash":
        told = f"{explained['hash']} in x-kvring-hash: Envoy chooses by it"
        return {"hash": told if explained["hash"] else "none: Envoy draws an endpoint by chance"}
    return {
        "ring": " > ".join(explained["ring"]) or "-",
        "choice": f"{explained['choice']} ({explained['address']}), {explained['reason']}, by"
        f" {explained['policy']}",
    }


def _segment_table(explained: Mapping[str, Any]) -> Table:
    with_text = "text" in explained["segments"][0]
    columns = ["segment", "bytes of the prompt", "blocks", *(["text"] if with_text else [])]
    table = Table(*columns, title="prompt, as the engine will read it", title_justify="left")
    for segment in explained["segments"]:
        first, last = (at // explained["block_bytes"] for at in (segment["start"], segment["end"] - 1))
        row = [segment["kind"], f"{segment['start']:,} - {segment['end']:,}", f"{first} - {last}"]
        table.add_row(*row, *([repr(segment["text"])] if with_text else []))
    return table

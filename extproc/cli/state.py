"""Show a running kvring: its pools and endpoints, their health, load, cache and signals.

Asks the admin server's /api/state. Exit code 0 if somebody can be chosen in every pool, 1 if not, 2 if kvring
can't be reached or has no such pool.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from extproc.admin import access as admin_access
from extproc.cli import ranges

__all__ = ["add_arguments", "run"]

_TIMEOUT_S = 5.0
_WIDTH = 160  # where no terminal tells its own
_ANSWER_BYTES_MAX = 64 * 1024 * 1024
_MODELS_CHARS = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where kvring's admin server is, and how to show what it says."""
    parser.add_argument(
        "--admin",
        default="127.0.0.1:9090",
        metavar="HOST:PORT",
        help="kvring's admin address (default: %(default)s)",
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="its admin_token_file, if it has one")
    parser.add_argument("--pool", metavar="NAME", help="only this pool")
    parser.add_argument("--json", action="store_true", help="the answer as it is")
    parser.add_argument(
        "--watch", type=ranges.number(0.1, 86400), metavar="S", help="again and again, S seconds apart"
    )


def run(args: argparse.Namespace) -> int:
    """0 if every pool has somebody to choose, 1 if one has nobody, 2 if there is no answer."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    try:
        while True:
            state = _ask(args.admin, args.token_file)
            if args.pool:
                names = [pool["name"] for pool in state["pools"]]
                state["pools"] = [pool for pool in state["pools"] if pool["name"] == args.pool]
                if not state["pools"]:
                    print(f"kvring state: no pool {args.pool}, only {', '.join(names)}", file=sys.stderr)
                    return 2
            if args.json:
                print(json.dumps(state, indent=2), flush=True)
            else:
                _print(console, state)
            if not args.watch:
                return 1 if any(pool["panic"] for pool in state["pools"]) else 0
            time.sleep(args.watch)
    except urllib.error.HTTPError as error:
        print(f"kvring state: {args.admin} answered {_refusal(error)}", file=sys.stderr)
        return 2
    except urllib.error.URLError as error:
        why = error.reason.strerror if isinstance(error.reason, OSError) else None
        print(
            f"kvring state: no answer from {args.admin}: {why or error.reason};"
            " --admin takes the admin address that kvring prints when it is ready",
            file=sys.stderr,
        )
        return 2
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"kvring state: no answer from {args.admin}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0


def _refusal(error: urllib.error.HTTPError) -> str:
    asks = error.code in {401, 403}
    return f"{error.code} {error.reason}" + (
        "; it asks for --token-file, as admin_token_file" if asks else ""
    )


def _ask(admin: str, token_file: Path | None) -> dict[str, Any]:
    url = admin if "://" in admin else f"http://{admin}"
    if not url.startswith("http://"):
        raise ValueError("must be HOST:PORT")
    asked = urllib.request.Request(f"{url}/api/state")  # noqa: S310  (http, above)
    if token_file is not None:
        asked.add_header("authorization", f"Bearer {admin_access.read_token(token_file).decode()}")
    with urllib.request.urlopen(asked, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        state = json.loads(answer.read(_ANSWER_BYTES_MAX))
    if not isinstance(state, dict) or not isinstance(state.get("pools"), list):
        raise TypeError("that is no kvring")
    return state


def _print(console: Console, state: dict[str, Any]) -> None:
    for pool in state["pools"]:
        if pool.get("steering") == "hash":
            told = f"a hash for Envoy's own balancing over about {pool['endpoint_count']:,} endpoints"
            console.print(f"pool {pool['name']}: {told}; {pool['anchor_edges']:,} runs of blocks counted")
            continue
        source = pool["source"]
        trouble = f", {source['problem']} ({source['detail']})" if source["problem"] else ""
        age = "" if source["age_s"] is None else f", heard {source['age_s']:.0f} s ago"
        facts = [
            f"pool {pool['name']}: policy {pool['policy']}, generation {pool['generation']}",
            f"{pool['open_leases']} open requests",
            f"members by {source['kind']}{age}{trouble}" if source["kind"] else "",
            f"prefill {pool['prefill_tokens_per_s']:,.0f} tokens/s",
            f"{pool['bytes_per_token']:.2f} bytes/token",
        ]
        console.print("; ".join(fact for fact in facts if fact))
        if pool["panic"]:
            console.print("  nobody can be chosen: no opinion")
        console.print(_table(pool["endpoints"]))


def _table(endpoints: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2))
    for name in ("endpoint", "address", "models", "state"):
        table.add_column(name)
    for name in ("in flight", "pending", "in engine", "KV", "blocks", "hit thought", "found", "signals"):
        table.add_column(name, justify="right")
    for one in endpoints:
        told = one["signals"] or {}
        table.add_row(
            one["name"],
            one["address"],
            _models(one["models"]),
            _standing(one),
            str(one["inflight"]),
            f"{one['pending_tokens']:,}",
            _requests(told),
            _usage(told),
            f"{one['residency_blocks']:,}" + _scaled(one["residency_scale"]),
            _percent(one["predicted_hit"]),
            _percent(one["engine_hit"]),
            f"{told['age_s']:.1f} s" if told else one["signals_problem"] or "-",
        )
    return table


def _standing(one: dict[str, Any]) -> str:
    if not one["ready"]:
        return "out: " + ", ".join(one["against"])
    return "ready" if one["share"] >= 1 else f"ready, ramps up ({one['share']:.0%})"


def _models(names: list[str] | None) -> str:
    if names is None:
        return "any"  # it does not tell
    text = ", ".join(names)
    return text if len(text) <= _MODELS_CHARS else f"{text[: _MODELS_CHARS - 3]}..."


def _usage(told: dict[str, Any]) -> str:
    """What live requests hold, and of how many tokens."""
    size = told.get("kv_tokens")
    used = _percent(told.get("kv_usage"))
    return used if not size else f"{used} of {size / 1000:,.0f}k"


def _requests(told: dict[str, Any]) -> str:
    if told.get("running") is None:
        return "-"
    return f"{told['running']:.0f}+{told['waiting'] or 0:.0f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _scaled(scale: float) -> str:
    return "" if scale >= 1 else f" (x{scale:.2f})"

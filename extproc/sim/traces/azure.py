"""Azure traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens. Lengths and times; nothing of content.

Every prompt is its own, so no policy can find a cache: what is measured is how it balances load.
Called by: traces. Source: the Azure LLM inference traces of 2023.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Callable

from extproc.sim import client, content

__all__ = ["read"]

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(raw: bytes, pace: float) -> tuple[Callable[[int], client.Starts], float]:
    """Scripts of a seed, and how long they last [s]; the requests are those of the trace under every seed.

    Errors: ValueError for missing columns or a bad number.
    """
    rows = csv.DictReader(io.StringIO(raw.decode("utf-8-sig", "replace")))
    if not set(_COLUMNS) <= set(rows.fieldnames or ()):
        raise ValueError(f"columns {', '.join(_COLUMNS)} expected")
    requests = sorted(
        (_seconds(row[_COLUMNS[0]]), int(row[_COLUMNS[1]]), int(row[_COLUMNS[2]])) for row in rows
    )
    if not requests:
        raise ValueError("no requests")
    first_s = requests[0][0]

    def starts(seed: int) -> client.Starts:  # noqa: ARG001  (a recorded load has one seed)
        for number, (at_s, prompt, output) in enumerate(requests):
            yield client.Start((at_s - first_s) / pace, _ask(number, prompt, output))

    return starts, (requests[-1][0] - first_s) / pace + 1


def _seconds(stamp: str) -> float:
    # seven digits after the point, one more than fromisoformat of Python 3.11 takes
    whole, _, fraction = stamp.strip().partition(".")
    moment = dt.datetime.fromisoformat(whole).replace(tzinfo=dt.UTC)
    return moment.timestamp() + float(f"0.{fraction.rstrip('Z') or 0}")


def _ask(number: int, prompt: int, output: int) -> client.Script:
    own = content.piece("azure", number)
    yield client.Ask(content.Content.of([(own, max(prompt, 1))]), max(output, 1), user=own)

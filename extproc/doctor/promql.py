"""PromQL: each figure as a query, for dashboards, alerts and doubts.

The names are those of `quantity`, the newest of each; `{sel}` is the selector, `{w}` the window of rates. A
query is per replica (`by (instance)`) or over the fleet.

Called by: cli.doctor (--promql), docs/generate.py. Source: PromQL's own rules for rates and
histogram_quantile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from extproc.doctor import quantity
from extproc.signals import Engine

__all__ = ["Asked", "Row", "rows"]


@dataclass(frozen=True, slots=True)
class Asked:
    """Of whom: an engine; `selector`: label matchers without braces; `window`: as in PromQL;
    `per_replica`.
    """

    engine: Engine = Engine.VLLM
    selector: str = ""
    window: str = "10m"
    per_replica: bool = False

    @property
    def by(self) -> str:
        """The grouping of a sum."""
        return "by (instance) " if self.per_replica else ""


@dataclass(frozen=True, slots=True)
class Row:
    """A figure: what it is, its unit, and the query; None where the engine does not tell."""

    figure: str
    unit: str
    query: str | None


def rows(asked: Asked) -> list[Row]:
    """All figures, in the order of the doctor's table."""
    return [Row(figure, unit, make(asked)) for figure, unit, make in _ROWS]


Query = Callable[[Asked], str | None]


def _named(asked: Asked, key: str, suffix: str = "") -> str | None:
    """The selector of a quantity's newest name."""
    names = quantity.QUANTITIES[key].names.get(asked.engine, ())
    if not names:
        return None
    where = [
        f'{label}="{values[0]}"' if len(values) == 1 else f'{label}=~"{"|".join(values)}"'
        for label, values in names[0].where.items()
    ]
    inside = ",".join([*where, *([asked.selector] if asked.selector else [])])
    return names[0].name.decode() + suffix + (f"{{{inside}}}" if inside else "")


def _rate(key: str, suffix: str = "") -> Query:
    def make(asked: Asked) -> str | None:
        named = _named(asked, key, suffix)
        return None if named is None else f"sum {asked.by}(rate({named}[{asked.window}]))"

    return make


def _quantile(key: str, share: float) -> Query:
    def make(asked: Asked) -> str | None:
        named = _named(asked, key, "_bucket")
        by = "by (instance, le)" if asked.per_replica else "by (le)"
        return (
            None
            if named is None
            else f"histogram_quantile({share:g}, sum {by} (rate({named}[{asked.window}])))"
        )

    return make


def _over(part: Query, whole: Query) -> Query:
    def make(asked: Asked) -> str | None:
        found, base = part(asked), whole(asked)
        return None if found is None or base is None else f"{found} / {base}"

    return make


def _mean(key: str) -> Query:
    return _over(_rate(key, "_sum"), _rate(key, "_count"))


def _gauge(key: str, over_time: str, both: str) -> Query:
    def make(asked: Asked) -> str | None:
        named = _named(asked, key)
        return None if named is None else f"{both} {asked.by}({over_time}_over_time({named}[{asked.window}]))"

    return make


def _found(asked: Asked) -> str | None:
    hits, cold = _rate("hits")(asked), _rate("cold_hits")(asked)
    if hits is None:
        return None
    return f"({hits} + ({cold} or {hits} * 0))" if cold is not None else hits


def _beyond(asked: Asked) -> str | None:
    cold, host = _rate("cold_hits")(asked), _rate("host_hits")(asked)
    return None if cold is None or host is None else f"({cold} - {host})"


def _refused(asked: Asked) -> str | None:
    rejected, served = _rate("rejections")(asked), _rate("ttft_s", "_count")(asked)
    return None if rejected is None or served is None else f"{rejected} / ({rejected} + {served})"


def _restarts(asked: Asked) -> str | None:
    inside = f"{{{asked.selector}}}" if asked.selector else ""
    return f"sum {asked.by}(changes({quantity.STARTED}{inside}[{asked.window}]))"


def _busiest(key: str, suffix: str = "") -> Query:
    def make(asked: Asked) -> str | None:
        named = _named(asked, key, suffix)
        if named is None:
            return None
        each = f"sum by (instance) (rate({named}[{asked.window}]))"
        return f"max({each}) / avg({each})"

    return make


_ROWS: tuple[tuple[str, str, Query], ...] = (
    ("requests", "1/s", _rate("ttft_s", "_count")),
    ("TTFT P50", "s", _quantile("ttft_s", 0.5)),
    ("TTFT P99", "s", _quantile("ttft_s", 0.99)),
    ("TTFT P99 / P50", "ratio", _over(_quantile("ttft_s", 0.99), _quantile("ttft_s", 0.5))),
    ("TTFT mean", "s", _mean("ttft_s")),
    ("of it queued", "s", _mean("queue_s")),
    ("of it prefill", "s", _mean("prefill_s")),
    ("end to end mean", "s", _mean("e2e_s")),
    ("found in a cache", "share", _over(_found, _rate("queries"))),
    ("on the GPU", "share", _over(_rate("hits"), _rate("queries"))),
    ("in host memory", "share", _over(_rate("host_hits"), _rate("queries"))),
    ("in an external store", "share", _over(_beyond, _rate("queries"))),
    ("KV usage, mean", "share", _gauge("kv_usage", "avg", "avg")),
    ("KV usage, most", "share", _gauge("kv_usage", "max", "max")),
    ("waiting, mean", "requests", _gauge("waiting", "avg", "avg")),
    ("waiting, most", "requests", _gauge("waiting", "max", "max")),
    ("running, mean", "requests", _gauge("running", "avg", "avg")),
    ("preemptions", "per request", _over(_rate("preemptions"), _rate("ttft_s", "_count"))),
    ("prompt, mean", "tokens", _mean("prompt")),
    ("prompt, P50", "tokens", _quantile("prompt", 0.5)),
    ("prompt, P90", "tokens", _quantile("prompt", 0.9)),
    ("answer, mean", "tokens", _mean("output")),
    ("refused", "share", _refused),
    ("5xx", "share", _over(_rate("faults"), _rate("answers"))),
    ("restarts", "count", _restarts),
    ("busiest / mean, requests", "ratio", _busiest("ttft_s", "_count")),
    ("busiest / mean, computed", "ratio", _busiest("uncached", "_sum")),
)

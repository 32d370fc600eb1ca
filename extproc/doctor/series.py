"""Series: what a Prometheus server knows of replicas, turned back into what each of them said.

A range query gives series of labelled values; those of one instance at one time, written as lines again, are
that replica's exposition at that time. So a figure is the same whether it was scraped by the doctor or by
Prometheus.

Invariant: at most `POINTS` moments a replica. Called by: cli.targets. Source: Prometheus' HTTP API, v1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from extproc.doctor import quantity, sample

__all__ = ["POINTS", "SeriesError", "matchers", "queries", "samples"]

POINTS = 7
_REPLICA = ("instance", "pod", "job")  # the first label that is there names the replica
_SERIES_MAX = 200_000


class SeriesError(ValueError):
    """Not an answer of Prometheus; the text says why."""


def matchers(selector: str) -> str:
    """Label matchers without braces, from `{job="vllm"}` or `job="vllm"`."""
    return selector.strip().removeprefix("{").removesuffix("}").strip().strip(",")


def queries(selector: str) -> list[str]:
    """What to ask, for the replicas that `selector` (matchers) names: metrics, starts of their processes."""
    more = f",{selector}" if selector else ""
    running = f'{{__name__=~"vllm:num_requests_running|sglang:num_running_reqs"{more}}}'
    return [
        f'{{__name__=~"{quantity.name_pattern()}"{more}}}'.replace("\\", "\\\\"),
        f"{quantity.STARTED} and on (instance, job) {running}",
    ]


def samples(answers: Iterable[Mapping[str, Any]]) -> list[sample.Sample]:
    """Samples of all replicas, in the order of time. `answers`: decoded JSON of range queries.

    Raises: SeriesError.
    """
    lines: dict[tuple[float, str], dict[str, list[str]]] = {}
    for answer in answers:
        for labels, values in _matrix(answer):
            replica = next((labels[key] for key in _REPLICA if labels.get(key)), "replica")
            name = labels.get("__name__", "")
            pairs = ",".join(
                f'{key}="{_escaped(value)}"' for key, value in labels.items() if key != "__name__"
            )
            for at_s, value in values:
                family = lines.setdefault((at_s, replica), {}).setdefault(name, [])
                family.append(f"{name}{{{pairs}}} {value}")
    found = []
    for (at_s, replica), families in sorted(lines.items()):
        text = "\n".join(f"# {name}\n" + "\n".join(families[name]) for name in families)
        found.append(sample.read(replica, at_s, text.encode()))
    return found


def _matrix(answer: Mapping[str, Any]) -> list[tuple[dict[str, str], list[tuple[float, str]]]]:
    try:
        if answer["status"] != "success":
            raise SeriesError(str(answer.get("error") or "no success")[:300])
        result = answer["data"]["result"]
        if len(result) > _SERIES_MAX:
            raise SeriesError(f"more than {_SERIES_MAX} series: narrow the selector")
        return [
            (
                {str(key): str(value) for key, value in one["metric"].items()},
                [(float(at_s), str(value)) for at_s, value in one["values"]],
            )
            for one in result
        ]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, SeriesError):
            raise
        raise SeriesError("not an answer of Prometheus' query_range") from None


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

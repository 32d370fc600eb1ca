"""Writes helm/kvring/values.schema.json, and the table of values in helm/kvring/README.md, from values.yaml.

A value's type is that of its default; a block may have the keys it has there, and no other. What a default
can't say (choices, ranges, blocks that are anybody's) is said here. `config` has the schema of kvring.yaml.

Called by: docs/generate.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from extproc import config

CHART = Path(__file__).parents[1] / "helm/kvring"
_FREE = {"type": "object"}
_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_SPECIAL: dict[str, dict[str, Any]] = {
    "integration": {"enum": ["none", "istio", "envoy-gateway", "inferencepool"]},
    "replicaCount": {"type": "integer", "minimum": 0, "maximum": 100},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "service.port": _PORT,
    "tls.port": _PORT,
    "envoy.serviceType": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "envoy.port": _PORT,
    "envoy.bodyMode": {"enum": ["buffered_partial", "buffered", "full_duplex_streamed"]},
    "envoy.upstreams": {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": ":[0-9]+$"}},
    "target.port": _PORT,
    "target.bodyBytesMax": {"type": "integer", "minimum": 65536, "maximum": 1073741824},
    "target.messageTimeoutMs": {"type": "integer", "minimum": 1, "maximum": 3600000},
    "istio.context": {"enum": ["gateway", "sidecar"]},
    "istio.tls": {"enum": ["DISABLE", "ISTIO_MUTUAL"]},
    "istio.selector": _LABELS,
    "envoyGateway.steering": {"enum": ["header", "metadata"]},
    "envoyGateway.rule": {"type": "integer", "minimum": 0},
    "inferencePool.failureMode": {"enum": ["FailOpen", "FailClose"]},
    "inferencePool.selector": _LABELS,
    "inferencePool.targetPorts": {
        "type": "array",
        "minItems": 1,
        "maxItems": 8,
        "uniqueItems": True,
        "items": _PORT,
    },
    "podDisruptionBudget.maxUnavailable": {"type": ["integer", "string"]},
    "autoscaling.targetCPUUtilizationPercentage": {"type": "integer", "minimum": 1, "maximum": 100},
    "preStopSleepSeconds": {"type": "integer", "minimum": 0, "maximum": 300},
    "resources": _FREE,
    "envoy.resources": _FREE,
    "podLabels": _LABELS,
    "metrics.dashboard.labels": _LABELS,
}
_TYPES = {bool: "boolean", int: "integer", str: "string", list: "array"}


def schema() -> str:
    """values.schema.json."""
    own = msgspec.json.schema(config.Config)
    top = _block(_values(), "")
    top["properties"]["config"] = {"anyOf": [{"type": "object", "maxProperties": 0}, {"$ref": own["$ref"]}]}
    top["properties"]["global"] = _FREE  # what a parent chart hands down
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "kvring chart values"}
    return json.dumps(head | top | {"$defs": own["$defs"]}, indent=1) + "\n"


def table() -> str:
    """The table of values."""
    lines = ["| value | default | meaning |", "|---|---|---|"]
    lines += [
        f"| `{key}` | `{json.dumps(default)}` | {meaning} |"
        for key, default, meaning in rows()
        if key != "config"
    ]
    return "\n".join(lines) + "\n"


def rows() -> Iterator[tuple[str, Any, str]]:
    """(dotted key, default, meaning) of every value that has a `# --` comment."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    yield from _rows(yaml.compose(text), yaml.safe_load(text), "", text.splitlines())


def _rows(node: Any, values: Any, prefix: str, lines: list[str]) -> Iterator[tuple[str, Any, str]]:
    for key_node, value_node in node.value if isinstance(node, yaml.MappingNode) else ():
        key, meaning = prefix + key_node.value, _above(lines, key_node.start_mark.line)
        inner = values[key_node.value]
        whole = key in _SPECIAL or not isinstance(inner, dict) or not inner
        if meaning and whole:
            yield key, inner, meaning
        if not whole:
            yield from _rows(value_node, inner, f"{key}.", lines)


def _above(lines: list[str], at: int) -> str:
    """The `# --` comment directly above line `at`, "" if there is none."""
    found: list[str] = []
    while at and lines[at - 1].lstrip().startswith("#"):
        at -= 1
        found.insert(0, lines[at].lstrip("# ").strip())
        if lines[at].lstrip().startswith("# --"):
            return " ".join(found).removeprefix("-- ")
    return ""


def _values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return found


def _block(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    properties = {key: _schema_of(value, prefix + key) for key, value in values.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _schema_of(value: Any, key: str) -> dict[str, Any]:
    if key in _SPECIAL:
        return _SPECIAL[key]
    if isinstance(value, dict):
        return _block(value, f"{key}.") if value else _FREE
    return {"type": _TYPES[type(value)]}

"""Manifests: what a Kubernetes API server would say to a file, without one.

Built-in kinds: kubernetes-validate's schemas, strict. Custom kinds: their CRD's own schema, made strict (an
API server drops unknown fields, which is worse), with its defaults, its lists that are sets or maps, and its
CEL rules. Rules about an older version of the object don't apply to a new one; rules that use functions which
only an API server has are reported in `unevaluated`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import cel
import jsonschema
import kubernetes_validate
import yaml

from tests import shared_data

__all__ = ["KUBERNETES", "Checked", "check", "custom_kind", "documents", "is_built_in"]

KUBERNETES = "1.37.0"
"""The newest version that kubernetes-validate knows; the chart is held against the oldest it claims, too."""

_META = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
_NOT_HERE = "Undefined variable or function"


@dataclass
class Checked:
    """What is wrong with a document, and which CEL rules could not be asked."""

    faults: list[str] = field(default_factory=list)
    unevaluated: list[str] = field(default_factory=list)


class _Loader(yaml.CSafeLoader):
    """Refuses a key that stands twice in a block."""

    def construct_mapping(self, node, deep=False):  # noqa: FBT002
        keys = [key.value for key, _ in node.value]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"key {twice!r} twice", node.start_mark)
        return super().construct_mapping(node, deep)


def documents(text: str) -> list[dict[str, Any]]:
    """The documents of a YAML text that are not empty. Raises yaml.YAMLError, also for a key given twice."""
    return [one for one in yaml.load_all(text, Loader=_Loader) if one is not None]


def is_built_in(document: dict[str, Any]) -> bool:
    """Whether Kubernetes itself knows this kind."""
    group = document["apiVersion"].rpartition("/")[0]
    return "." not in group or (
        group.endswith("k8s.io") and "gateway" not in group and "inference" not in group
    )


def check(document: dict[str, Any], kubernetes: str = KUBERNETES) -> Checked:
    """The verdict on one document. Skips the test where the CRDs are needed and absent."""
    if is_built_in(document):
        return _built_in(document, kubernetes)
    known = custom_kind(document["apiVersion"], document["kind"])
    if known is None:
        return Checked([f"no CRD for {document['apiVersion']} {document['kind']}"])
    schema, strict = known
    found = Checked()
    checker = jsonschema.Draft202012Validator(strict)
    found.faults += [f"{one.json_path}: {one.message[:300]}" for one in checker.iter_errors(document)]
    if not found.faults:
        _rules(schema, copy.deepcopy(document), "$", found)
    return found


def _built_in(document: dict[str, Any], kubernetes: str) -> Checked:
    try:
        kubernetes_validate.validate(document, kubernetes, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        return Checked([" ".join(str(error).split())[:300]])
    return Checked()


@functools.cache
def custom_kind(api_version: str, kind: str) -> tuple[dict, dict] | None:
    """(schema, strict JSON schema) of a kind whose CRD is in KVRING_DATA; None where it is not there."""
    group, _, name = api_version.partition("/")
    for crd in _definitions(kind):
        if (crd["spec"]["group"], crd["spec"]["names"]["kind"]) == (group, kind):
            for version in crd["spec"]["versions"]:
                if version["name"] == name:
                    schema = version["schema"]["openAPIV3Schema"]
                    return schema, _strict(schema, root=True)
    return None


def _definitions(kind: str) -> Iterator[dict[str, Any]]:
    """The CRDs that may define `kind`; only these are parsed: all of them take seconds."""
    for path in sorted(shared_data.path("crds").glob("*.yaml")):
        for text in path.read_text().split("\n---"):
            if f"kind: {kind}\n" in text:
                lines = [line for line in text.splitlines() if not line.startswith("{{")]  # charts
                yield yaml.load("\n".join(lines), Loader=yaml.CSafeLoader)


def _strict(schema: dict[str, Any], *, root: bool = False) -> dict[str, Any]:
    """`schema` as JSON schema, in which a field that it does not name is an error."""
    out = {key: value for key, value in schema.items() if key not in {"default", "nullable", "format"}}
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
        out.pop("anyOf", None)
        out["type"] = ["integer", "string"]
    properties = {key: _strict(value) for key, value in schema.get("properties", {}).items()}
    if root or schema.get("x-kubernetes-embedded-resource"):
        properties = {**_META, **properties}
        properties["metadata"] = {"type": "object"}
    if properties:
        out["properties"] = properties
    if isinstance(schema.get("additionalProperties"), dict):
        out["additionalProperties"] = _strict(schema["additionalProperties"])
    elif properties and not schema.get("x-kubernetes-preserve-unknown-fields"):
        out["additionalProperties"] = False
    if "items" in schema:
        out["items"] = _strict(schema["items"])
    return {"anyOf": [{"type": "null"}, out]} if schema.get("nullable") else out


def _rules(schema: dict[str, Any], value: Any, where: str, found: Checked) -> None:
    """Defaults are put into `value`, then the rules of `schema` are asked, innermost first."""
    if isinstance(value, dict):
        for key, inner in schema.get("properties", {}).items():
            if key not in value and "default" in inner:
                value[key] = inner["default"]
            if key in value:
                _rules(inner, value[key], f"{where}.{key}", found)
        rest = schema.get("additionalProperties")
        for key in value.keys() - schema.get("properties", {}).keys() if isinstance(rest, dict) else ():
            _rules(rest, value[key], f"{where}.{key}", found)
    if isinstance(value, list):
        for number, inner in enumerate(value):
            _rules(schema.get("items", {}), inner, f"{where}[{number}]", found)
        _unique(schema, value, where, found)
    for rule in schema.get("x-kubernetes-validations", []):
        _rule(rule, value, where, found)


def _unique(schema: dict[str, Any], value: list[Any], where: str, found: Checked) -> None:
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys", [])
    seen = [tuple(one.get(key) for key in keys) if kind == "map" else one for one in value]
    if kind in {"set", "map"} and any(seen.count(one) > 1 for one in seen):
        found.faults.append(f"{where}: an entry stands there twice")


def _rule(rule: dict[str, Any], value: Any, where: str, found: Checked) -> None:
    if "oldSelf" in rule["rule"]:
        return
    try:
        good = cel.evaluate(rule["rule"], {"self": value})
    except (RuntimeError, ValueError, TypeError) as error:
        if _NOT_HERE in str(error):
            found.unevaluated.append(f"{where}: {rule['rule']}")
            return
        good = False  # an API server takes a rule that fails for one that is broken
    if not good:
        found.faults.append(f"{where}: {rule.get('message', rule['rule'])}")

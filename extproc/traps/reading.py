"""Reading: what Envoy was given -> the parts that the rules look at.

Takes a bootstrap, the pieces that `kvring envoy-config --fragments` prints, or Envoy's /config_dump (which is
how Istio's and Envoy Gateway's configuration is seen). Envoy takes keys as field_name and as fieldName; here
all are field_name.

Invariant: any JSON value can be read: what is not of the expected shape counts as absent, nothing raises.
Called by: the rules, `find`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Asking", "Door", "Part", "Setup", "at", "each", "read", "seconds", "targets", "type_of"]

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")
_FIELD = re.compile(r"[a-z][A-Za-z0-9]*")
_EXT_PROC = "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
_MANAGER = "HttpConnectionManager"
_OURS = ("kvring", "epp", "endpoint-picker", "inference")

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A block of the configuration, and `where` it stands, in words."""

    where: str
    value: Json


@dataclass(frozen=True, slots=True)
class Asking(Part):
    """An ext_proc filter as it acts on some routes: its settings, with a route's overrides put in.

    filter_name: Envoy's name of it. before: the filters that run earlier.
    """

    filter_name: str
    before: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class Door:
    """One HTTP connection manager: where it stands, what asks kvring there, and where its requests go.

    buffer_bytes: of its listener's connections. internal_only: headers its routes take from no client.
    """

    where: str
    manager: Json
    buffer_bytes: int
    askings: tuple[Asking, ...]
    routes: tuple[Part, ...]
    internal_only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Setup:
    """All doors that ask somebody, all clusters by name; `whole`: no clusters come from elsewhere."""

    doors: tuple[Door, ...] = ()
    clusters: Mapping[str, Json] = field(default_factory=dict)
    whole: bool = True


def read(document: Any) -> Setup:
    """The parts of `document`, parsed YAML or JSON."""
    document = _snake(document) if isinstance(document, Mapping) else {}
    listeners, clusters, tables, whole = _pieces(document)
    named = {str(one.get("name") or one.get("cluster_name", "")): one for one in clusters}
    doors = tuple(door for one in listeners for door in _doors(one, tables))
    if "http_filters" in document:  # pieces: no connection manager around them
        doors = (_door("the pieces", document, 1 << 20, {"virtual_hosts": [document]}),)
    return Setup(tuple(door for door in doors if door.askings), named, whole)


def at(value: Any, *keys: str) -> Any:
    """What stands below `keys` in nested blocks, None where a step is absent."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def each(value: Any, *keys: str) -> list[Json]:
    """The blocks in the list below `keys`."""
    found = at(value, *keys)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def seconds(value: Any, default: float) -> float:
    """A duration of the JSON form "0.25s" [s]; `default` where there is none."""
    if not isinstance(value, str) or not re.fullmatch(r"-?[0-9]*\.?[0-9]+s", value):
        return default
    return float(value[:-1])


def targets(routes: Sequence[Part]) -> list[tuple[str, str]]:
    """(cluster name, the first of `routes` that leads there)."""
    found: dict[str, str] = {}
    for route in routes:
        names = [
            at(route.value, "route", "cluster"),
            *(at(one, "name") for one in each(route.value, "route", "weighted_clusters", "clusters")),
        ]
        for name in names:
            if isinstance(name, str):
                found.setdefault(name, route.where)
    return sorted(found.items())


def type_of(value: Any) -> str:
    """The message name of a typed block without its package, "" where there is none."""
    return str(at(value, "@type") or "").rpartition(".")[2]


def _snake(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_field(str(key)): _snake(inner) for key, inner in value.items()}
    return [_snake(inner) for inner in value] if isinstance(value, list) else value


def _field(key: str) -> str:
    return _HUMP.sub(lambda hump: "_" + hump[1].lower(), key) if _FIELD.fullmatch(key) else key


def _pieces(document: Json) -> tuple[list[Json], list[Json], dict[str, Json], bool]:
    """(listeners, clusters, route tables by name, whether these are all clusters)."""
    listeners: list[Any] = [*each(document, "static_resources", "listeners")]
    clusters: list[Any] = each(document, "static_resources", "clusters") + each(document, "clusters")
    tables: list[Any] = []
    whole = at(document, "dynamic_resources", "cds_config") is None and "http_filters" not in document
    for dump in each(document, "configs"):
        listeners += [at(one, "active_state", "listener") for one in each(dump, "dynamic_listeners")]
        listeners += [at(one, "listener") for one in each(dump, "static_listeners")]
        clusters += [at(one, "cluster") for one in each(dump, "static_clusters")]
        clusters += [at(one, "cluster") for one in each(dump, "dynamic_active_clusters")]
        tables += [at(one, "route_config") for one in each(dump, "static_route_configs")]
        tables += [at(one, "route_config") for one in each(dump, "dynamic_route_configs")]
    named = {str(at(one, "name") or ""): one for one in tables if isinstance(one, Mapping)}
    return (
        [one for one in listeners if isinstance(one, Mapping)],
        [one for one in clusters if isinstance(one, Mapping)],
        named,
        whole,
    )


def _doors(listener: Json, tables: Mapping[str, Json]) -> Iterator[Door]:
    limit = at(listener, "per_connection_buffer_limit_bytes")
    for chain in [*each(listener, "filter_chains"), at(listener, "default_filter_chain") or {}]:
        for one in each(chain, "filters"):
            manager = at(one, "typed_config")
            if type_of(manager) == _MANAGER:
                table = at(manager, "route_config") or tables.get(
                    str(at(manager, "rds", "route_config_name")), {}
                )
                where = f"listener {at(listener, 'name') or '(no name)'}"
                yield _door(where, manager, limit if isinstance(limit, int) else 1 << 20, table)


def _door(where: str, manager: Json, buffer_bytes: int, table: Json) -> Door:
    routes = tuple(
        Part(f"{where}, route {at(route, 'name') or number}", {"host": host, **route})
        for host in each(table, "virtual_hosts")
        for number, route in enumerate(each(host, "routes"))
    )
    filters = each(manager, "http_filters")
    found: list[Asking] = []
    for number, one in enumerate(filters):
        if str(at(one, "typed_config", "@type") or "").endswith(_EXT_PROC):
            found += _askings(where, one, tuple(filters[:number]), routes)
    ours = [one for one in found if any(word in str(one.value).lower() for word in _OURS)]
    names = at(table, "internal_only_headers")
    internal_only = [str(name).lower() for name in names] if isinstance(names, list) else []
    return Door(where, manager, buffer_bytes, tuple(ours or found), routes, tuple(internal_only))


def _askings(where: str, one: Json, before: tuple[Json, ...], routes: tuple[Part, ...]) -> Iterator[Asking]:
    """The filter as it is, unless it is off by default; and as each route changes it."""
    name, base = str(at(one, "name")), one["typed_config"]
    if not at(one, "disabled"):
        yield Asking(f"{where}, filter {name}", base, name, before)
    seen: list[Json] = []
    for route in routes:
        changed = at(route.value, "typed_per_filter_config", name)
        enabled = at(changed, "config") if type_of(changed) == "FilterConfig" else changed
        overrides = at(enabled, "overrides")
        if not isinstance(overrides, Mapping):
            overrides = {}
        if changed is None or at(changed, "disabled") or at(enabled, "disabled"):
            continue
        if (overrides or at(one, "disabled")) and overrides not in seen:
            seen.append(overrides)
            yield Asking(f"{route.where}, filter {name}", {**base, **overrides}, name, before)

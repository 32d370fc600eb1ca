"""Bootstrap: Envoy's static configuration that asks kvring where each request should go. Pure values.

    listeners (doors) -> bootstrap dict -> YAML, each setting that is not obvious with its reason beside it

    from extproc import bootstrap
    door = bootstrap.Listener("0.0.0.0:10000", [bootstrap.Endpoint("replica-0", "10.0.0.1:8000")],
                              steering=bootstrap.Steering([bootstrap.Sidecar("127.0.0.1:9002")]))
    print(bootstrap.to_yaml(bootstrap.build([door])))

Invariant: equal values give equal text. Called by: gateway, the commands `envoy-config`, `up` and `demo`.
Checked by: a real Envoy in tests/envoy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from extproc.bootstrap import address, cluster, listener, transport
from extproc.bootstrap.listener import DESTINATION, HASH
from extproc.bootstrap.text import to_yaml
from extproc.bootstrap.values import BODY_BYTES_MAX, Endpoint, Hash, Listener, Sidecar, Steering, Tls

__all__ = [
    "BODY_BYTES_MAX",
    "DESTINATION",
    "HASH",
    "Endpoint",
    "Hash",
    "Listener",
    "Sidecar",
    "Steering",
    "Tls",
    "build",
    "fragments",
    "to_yaml",
]

_CONNECTIONS_MAX = 50_000


def build(listeners: Sequence[Listener], *, admin: str = "127.0.0.1:9901") -> dict[str, Any]:
    """A complete bootstrap with these listeners; `admin`: "HOST:PORT" of Envoy's admin, port 0 = any free.

    Raises ValueError when two listeners, or two different groups of kvring processes, share a name.
    """
    if not listeners:
        raise ValueError("bootstrap: needs at least one listener")
    clusters: dict[str, dict[str, Any]] = {}
    for each in listeners:
        if each.name in clusters:
            raise ValueError(f"bootstrap: the name {each.name!r} is used twice")
        clusters[each.name] = cluster.endpoints(each)
        if each.steering:
            name, found = each.steering.cluster_name, cluster.sidecars(each.steering)
            if clusters.setdefault(name, found) != found:
                raise ValueError(f"bootstrap: the name {name!r} is used for different clusters")
    node = {"node": {"id": "kvring", "cluster": "kvring"}} if any(d.endpoints_path for d in listeners) else {}
    return {
        **node,
        "admin": {"address": address.parse(admin, port_min=0).envoy()},
        "overload_manager": _overload_manager(),
        "static_resources": {
            "listeners": [listener.listener(each) for each in listeners],
            "clusters": list(clusters.values()),
        },
    }


def fragments(spec: Listener) -> dict[str, Any]:
    """The pieces of `build` to put into an Envoy configuration that exists, by the name of their place."""
    if not spec.steering:
        raise ValueError("fragments: a listener without kvring has nothing to add")
    return {
        "early_header_mutation_extensions": [listener.early_header_mutation(spec.steering)],
        "http_filters": [listener.ext_proc(spec.steering)],
        "routes": [listener.route(spec)],
        "clusters": [cluster.endpoints(spec), cluster.sidecars(spec.steering)],
    }


def _overload_manager() -> dict[str, Any]:
    return {
        "resource_monitors": [
            {
                "name": "envoy.resource_monitors.global_downstream_max_connections",
                "typed_config": transport.typed(
                    "extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                    max_active_downstream_connections=_CONNECTIONS_MAX,
                ),
            }
        ]
    }

"""Sources: where a pool's endpoints come from, as kvring.yaml says it.

One block a kind; what each does with it is in docs/endpoints.md. Called by: config.pools; read by
endpoints.making.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from extproc.config import meta

__all__ = ["Dns", "EnvoyCluster", "File", "InferencePool", "KubernetesApi", "KubernetesService"]

_Family = Annotated[
    Literal["ipv4", "ipv6"], meta.meaning("Which address of a dual-stack endpoint is taken; else the other.")
]
_KUBERNETES_NAME = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"
_Namespace = (
    Annotated[
        str,
        msgspec.Meta(pattern=_KUBERNETES_NAME, min_length=1, max_length=63),
    ]
    | None
)
_NAMESPACE = meta.meaning("Its namespace. Unset: the one kvring runs in.")
_Admin = Annotated[str, meta.text(r"^http://[^/]+$", 'Envoy\'s admin interface, "http://127.0.0.1:9901".')]


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file that lists endpoints, read again when it changes."""

    path: Annotated[str, meta.text(r"^.", "The file, YAML or JSON; a symbolic link is followed.")]
    poll_interval_s: Annotated[float, meta.number(0.05, 60, "Time from one look to the next.")] = 1.0


class Dns(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A DNS name."""

    name: Annotated[
        str, meta.text(r"^[A-Za-z0-9_.-]+$", "The name; with a dot at the end it is taken as it is.")
    ]
    type: Annotated[
        Literal["address", "srv"],
        meta.meaning("A and AAAA records, or SRV records, which bring port and weight."),
    ] = "address"
    port: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None,
        meta.meaning("Port of every address; required unless `srv`."),
    ] = None
    family: _Family = "ipv4"
    weights: Annotated[bool, meta.meaning("Take the weights of SRV records as shares of the ring.")] = False
    nameservers: Annotated[
        list[str], meta.listed(0, 8, 'Servers to ask, "10.0.0.10" or with a port. None: the system\'s.')
    ] = []
    refresh_max_s: Annotated[
        float, meta.number(0.05, 3600, "Ask again after this long, whatever the records' TTL is.")
    ] = 30.0


class KubernetesService(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The EndpointSlices of a Kubernetes Service."""

    service: Annotated[str, meta.text(_KUBERNETES_NAME, "The Service.")]
    namespace: Annotated[_Namespace, _NAMESPACE] = None
    port: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9-]{1,63}$")] | None,
        meta.meaning("Name or number of the port, as text. Unset: the only one."),
    ] = None
    family: _Family = "ipv4"


class InferencePool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The pods of a Gateway API InferencePool."""

    name: Annotated[str, meta.text(_KUBERNETES_NAME, "The InferencePool.")]
    namespace: Annotated[_Namespace, _NAMESPACE] = None
    family: _Family = "ipv4"


class EnvoyCluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The hosts of a cluster, as an Envoy knows them."""

    admin: _Admin
    cluster: Annotated[str, meta.text(r"^.", "The cluster's name there.")]
    poll_interval_s: Annotated[float, meta.number(0.05, 60, "Time from one question to the next.")] = 1.0


class KubernetesApi(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the Kubernetes API is reached from outside of a pod."""

    server: Annotated[str, meta.text(r"^https?://[^/]+$", 'The API server, "https://10.0.0.1:6443".')]
    token_file: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] | None,
        meta.meaning("File with a bearer token. Unset: none is sent."),
    ] = None
    ca_file: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] | None,
        meta.meaning("Certificates that the server's is checked by. Unset: the system's."),
    ] = None

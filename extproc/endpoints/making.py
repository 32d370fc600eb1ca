"""Making: the source that a pool's configuration asks for.

DNS is imported only for a pool that asks it: its library takes 8 MB of memory. Called by: app.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from extproc import config
from extproc.endpoints import api_server, envoy_clusters, file, inference_pool, slices, source, static

__all__ = ["access", "make"]


def make(
    settings: config.Pool,
    api: config.KubernetesApi | None,
    clock: Callable[[], float],
    chance: Callable[[], float],
) -> source.Source:
    """The source of the pool's members.

    Args: api: how Kubernetes is reached, None for a pod's own way; clock: monotonic [s]; chance: in [0, 1).
    Raises: config.ConfigError if it can't be asked from here.
    """
    try:
        return _make(settings, api, clock, chance)
    except ValueError as error:
        raise config.ConfigError(f"pool {settings.name}: {error}") from error


def access(api: config.KubernetesApi | None) -> api_server.Access:
    """How Kubernetes is reached: as `api` says, or as from any pod. Raises: ValueError outside of one."""
    if api is None:
        return api_server.in_cluster(os.environ)
    return api_server.Access(
        api.server,
        Path(api.token_file) if api.token_file else None,
        Path(api.ca_file) if api.ca_file else None,
    )


def _make(
    settings: config.Pool,
    api: config.KubernetesApi | None,
    clock: Callable[[], float],
    chance: Callable[[], float],
) -> source.Source:
    if settings.file is not None:
        asked = file.Settings(Path(settings.file.path), settings.file.poll_interval_s)
        return file.File(asked, clock)
    if settings.dns is not None:
        from extproc.endpoints import dns  # noqa: PLC0415  (see the module's docstring)

        name = settings.dns
        return dns.Dns(
            dns.Settings(
                name.name,
                name.type,
                name.port,
                name.family,
                name.weights,
                tuple(name.nameservers),
                refresh_max_s=name.refresh_max_s,
            ),
            clock,
            chance,
        )
    if settings.envoy_cluster is not None:
        envoy = settings.envoy_cluster
        return envoy_clusters.EnvoyClusters(
            envoy_clusters.Settings(envoy.admin, envoy.cluster, envoy.poll_interval_s), clock, chance
        )
    if settings.kubernetes_service is not None:
        of = settings.kubernetes_service
        service = slices.Settings(_namespace(of.namespace), of.service, of.port, of.family)
        return slices.Slices(service, access(api), clock, chance)
    if settings.inference_pool is not None:
        named = settings.inference_pool
        group = inference_pool.Settings(_namespace(named.namespace), named.name, named.family)
        return inference_pool.InferencePool(group, access(api), clock, chance)
    return static.Static(config.static_members(settings), clock)


def _namespace(given: str | None) -> str:
    found = given or api_server.namespace()
    if found is None:
        raise ValueError("namespace is missing, and kvring runs in no pod that would tell its own")
    return found

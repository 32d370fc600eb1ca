"""Config: one YAML file and KVRING_* variables -> frozen values, or one readable error.

Called by: app, cli, endpoints.
"""

from extproc.config.derived import match_of, router_settings, static_members, static_pool
from extproc.config.hashing import hasher_of
from extproc.config.plain import plain
from extproc.config.pools import SOURCES, Endpoint, Health, Match, Pool, Signals
from extproc.config.reading import ConfigError, load, loads
from extproc.config.sources import (
    Dns,
    EnvoyCluster,
    File,
    InferencePool,
    KubernetesApi,
    KubernetesService,
)
from extproc.config.store import Store
from extproc.config.values import Config, Tls, Traces
from extproc.config.workers import WORKERS_MAX, for_worker, worker_address

__all__ = [
    "SOURCES",
    "WORKERS_MAX",
    "Config",
    "ConfigError",
    "Dns",
    "Endpoint",
    "EnvoyCluster",
    "File",
    "Health",
    "InferencePool",
    "KubernetesApi",
    "KubernetesService",
    "Match",
    "Pool",
    "Signals",
    "Store",
    "Tls",
    "Traces",
    "for_worker",
    "hasher_of",
    "load",
    "loads",
    "match_of",
    "plain",
    "router_settings",
    "static_members",
    "static_pool",
    "worker_address",
]

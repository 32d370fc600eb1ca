"""Config: one YAML file and KVRING_* variables -> frozen values, or one readable error.

Called by: app, cli, endpoints.
"""

from extproc.config.pools import (
    SOURCES,
    Endpoint,
    Health,
    Match,
    Pool,
    Signals,
    match_of,
    router_settings,
    static_members,
    static_pool,
)
from extproc.config.reading import ConfigError, load, loads
from extproc.config.sources import (
    Dns,
    EnvoyCluster,
    File,
    InferencePool,
    KubernetesApi,
    KubernetesService,
)
from extproc.config.values import Config, Tls

__all__ = [
    "SOURCES",
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
    "Tls",
    "load",
    "loads",
    "match_of",
    "router_settings",
    "static_members",
    "static_pool",
]

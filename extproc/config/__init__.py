"""Config: one YAML file and KVRING_* variables -> frozen values, or one readable error.

Called by: app, cli.
"""

from extproc.config.reading import ConfigError, load, loads
from extproc.config.values import Config, Endpoint, Health, Pool, router_settings, static_pool

__all__ = [
    "Config",
    "ConfigError",
    "Endpoint",
    "Health",
    "Pool",
    "load",
    "loads",
    "router_settings",
    "static_pool",
]

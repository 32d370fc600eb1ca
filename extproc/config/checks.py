"""Checks: what no single value of kvring.yaml can tell, and what no pattern can.

Called by: config.reading.
"""

from __future__ import annotations

import ipaddress
import re
import reprlib
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from extproc.config import hashing, pools, store, values

__all__ = ["LISTENERS", "ConfigError", "Names", "check", "shown"]

LISTENERS = ("grpc_listen", "health_listen", "admin_listen")
Names = Mapping[str, str]
"""Top-level keys that the environment set -> how an error names them."""

_PORT = re.compile(r"[0-9]{1,5}")
_TO_65535 = "[1-5]?[0-9]{1,4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_STORE = re.compile(
    r"(?:valkey|redis)s?://{0}(?:,{0})*/?|unix:///.+".format(
        rf"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(?:{_TO_65535}))?"
    )
)
_PORTS = "an integer from 1 to 65535"


class ConfigError(ValueError):
    """The configuration can't be used; the text names key, value and what is allowed."""


def shown(value: Any) -> str:
    """The value as an error quotes it: bounded, also where aliases make it huge."""
    short = reprlib.Repr()
    short.maxlevel, short.maxlist, short.maxdict, short.maxstring, short.maxother = 3, 4, 4, 80, 80
    return short.repr(value)


def check(config: values.Config, names: Names) -> None:
    """What no single value can tell, and what no pattern can."""
    for key in LISTENERS:
        _listen(names.get(key, key), getattr(config, key), unix=key != "admin_listen")
    if config.tls is not None:
        _listen("tls.listen", config.tls.listen, unix=True)
        if (config.tls.certificate_file is None) != (config.tls.key_file is None):
            missing = "certificate_file" if config.tls.certificate_file is None else "key_file"
            raise ConfigError(f"tls.{missing}: missing; certificate_file and key_file belong together")
    for number, group in enumerate(config.pools):
        _pool(f"pools[{number}]", group)
    _pools(config.pools)
    if config.store is not None:
        _store(config.store)
    _hashes(config, names)
    if config.message_bytes_max < config.prompt_bytes_max:
        key = "message_bytes_max"
        raise ConfigError(
            f"{names.get(key, key)}: {config.message_bytes_max!r} is not allowed; must be at least"
            f" prompt_bytes_max, here {config.prompt_bytes_max}"
        )


def _hashes(config: values.Config, names: Names) -> None:
    """What can't be beside pools whose endpoints Envoy chooses by a hash."""
    found = [group.name for group in config.pools if group.steering == "hash"]
    if not found:
        return
    with_it = f"with steering: hash, as in pool {found[0]}"
    if not config.pick_header:
        key = names.get("pick_header", "pick_header")
        raise ConfigError(f"{key}: false is not allowed {with_it}: Envoy hashes by a header")
    if config.conformance_hooks:
        key = names.get("conformance_hooks", "conformance_hooks")
        raise ConfigError(f"{key}: true is not allowed {with_it}: no hash keeps to the endpoint they name")
    if config.store is not None and len(found) == len(config.pools):
        raise ConfigError("store: not allowed where all pools have steering: hash: there is nothing to share")


def _store(given: store.Store) -> None:
    if not _STORE.fullmatch(given.url):
        # not quoted: somebody may have written a password into it
        raise ConfigError(
            'store.url: not allowed; must be "valkey://HOST:PORT", "valkeys://" for TLS, more hosts behind'
            ' commas, or "unix:///PATH"; a password goes into a file that store.password_file names'
        )
    scheme = given.url.partition("://")[0]
    if not scheme.endswith("s"):
        for key in ("ca_file", "cert_file", "key_file"):
            if getattr(given, key) is not None:
                raise ConfigError(
                    f'store.{key}: without TLS of no use; store.url must begin with "valkeys://"'
                )
    if given.key_file is not None and given.cert_file is None:
        raise ConfigError("store.cert_file: missing; key_file belongs to it")
    if given.sentinel is not None and scheme == "unix":
        raise ConfigError("store.sentinel: Sentinels have addresses; store.url must not be a Unix socket")
    if given.sentinel is None:
        for key in ("sentinel_user", "sentinel_password_file"):
            if getattr(given, key) is not None:
                raise ConfigError(f"store.{key}: without store.sentinel, the primary's name, nobody is asked")


def _pool(where: str, group: pools.Pool) -> None:
    _name(f"{where}.name", group.name)
    wrong = hashing.problem(group)
    if wrong is not None:
        raise ConfigError(f"{where}.{wrong[0]}: {wrong[1]}")
    if group.match is not None:
        _match(f"{where}.match", group.match)
    if group.steering == "hash":
        return
    given = [key for key in pools.SOURCES if getattr(group, key) is not None]
    if len(given) != 1:
        what = "; here are " + " and ".join(given) if given else ""
        raise ConfigError(f"{where}: must have exactly one of {', '.join(pools.SOURCES)}{what}")
    _static(f"{where}.endpoints", group.endpoints or ())
    if group.dns is not None and group.dns.type == "address" and group.dns.port is None:
        raise ConfigError(f"{where}.dns.port: missing; must be {_PORTS}, unless type is srv")
    if group.health.timeout_s > 10 * group.health.interval_s:
        raise ConfigError(
            f"{where}.health.timeout_s: {group.health.timeout_s!r} is not allowed; must be at most ten"
            f" times interval_s, here {10 * group.health.interval_s:g}"
        )
    if group.signals.age_max_s < group.signals.interval_s:
        raise ConfigError(
            f"{where}.signals.age_max_s: {group.signals.age_max_s!r} is not allowed; must be at least"
            f" interval_s, here {group.signals.interval_s:g}"
        )


def _static(where: str, endpoints: Sequence[pools.Endpoint]) -> None:
    for position, endpoint in enumerate(endpoints):
        _name(f"{where}[{position}].name", endpoint.name)
        _address(f"{where}[{position}].address", endpoint.address)
    for field in ("name", "address"):
        counts = Counter(getattr(endpoint, field) for endpoint in endpoints)
        for value, count in counts.most_common(1):
            if count > 1:
                raise ConfigError(
                    f"{where}: the {field} {value!r} is given {count} times; each must be unique"
                )


def _match(where: str, match: pools.Match) -> None:
    if not (match.models or match.adapters or match.clusters or match.routes):
        raise ConfigError(
            f"{where}: must name a model, adapter, cluster or route; leave it out for the default"
        )
    for position, name in enumerate(match.models):
        if not name or name.count("*") > 1:
            raise ConfigError(
                f"{where}.models[{position}]: {shown(name)} is not allowed; must be a model's name with at"
                " most one *"
            )


def _pools(groups: Sequence[pools.Pool]) -> None:
    """What several pools may not be together."""
    _once("the name", "pools: ", ((group.name, group.name) for group in groups))
    default = [group.name for group in groups if group.match is None]
    if len(default) > 1:
        raise ConfigError(
            f"pools: {' and '.join(default)} have no match; at most one pool, the default, can be without"
        )
    addresses = ((listed.address, group.name) for group in groups for listed in group.endpoints or ())
    _once("the endpoint", "pools: ", addresses)
    claims = (
        ((name, bound), group.name)
        for group in groups
        if group.match is not None
        for bound in (group.match.clusters + group.match.routes or [""])
        for name in {*group.match.models, *group.match.adapters}
    )
    _once("the model", "pools: ", ((name[0], owner, name) for name, owner in claims))


def _once(what: str, where: str, owned: Iterable[tuple[Any, ...]]) -> None:
    """Of (shown, pool[, key]) no key twice."""
    owners: dict[Any, str] = {}
    for name, owner, *rest in owned:
        key = rest[0] if rest else name
        if key in owners:
            raise ConfigError(
                f"{where}{what} {name!r} is in {owners[key]} and in {owner}; must belong to one pool"
            )
        owners[key] = owner


def _name(key: str, value: str) -> None:
    if value.endswith("\n"):  # which the $ of a pattern lets through
        raise ConfigError(f"{key}: {shown(value)} is not allowed; must not end with a new line")


def _listen(key: str, value: str, *, unix: bool) -> None:
    if unix and value.startswith("unix:") and len(value) > len("unix:"):
        return
    host, _, port = value.rpartition(":")
    if not host or " " in host or not _PORT.fullmatch(port) or int(port) > 65_535:
        form = ', or "unix:/path"' if unix else ""
        raise ConfigError(
            f'{key}: {shown(value)} is not allowed; must be a host and a port, "0.0.0.0:9002"{form}'
        )


def _address(key: str, value: str) -> None:
    host, _, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        parsed = ipaddress.ip_address(host[1:-1] if bracketed else host)
        known = isinstance(parsed, ipaddress.IPv6Address) == bracketed
    except ValueError:
        known = False
    if not known or not _PORT.fullmatch(port) or not 1 <= int(port) <= 65_535:
        raise ConfigError(
            f"{key}: {shown(value)} is not allowed; must be an IP address and a port as Envoy knows it,"
            ' "10.0.0.1:8000" or "[fd00::1]:8000" (a host name is never matched by override_host)'
        )
    if parsed.version == 6:
        envoys = f"[{socket.inet_ntop(socket.AF_INET6, parsed.packed)}]:{int(port)}"
    else:
        envoys = f"{parsed}:{int(port)}"
    if value != envoys:  # override_host compares text
        raise ConfigError(f'{key}: {shown(value)} is not allowed; must be as Envoy writes it, "{envoys}"')

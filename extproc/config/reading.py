"""Reading: kvring.yaml and KVRING_* variables -> `values.Config`, or an error that can be acted on.

Strict: an unknown key, a value outside its range or an impossible combination is refused, naming the key,
the value and what is allowed. A scalar of the file's top level can be set by the environment under the same
word (`drain_timeout_s` -> KVRING_DRAIN_TIMEOUT_S), which then wins. Other KVRING_* variables are left alone:
Kubernetes sets some of its own (KVRING_SERVICE_HOST) for a Service of that name.

Called by: app, cli.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from extproc.config import allowed, values

__all__ = ["ConfigError", "load", "loads"]

_FILE_BYTES_MAX = 4 * 1024 * 1024
_PORT = re.compile(r"^[0-9]{1,5}$")
_LISTENERS = ("grpc_listen", "health_listen", "admin_listen")


class ConfigError(ValueError):
    """The configuration can't be used; the text names key, value and what is allowed."""


def load(path: Path, environ: Mapping[str, str]) -> values.Config:
    """The configuration in the file at `path`, with what `environ` overrides.

    Raises: ConfigError.
    """
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise ConfigError(f"{path}: larger than {_FILE_BYTES_MAX} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from error
    try:
        return loads(text, environ)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def loads(text: str, environ: Mapping[str, str]) -> values.Config:
    """The configuration in the YAML `text`, with what `environ` overrides.

    Raises: ConfigError.
    """
    raw = _yaml(text)
    if not isinstance(raw, dict):
        raise ConfigError("must be a block of keys, at least `pools`")
    for key in values.Config.__struct_fields__:
        variable = environ.get(f"KVRING_{key.upper()}")
        if variable is not None and key != "pools":
            raw[key] = _yaml(variable) if key not in _LISTENERS else variable
    try:
        config = msgspec.convert(raw, values.Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), raw)) from error
    _check(config)
    return config


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key, count in Counter(map(str, keys)).items():
            if count > 1:
                raise ConfigError(f"line {node.start_mark.line + 1}: the key {key} is given twice")
        return super().construct_mapping(node, deep)


def _yaml(text: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"not YAML: {problem}") from error


def _explain(message: str, raw: Any) -> str:
    """The message of msgspec with key, value and range in it."""
    what, _, where = message.partition(" - at `$")
    path = _steps(where.rstrip("`"))
    unknown = re.search(r"unknown field `(.*)`", what)
    if unknown:
        known = allowed.keys_at(path)
        close = difflib.get_close_matches(unknown[1], known, 1)
        hint = f"did you mean {close[0]}?" if close else "known keys: " + ", ".join(known)
        return f"{_dotted([*path, unknown[1]])}: unknown key; {hint}"
    missing = re.search(r"missing required field `(.*)`", what)
    if missing:
        full = [*path, missing[1]]
        return f"{_dotted(full)}: missing; must be {allowed.range_at(full)}"
    value: Any = raw
    for step in path:
        value = value[step]
    return f"{_dotted(path)}: {value!r} is not allowed; must be {allowed.range_at(path)}"


def _steps(where: str) -> list[str | int]:
    return [
        int(index) if index else name for name, index in re.findall(r"\.([A-Za-z_0-9]+)|\[([0-9]+)\]", where)
    ]


def _dotted(path: list[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _check(config: values.Config) -> None:
    """What no single value can tell."""
    for key in _LISTENERS:
        _listen(key, getattr(config, key))
    for number, group in enumerate(config.pools):
        where = f"pools[{number}]"
        for position, endpoint in enumerate(group.endpoints):
            _address(f"{where}.endpoints[{position}].address", endpoint.address)
        for field in ("name", "address"):
            counts = Counter(getattr(endpoint, field) for endpoint in group.endpoints)
            value, count = counts.most_common(1)[0]
            if count > 1:
                raise ConfigError(
                    f"{where}.endpoints: the {field} {value!r} is given {count} times; each must be unique"
                )
        if group.health.timeout_s > 10 * group.health.interval_s:
            raise ConfigError(
                f"{where}.health.timeout_s: {group.health.timeout_s!r} is not allowed; must be at most ten"
                f" times interval_s, here {10 * group.health.interval_s:g}"
            )
    if config.message_bytes_max < config.prompt_bytes_max:
        raise ConfigError(
            f"message_bytes_max: {config.message_bytes_max!r} is not allowed; must be at least"
            f" prompt_bytes_max, here {config.prompt_bytes_max}"
        )


def _listen(key: str, value: str) -> None:
    if value.startswith("unix:") and len(value) > len("unix:") and key != "admin_listen":
        return
    host, _, port = value.rpartition(":")
    if not host or not _PORT.match(port) or int(port) > 65_535:
        form = "" if key == "admin_listen" else ', or "unix:/path"'
        raise ConfigError(f'{key}: {value!r} is not allowed; must be a host and a port, "0.0.0.0:9002"{form}')


def _address(key: str, value: str) -> None:
    host, _, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        parsed = ipaddress.ip_address(host[1:-1] if bracketed else host)
        known = isinstance(parsed, ipaddress.IPv6Address) == bracketed
    except ValueError:
        known = False
    if not known or not _PORT.match(port) or not 1 <= int(port) <= 65_535:
        raise ConfigError(
            f"{key}: {value!r} is not allowed; must be an IP address and a port as Envoy knows it,"
            ' "10.0.0.1:8000" or "[fd00::1]:8000" (a host name is never matched by override_host)'
        )

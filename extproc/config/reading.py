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
import reprlib
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from extproc.config import allowed, values

__all__ = ["ConfigError", "load", "loads"]

_FILE_BYTES_MAX = 4 * 1024 * 1024
_PORT = re.compile(r"[0-9]{1,5}")
_KEY = re.compile(r"[\w.-]{1,64}")  # no known key is otherwise, and none of these blurs msgspec's messages
_LISTENERS = ("grpc_listen", "health_listen", "admin_listen")

_Names = Mapping[str, str]  # top-level keys that the environment set -> how an error names them


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
    names: dict[str, str] = {}
    for key in values.Config.__struct_fields__:
        variable = f"KVRING_{key.upper()}"
        if variable in environ and key != "pools":
            names[key] = f"{key} (from {variable})"
            raw[key] = environ[variable] if key in _LISTENERS else _yaml(environ[variable], f"{names[key]}: ")
    try:
        config = msgspec.convert(raw, values.Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), raw, names)) from error
    _check(config, names)
    return config


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, of which YAML would silently keep the last.

    And a key that no setting can have, and merges, which can blow a small file up without limit.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise ConfigError(f"line {line}: the key << (a merge) is not allowed; write the keys out")
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or not _KEY.fullmatch(key):
                raise ConfigError(
                    f"line {line}: the key {_shown(key)} is not allowed; must be a setting's name"
                )
            if key in seen:
                raise ConfigError(f"line {line}: the key {key} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def _yaml(text: str, where: str = "") -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader)
    except ConfigError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError, TypeError) as error:
        # The last four are what PyYAML lets through from its constructors: 2001-99-99, 0x_, !!bool x.
        problem = " ".join(str(error).split())
        raise ConfigError(f"{where}not YAML: {problem}") from error


def _shown(value: Any) -> str:
    """The value as an error quotes it: bounded, also where aliases make it huge."""
    short = reprlib.Repr()
    short.maxlevel, short.maxlist, short.maxdict, short.maxstring, short.maxother = 3, 4, 4, 80, 80
    return short.repr(value)


def _explain(message: str, raw: Any, names: _Names) -> str:
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
    key = _dotted(path)
    return f"{names.get(key, key)}: {_shown(value)} is not allowed; must be {allowed.range_at(path)}"


def _steps(where: str) -> list[str | int]:
    return [
        int(index) if index else name for name, index in re.findall(r"\.([A-Za-z_0-9]+)|\[([0-9]+)\]", where)
    ]


def _dotted(path: list[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _check(config: values.Config, names: _Names) -> None:
    """What no single value can tell, and what no pattern can."""
    for key in _LISTENERS:
        _listen(names.get(key, key), getattr(config, key), unix=key != "admin_listen")
    for number, group in enumerate(config.pools):
        where = f"pools[{number}]"
        _name(f"{where}.name", group.name)
        for position, endpoint in enumerate(group.endpoints):
            _name(f"{where}.endpoints[{position}].name", endpoint.name)
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
        key = "message_bytes_max"
        raise ConfigError(
            f"{names.get(key, key)}: {config.message_bytes_max!r} is not allowed; must be at least"
            f" prompt_bytes_max, here {config.prompt_bytes_max}"
        )


def _name(key: str, value: str) -> None:
    if value.endswith("\n"):  # which the $ of a pattern lets through
        raise ConfigError(f"{key}: {_shown(value)} is not allowed; must not end with a new line")


def _listen(key: str, value: str, *, unix: bool) -> None:
    if unix and value.startswith("unix:") and len(value) > len("unix:"):
        return
    host, _, port = value.rpartition(":")
    if not host or " " in host or not _PORT.fullmatch(port) or int(port) > 65_535:
        form = ', or "unix:/path"' if unix else ""
        raise ConfigError(
            f'{key}: {_shown(value)} is not allowed; must be a host and a port, "0.0.0.0:9002"{form}'
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
            f"{key}: {_shown(value)} is not allowed; must be an IP address and a port as Envoy knows it,"
            ' "10.0.0.1:8000" or "[fd00::1]:8000" (a host name is never matched by override_host)'
        )
    if parsed.version == 6:
        envoys = f"[{socket.inet_ntop(socket.AF_INET6, parsed.packed)}]:{int(port)}"
    else:
        envoys = f"{parsed}:{int(port)}"
    if value != envoys:  # override_host compares text
        raise ConfigError(f'{key}: {_shown(value)} is not allowed; must be as Envoy writes it, "{envoys}"')

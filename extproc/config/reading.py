"""Reading: kvring.yaml and KVRING_* variables -> `values.Config`, or an error that can be acted on.

Strict: an unknown key, a value outside its range or an impossible combination is refused, naming the key,
the value and what is allowed. A scalar of the file's top level can be set by the environment under the same
word (`drain_timeout_s` -> KVRING_DRAIN_TIMEOUT_S), which then wins. Other KVRING_* variables are left alone:
Kubernetes sets some of its own (KVRING_SERVICE_HOST) for a Service of that name.

Called by: app, cli.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from extproc.config import allowed, checks, values
from extproc.config.checks import ConfigError, shown

__all__ = ["ConfigError", "load", "loads"]

_FILE_BYTES_MAX = 4 * 1024 * 1024
_KEY = re.compile(r"[\w.-]{1,64}")  # no known key is otherwise, and none of these blurs msgspec's messages


def load(path: Path, environ: Mapping[str, str]) -> values.Config:
    """The configuration in the file at `path`, with what `environ` overrides.

    Raises: ConfigError.
    """
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise ConfigError(f"{path}: larger than {_FILE_BYTES_MAX} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: can't be read: {why}") from error
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
            raw[key] = (
                environ[variable] if key in checks.LISTENERS else _yaml(environ[variable], f"{names[key]}: ")
            )
    try:
        config = msgspec.convert(raw, values.Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), raw, names)) from error
    checks.check(config, names)
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
                    f"line {line}: the key {shown(key)} is not allowed; must be a setting's name"
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


def _explain(message: str, raw: Any, names: checks.Names) -> str:
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
    return f"{names.get(key, key)}: {shown(value)} is not allowed; must be {allowed.range_at(path)}"


def _steps(where: str) -> list[str | int]:
    return [
        int(index) if index else name for name, index in re.findall(r"\.([A-Za-z_0-9]+)|\[([0-9]+)\]", where)
    ]


def _dotted(path: list[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")

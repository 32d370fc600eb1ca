"""Text: a bootstrap as YAML, with the reason for a setting in a comment above it.

The values are dumped, the dump is read back as a tree of nodes that know their lines, and each reason is
put above the line of the key it belongs to. So the comments cannot change what Envoy reads.

Invariant: yaml.safe_load(to_yaml(value)) == value. Called by: bootstrap, gateway, `kvring envoy-config`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

from extproc.bootstrap import reasons

__all__ = ["to_yaml"]

_COLUMNS = 110
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one, 10 times faster, where libyaml is there


def to_yaml(value: dict[str, Any], *, heading: str = "") -> str:
    """`value` as commented YAML; `heading` [lines of text] stands above it as a comment."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=_COLUMNS, default_flow_style=False)
    above: dict[int, str] = {}
    for path, number in _keys(yaml.compose(text, Loader=_Loader), ()):
        reason = reasons.reason(path)
        if reason:
            above[number] = reason
    out = [f"# {line}".rstrip() for line in heading.splitlines()]
    for number, line in enumerate(text.splitlines()):
        if number in above:
            # "- key: x" and "  key: x" hold their keys in one column; the comment takes the dash's
            indent = " " * (len(line) - len(line.lstrip()))
            out += textwrap.wrap(
                above[number], _COLUMNS, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
            )
        out.append(line)
    return "\n".join(out) + "\n"


def _keys(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Path (list positions left out) and line number [from 0] of each key below `node`."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, str(key.value))
            yield below, key.start_mark.line
            yield from _keys(value, below)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _keys(item, path)


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, and writes equal objects out instead of as aliases."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True

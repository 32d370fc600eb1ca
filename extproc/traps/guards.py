"""Guards: which headers kvring may set at a filter, and which of a client's never get there.

Called by: serving, hashing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from extproc.traps.reading import Asking, Door, at, each

__all__ = ["may_set", "scrubs"]


def may_set(asking: Asking, header: str) -> bool:
    """Whether kvring's mutation of `header` gets through: disallowed text, allowed text, then the rest."""
    rules = at(asking.value, "mutation_rules")
    if _matches(at(rules, "disallow_expression", "regex"), header):
        return False
    if _matches(at(rules, "allow_expression", "regex"), header):
        return True
    return not at(rules, "disallow_all")


def _matches(pattern: Any, header: str) -> bool:
    try:
        return isinstance(pattern, str) and re.fullmatch(pattern, header) is not None
    except re.error:
        return False


def scrubs(door: Door, asking: Asking, header: str) -> bool:
    """Whether a client's own `header` is gone before the filter runs."""
    changes = [
        change
        for one in each(door.manager, "early_header_mutation_extensions")
        for change in each(one, "typed_config", "mutations")
    ]
    for one in asking.before:
        changes += each(one, "typed_config", "mutations", "request_mutations")
    if any(_removes(change, header) for change in changes):
        return True
    return header in door.internal_only and bool(at(door.manager, "use_remote_address"))


def _removes(change: Mapping[str, Any], header: str) -> bool:
    return str(at(change, "remove") or "").lower() == header

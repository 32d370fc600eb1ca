"""kvring: routes LLM requests to the replica that already holds their prompt's KV cache.

`docs/architecture.md` is the map; `extproc.app` builds everything; the decision is read in this order:
`server` -> `exchange` -> `router` -> `policy` -> `ledger`.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"

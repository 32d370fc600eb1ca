"""Admin: HTTP for people and machines: /metrics, /healthz, /readyz, the page, and what the page reads.

Never: prompt text, a header's value, an explicit key; a change of anything. Called by: app.
"""

from extproc.admin.access import Access, AccessError
from extproc.admin.server import Admin, Desk

__all__ = ["Access", "AccessError", "Admin", "Desk"]

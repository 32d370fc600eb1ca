"""Files: the page's own HTML, CSS and JavaScript, read once at the start, and the headers they go out with.

No build step and nothing from elsewhere: what is in `extproc/admin/page` is what a browser gets. The policy
lets a browser load only these files and ask only this server, so that even text that slipped through as
markup could neither run nor send anything away.

Never: a path from a request. Called by: admin.server. Source: Content Security Policy Level 3, W3C.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

__all__ = ["HEADERS", "File", "load"]

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-cache",
}
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class File:
    """One file: `path` it is asked for by, its bytes, its media type."""

    path: str
    data: bytes
    kind: str


def load() -> list[File]:
    """All files of the page; index.html is `/`, the others lie below `/page/`."""
    found = []
    for file in sorted(resources.files("extproc.admin").joinpath("page").iterdir(), key=lambda one: one.name):
        kind = _KINDS.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            found.append(File(path, file.read_bytes(), kind))
    return found

"""Access: who may see what of the admin port.

    always              /metrics, /healthz, /readyz, the page's own files
    without a token     /api/state for anybody; /api/choices, /api/config, /api/explain for this machine only
    with a token        all of /api with `Authorization: Bearer TOKEN`, from anywhere, and not without

Which prompts are cached where is what other tenants must not find out by asking (explain), nor key hashes
that a guess could be held against (choices); so these are not for the whole network by default. A port
forward into the pod (`kubectl port-forward`) is this machine. A browser on it is too, and with it any page
whose name was made to point here; so the host asked for must be an address or localhost, which no such page
can have.

The token is a file's content, read again when the file changes. Compared in constant time. Never: in a log,
an error or an answer. Called by: admin.server.
"""

from __future__ import annotations

import hmac
import ipaddress
from pathlib import Path

__all__ = ["TOKEN_BYTES_MAX", "TOKEN_CHARS_MIN", "Access", "AccessError", "read_token"]

TOKEN_CHARS_MIN = 16
TOKEN_BYTES_MAX = 4096
_SCHEME = "bearer "


class AccessError(ValueError):
    """The token can't be used; the text names the file and what is wrong, not the token."""


class Access:
    """The rule, and the token if there is one."""

    def __init__(self, token_file: str | None = None) -> None:
        """Raises: AccessError."""
        self._file = None if token_file is None else Path(token_file)
        self._token = b""
        self._stamp: tuple[int, int] | None = None
        if self._file is not None:
            self._token, self._stamp = read_token(self._file), _stamp(self._file)

    @property
    def has_token(self) -> bool:
        """Whether a token is asked for."""
        return self._file is not None

    def allows(self, authorization: str, remote: str | None, *, guarded: bool, host: str = "") -> bool:
        """Whether to answer.

        Args: authorization, host: the headers, "" without; remote: the client's address; guarded: not for
            everybody.
        """
        if self._file is not None:
            self._refresh(self._file)
            scheme, given = authorization[: len(_SCHEME)], authorization[len(_SCHEME) :].strip()
            same = hmac.compare_digest(given.encode("utf-8", "replace"), self._token)
            return same and scheme.lower() == _SCHEME
        return not guarded or (_is_this_machine(remote) and _is_no_name(host))

    def _refresh(self, file: Path) -> None:
        """Take a new token over; what can't be read leaves the old one in force."""
        try:
            stamp = _stamp(file)
            if stamp != self._stamp:
                self._token, self._stamp = read_token(file), stamp
        except (AccessError, OSError):
            return


def read_token(file: Path) -> bytes:
    """The token in `file`. Raises: AccessError."""
    try:
        with file.open("rb") as opened:
            token = opened.read(TOKEN_BYTES_MAX + 1).strip()
    except OSError as error:
        raise AccessError(f"admin_token_file: {file} can't be read: {error.strerror}") from error
    is_visible = all(32 < byte < 127 for byte in token)
    if not is_visible or not TOKEN_CHARS_MIN <= len(token) <= TOKEN_BYTES_MAX:
        raise AccessError(
            f"admin_token_file: {file} must hold one token of {TOKEN_CHARS_MIN} to {TOKEN_BYTES_MAX} visible"
            " ASCII characters"
        )
    return token


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_ino


def _is_this_machine(remote: str | None) -> bool:
    try:
        address = ipaddress.ip_address((remote or "").partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _is_no_name(host: str) -> bool:
    """Whether a Host header has an address or localhost; no browser leaves it out."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return name.lower() in ("", "localhost")
    return True

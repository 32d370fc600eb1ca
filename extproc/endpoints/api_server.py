"""API server: how Kubernetes is reached, with which certificate and token, and how long things may take.

Never: a token in a log or an error; one used for longer than `token_age_max_s` after it was read.
Called by: kubernetes (asks), the fleet (makes `Access`).
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from extproc import __version__
from extproc.endpoints import source
from extproc.endpoints.source import FaultError, Problem

__all__ = ["Access", "Token", "context", "in_cluster", "namespace", "session"]

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Access:
    """How the API server is reached, and how long things may take.

    server: "https://host:port". token_file, ca_file: none for a server that asks for none. page_objects: of
    one list request [1..10000]. watch_timeout_s: of one watch, up to twice that by chance [1..3600 s];
    slack_s: silence past it that is a fault [0.1..60 s]. request_timeout_s: for a page, or for a watch to
    begin [0.1..120 s]. retry_min_s, retry_max_s: waits after faults [0.01..300 s]. token_age_max_s: how
    long a read token is used [0..3600 s]; kubelet renews the file. page_bytes_max, line_bytes_max: of a
    page and of an event [64 KiB..]; etcd holds 1.5 MiB. objects_max: of a copy [1..]. publish_interval_s:
    changes within it are published as one [0..10 s].
    """

    server: str
    token_file: Path | None = None
    ca_file: Path | None = None
    page_objects: int = 250
    watch_timeout_s: float = 120.0
    slack_s: float = 10.0
    request_timeout_s: float = 15.0
    retry_min_s: float = 0.5
    retry_max_s: float = 30.0
    token_age_max_s: float = 60.0
    page_bytes_max: int = 64 * 1024 * 1024
    line_bytes_max: int = 4 * 1024 * 1024
    objects_max: int = 4 * source.MEMBERS_MAX
    publish_interval_s: float = 0.1


def in_cluster(environ: Mapping[str, str], account: Path = _SERVICE_ACCOUNT) -> Access:
    """Access as Kubernetes gives it to every pod.

    Raises: ValueError outside of a cluster.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ValueError("KUBERNETES_SERVICE_HOST is not set: this is no pod, or its service links are off")
    bracketed = f"[{host}]" if ":" in host else host
    return Access(f"https://{bracketed}:{port}", account / "token", account / "ca.crt")


def namespace(account: Path = _SERVICE_ACCOUNT) -> str | None:
    """The pod's own namespace; None outside of a cluster."""
    try:
        return (account / "namespace").read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


class Token:
    """The service account's token, read again before it is old."""

    def __init__(self, access: Access, clock: source.Clock) -> None:
        self._file = access.token_file
        self._age_max_s = access.token_age_max_s
        self._clock = clock
        self._text = ""
        self._read_s = -math.inf

    def header(self) -> dict[str, str]:
        """Raises: FaultError if there should be a token and is none."""
        if self._file is None:
            return {}
        if self._clock() - self._read_s >= self._age_max_s:
            try:
                with self._file.open("rb") as file:
                    text = file.read(_TOKEN_BYTES_MAX).decode("ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise FaultError(Problem.FORBIDDEN, f"no token: {type(error).__name__}") from error
            if not text or not text.isprintable():
                raise FaultError(Problem.FORBIDDEN, "no token in the token file")
            self._text, self._read_s = text, self._clock()
        return {"authorization": f"Bearer {self._text}"}

    def forget(self) -> None:
        """It was refused: read the file again before the next use."""
        self._read_s = -math.inf


def session(access: Access) -> aiohttp.ClientSession:
    """A session for the API server, to be closed by the caller.

    Raises: OSError if the CA can't be read.
    """
    return aiohttp.ClientSession(
        access.server,
        connector=aiohttp.TCPConnector(ssl=context(access) or True, limit=2),
        headers={"user-agent": f"kvring/{__version__}", "accept": "application/json"},
    )


def context(access: Access) -> ssl.SSLContext | None:
    """What TLS to the API server needs; None without. Raises: OSError if its CA can't be read or is none."""
    if not access.server.startswith("https:"):
        return None
    made = ssl.create_default_context(cafile=access.ca_file)
    # Python 3.13 turned strictness on, which the CAs of many clusters fail (no key identifier).
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return made

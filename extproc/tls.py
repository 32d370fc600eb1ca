"""TLS: credentials of the ext_proc server that follow their files, or a certificate made at the start.

Gateways differ: some dial plaintext, some TLS that they don't verify, so kvring serves both ports at once.
gRPC asks at every handshake whether there is a newer certificate; the files are read again when one of them
has changed, each once, and only taken over if key and certificate belong together, so half a pair cuts nobody
off. A certificate that has expired, or soon will, is used all the same: many gateways don't look. But it is
told, in the log whenever that changes and as a metric.

Never: a start without a usable certificate; an open connection harmed by a new one.
Called by: needs. Source: grpc.dynamic_ssl_server_credentials; Gateway API Inference Extension, whose pickers
serve a self-signed certificate by default.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

__all__ = ["Settings", "TlsError", "credentials"]

_log = logging.getLogger("kvring")

_SOON_S = 7 * 86_400.0
_TOLD = {"expired": "certificate has expired", "soon": "certificate expires soon"}


class TlsError(ValueError):
    """No usable certificate; the text says which file and why."""


@dataclass(frozen=True, slots=True)
class Settings:
    """PEM files. `certificate` and `key` together, or neither: self-signed. `client_ca`: clients must show a
    certificate that it signed; None: they need none.
    """

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None


def credentials(
    settings: Settings,
    names: Sequence[str],
    clock: Callable[[], float],
    taken: Callable[[float], None] = lambda _ends_s: None,
) -> grpc.ServerCredentials:
    """Credentials for a secure port.

    Args: names: DNS names of a self-signed certificate; clock: Unix time [s]; taken: told when a certificate
        expires [s, Unix time] that is used from now on, from any thread.
    Raises: TlsError, also without the package that reads certificates.
    """
    try:
        from extproc import certificate  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise TlsError("tls: needs the extra tls (pip install '.[tls]' in the checkout)") from error
    made = certificate.self_signed(names, clock()) if settings.certificate is None else None
    files = _Files(settings, certificate, made, clock, taken)
    return grpc.dynamic_ssl_server_credentials(
        files.read(), files.changed, require_client_authentication=settings.client_ca is not None
    )


class _Files:
    """The files as they were read last. gRPC calls `changed` from threads of its own, one at a time."""

    def __init__(
        self,
        settings: Settings,
        certificate: types.ModuleType,
        made: tuple[bytes, bytes] | None,
        clock: Callable[[], float],
        taken: Callable[[float], None],
    ) -> None:
        self._settings = settings
        self._certificate = certificate
        self._made = made
        self._clock = clock
        self._taken = taken
        self._ends_s = 0.0
        self._told = ""
        self._stamp = self._look()

    def read(self) -> Any:
        """The certificate configuration, taken over. Raises: TlsError."""
        settings = self._settings
        if self._made is not None:
            key, chain = self._made
        else:
            key, chain = _read("key_file", settings.key), _read("certificate_file", settings.certificate)
        try:
            ends_s = self._certificate.ends_s(key, chain)
        except ValueError as error:
            raise TlsError(
                f"tls: {settings.certificate} and {settings.key} are no certificate and its key: {error}"
            ) from error
        trusted = None
        if settings.client_ca is not None:
            trusted = _read("client_ca_file", settings.client_ca)
            try:
                self._certificate.trusted(trusted)
            except ValueError as error:
                raise TlsError(
                    f"tls.client_ca_file: {settings.client_ca} is no PEM certificate: {error}"
                ) from error
        self._ends_s = ends_s
        self._taken(ends_s)
        self._tell()
        return grpc.ssl_server_certificate_configuration([(key, chain)], trusted)

    def changed(self) -> Any:
        """A new certificate configuration, or None to go on with what there is."""
        stamp = self._look()
        if stamp == self._stamp:
            self._tell()
            return None
        self._stamp = stamp
        try:
            configuration = self.read()
        except TlsError as error:
            _log.warning("certificate not taken over", extra={"problem": str(error)})
            return None
        _log.info("certificate taken over")
        return configuration

    def _tell(self) -> None:
        """Log it, once, when the certificate in use comes to its end."""
        left_s = self._ends_s - self._clock()
        found = "expired" if left_s <= 0 else "soon" if left_s < _SOON_S else ""
        if found and found != self._told:
            extra = {"file": str(self._settings.certificate), "days_left": round(left_s / 86_400, 1)}
            _log.warning(_TOLD[found], extra=extra)
        self._told = found

    def _look(self) -> list[tuple[int, int, int] | None]:
        settings = self._settings
        return [_stamp(path) for path in (settings.certificate, settings.key, settings.client_ca)]


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        found = None if path is None else path.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def _read(key: str, path: Path | None) -> bytes:
    if path is None:
        raise TlsError("tls: a certificate needs its key, and a key its certificate")
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"tls.{key}: {path} can't be read: {error.strerror or error}") from error

"""TLS: credentials of the ext_proc server that follow their files, or a certificate made at the start.

Gateways differ: some dial plaintext, some TLS that they don't verify, so kvring serves both ports at once.
gRPC asks at every handshake whether there is a newer certificate; the files are read again when one of them
has changed, and only taken over if key and certificate belong together, so half a pair cuts nobody off.

Never: a start without a usable certificate; an open connection harmed by a new one.
Called by: app. Source: grpc.dynamic_ssl_server_credentials; Gateway API Inference Extension, whose pickers
serve a self-signed certificate by default.
"""

from __future__ import annotations

import datetime as dt
import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

__all__ = ["Settings", "TlsError", "credentials", "self_signed"]

_log = logging.getLogger("kvring")

_VALID_DAYS = 3650  # nobody renews it but a restart, and nobody verifies it


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


def credentials(settings: Settings, names: Sequence[str], now_s: float) -> grpc.ServerCredentials:
    """Credentials for a secure port.

    Args: names: DNS names of a self-signed certificate; now_s: Unix time [s], from when on it is valid.
    Raises: TlsError.
    """
    files = _Files(settings, *self_signed(names, now_s)) if settings.certificate is None else _Files(settings)
    return grpc.dynamic_ssl_server_credentials(
        files.read(), files.changed, require_client_authentication=settings.client_ca is not None
    )


def self_signed(names: Sequence[str], now_s: float) -> tuple[bytes, bytes]:
    """Key and certificate, PEM, for these DNS names. Raises: TlsError without the package for it."""
    try:
        from cryptography import x509  # noqa: PLC0415  (an extra)
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    except ImportError as error:
        raise TlsError(
            "tls: without certificate_file a self-signed certificate is made, which needs"
            " pip install '.[tls]'"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kvring")])
    now = dt.datetime.fromtimestamp(now_s, dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))  # clocks differ
        .not_valid_after(now + dt.timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(pem, *plain), certificate.public_bytes(pem)


class _Files:
    """The files as they were read last. gRPC calls `changed` from threads of its own, one at a time."""

    def __init__(self, settings: Settings, key: bytes = b"", certificate: bytes = b"") -> None:
        self._settings = settings
        self._made = key, certificate
        self._stamp = self._look()

    def read(self) -> Any:
        """The certificate configuration. Raises: TlsError."""
        settings = self._settings
        key, certificate = self._made
        if settings.certificate is not None and settings.key is not None:
            key, certificate = _read(settings.key), _read(settings.certificate)
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                    settings.certificate, settings.key, password=lambda: b""
                )
            except (ssl.SSLError, OSError) as error:
                raise TlsError(
                    f"tls: {settings.certificate} and {settings.key} are no certificate and its key: {error}"
                ) from error
        trusted = None
        if settings.client_ca is not None:
            trusted = _read(settings.client_ca)
            try:
                ssl.create_default_context(cadata=trusted.decode("ascii") or " ")  # "" would mean: none given
            except (ssl.SSLError, ValueError) as error:
                raise TlsError(f"tls: {settings.client_ca} is no PEM certificate: {error}") from error
        return grpc.ssl_server_certificate_configuration([(key, certificate)], trusted)

    def changed(self) -> Any:
        """A new certificate configuration, or None to go on with what there is."""
        stamp = self._look()
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            configuration = self.read()
        except TlsError as error:
            _log.warning("certificate not taken over", extra={"problem": str(error)})
            return None
        _log.info("certificate taken over")
        return configuration

    def _look(self) -> list[tuple[int, int, int] | None]:
        settings = self._settings
        return [_stamp(path) for path in (settings.certificate, settings.key, settings.client_ca)]


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        found = None if path is None else path.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"tls: {path} can't be read: {error}") from error

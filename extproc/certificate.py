"""Certificate: PEM certificates and their key, made here or looked at. Needs the extra `tls`.

Everything is decided on bytes, so that what was looked at is what is then used: a file that changes between
two readings of it could pass with one content and be served with another.

Never: a file read. Called by: tls. Source: RFC 5280; PEM, RFC 7468.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

__all__ = ["ends_s", "self_signed", "trusted"]

_VALID_DAYS = 3650  # nobody renews it but a restart, and nobody verifies it


def self_signed(names: Sequence[str], now_s: float) -> tuple[bytes, bytes]:
    """Key and certificate, PEM, for these DNS names; valid for ten years from `now_s` [s, Unix time]."""
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


def ends_s(key: bytes, chain: bytes) -> float:
    """When the first certificate of `chain` expires [s, Unix time].

    The others don't count: chains may hold expired ones that clients don't use.

    Args: key: of that first certificate, PEM, not encrypted; chain: PEM.
    Raises: ValueError, if they are no key and no certificates, or don't belong together.
    """
    leaf = _certificates(chain)[0]
    try:
        private = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = "is encrypted" if isinstance(error, TypeError) else "is no PEM key"
        raise ValueError(f"the key {why}") from error
    try:
        public = leaf.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("the certificate's key is of an unknown kind") from error
    if private.public_key() != public:
        raise ValueError("the key is another certificate's")
    return leaf.not_valid_after_utc.timestamp()


def trusted(certificates: bytes) -> None:
    """Nothing, if these are PEM certificates. Raises: ValueError."""
    _certificates(certificates)


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ValueError("no PEM certificate in it") from error

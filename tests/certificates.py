"""Certificates: an authority, and what it signs, for tests that need a right one and a wrong one.

authority = certificates.Authority()
authority.write(folder, "kvring", names=["kvring.llm"])   # (certificate, key), paths of PEM files
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_PEM = serialization.Encoding.PEM


class Authority:
    def __init__(self, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.pem = self._signed(self._name, self._key, days=30, names=(), authority=True)

    def issue(self, names: Sequence[str] = ("localhost",), days: float = 30) -> tuple[bytes, bytes]:
        """(certificate, key), PEM, for these DNS names; `days` from now it ends, below 0 it has."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
        plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return self._signed(subject, key, days=days, names=names), key.private_bytes(_PEM, *plain)

    def write(
        self, folder: Path, name: str, names: Sequence[str] = ("localhost",), days: float = 30
    ) -> tuple[Path, Path]:
        """Paths of what `issue` makes, NAME.crt and NAME.key; NAME.ca beside them is its own."""
        paths = folder / f"{name}.crt", folder / f"{name}.key"
        for path, data in zip(paths, self.issue(names, days), strict=True):
            path.write_bytes(data)
        (folder / f"{name}.ca").write_bytes(self.pem)
        return paths

    def _signed(self, subject, key, *, days, names, authority=False) -> bytes:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=60))
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names:
            found = x509.SubjectAlternativeName([x509.DNSName(one) for one in names])
            builder = builder.add_extension(found, critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(_PEM)


def put(path: Path, data: bytes) -> None:
    """Give the file this content, at once for every reader."""
    staged = path.with_suffix(".staged")
    staged.write_bytes(data)
    staged.replace(path)

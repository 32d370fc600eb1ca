"""Store: the settings of what several replicas of kvring share what they know through.

Called by: config.values, share.store.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from extproc.config import meta

__all__ = ["Store"]

_File = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class Store(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A Valkey or Redis whose publish and subscribe carries what replicas tell each other."""

    url: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=4096,
            description=(
                '"valkey://HOST:PORT", "valkeys://" for TLS (or redis://, rediss://), or "unix:///PATH".'
                " Several hosts, with commas, are nodes of a Cluster, of which any will do, or Sentinels."
            ),
        ),
    ]
    sentinel: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=253)] | None,
        meta.meaning("Name of the primary that the hosts are Sentinels of. Unset: the hosts are servers."),
    ] = None
    channel: Annotated[
        str, meta.text(r"^[A-Za-z0-9._:{}-]+$", "Channel; replicas of one fleet, and no others, share it.")
    ] = "kvring"
    user: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=253)] | None,
        meta.meaning(
            "ACL user; it needs `+publish +subscribe +ping` and the channel. Unset: the default user."
        ),
    ] = None
    password_file: Annotated[
        _File | None, meta.meaning("File with the password, read at every connect. Unset: none is sent.")
    ] = None
    sentinel_user: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=253)] | None,
        meta.meaning("ACL user at the Sentinels; it needs `+sentinel|masters`."),
    ] = None
    sentinel_password_file: Annotated[_File | None, meta.meaning("File with its password.")] = None
    ca_file: Annotated[
        _File | None, meta.meaning("Certificates that the server's is checked by. Unset: the system's.")
    ] = None
    cert_file: Annotated[
        _File | None, meta.meaning("Certificate shown to the server, if it asks for one.")
    ] = None
    key_file: Annotated[_File | None, meta.meaning("Its key.")] = None
    timeout_s: Annotated[
        float, meta.number(0.1, 60, "To connect, and for an answer; after it the connection is made anew.")
    ] = 2.0

"""Needs: what a configuration needs of the machine it runs on: packages, files, a cluster to be in.

What serving stops at, or would wait for in vain, and `kvring check` tells beforehand, by the same code.
Packages that only some configurations need (extras) are loaded through this module only.

Never: an effect but reading files. Called by: app (loads, makes), cli.check (asks for problems).
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from extproc import admin, config, tls
from extproc.endpoints import api_server, making

if TYPE_CHECKING:
    from extproc import tracing
    from extproc.share import store

__all__ = ["credentials", "problems", "store_link", "tracer"]

_BLOCKS = ("tls", "kubernetes_api", "store")


def store_link(settings: config.Store, chance: Callable[[], float]) -> store.StoreLink:
    """The link to the store. Raises: config.ConfigError without the parser of its protocol."""
    with _extra("store", "valkey"):
        from extproc.share import store  # noqa: PLC0415
    return store.StoreLink(settings, chance)


def tracer(wanted: config.Traces, wall_ns: Callable[[], int]) -> tracing.Tracer:
    """Who makes spans. Raises: config.ConfigError without its library."""
    return _tracing()(wanted.endpoint, wanted.share, wanted.service, wall_ns)


def credentials(
    given: config.Tls, wall_s: Callable[[], float], taken: Callable[[float], None]
) -> grpc.ServerCredentials:
    """Credentials of the TLS port; arguments as in `tls.credentials`. Raises: config.ConfigError."""
    names = dict.fromkeys(("localhost", socket.gethostname()))
    files = (given.certificate_file, given.key_file, given.client_ca_file)
    wanted = tls.Settings(*(None if name is None else Path(name) for name in files))
    try:
        return tls.credentials(wanted, list(names), wall_s, taken)
    except tls.TlsError as error:
        raise config.ConfigError(str(error)) from error


def problems(
    settings: config.Config,
    clock: Callable[[], float],
    wall_s: Callable[[], float],
    chance: Callable[[], float],
) -> list[str]:
    """What is missing here, a line each, with its key; none where `settings` can be served.

    Args: clock: monotonic [s]; wall_s: Unix time [s]; chance: uniform in [0, 1).
    """
    unread = dict(_unread(settings))
    found = [f"{key}: {why}" for key, why in unread.items()]
    blocks = {key.partition(".")[0] for key in unread}  # what is in their files need not be asked
    tries: list[Callable[[], object]] = [
        functools.partial(making.make, group, settings.kubernetes_api, clock, chance)
        for group in settings.pools
        if group.steering == "endpoint"
    ]
    if settings.tls is not None and "tls" not in blocks:
        tries.append(functools.partial(credentials, settings.tls, wall_s, lambda _ends_s: None))
    if settings.kubernetes_api is not None and "kubernetes_api" not in blocks:
        tries.append(functools.partial(_kubernetes_api, settings.kubernetes_api))
    if settings.store is not None:
        tries.append(functools.partial(_store, settings.store, chance, are_read="store" not in blocks))
    if settings.traces is not None:
        tries.append(_tracing)  # only loaded: one that is made starts a thread
    if settings.admin_token_file is not None and "admin_token_file" not in unread:
        tries.append(functools.partial(admin.Access, settings.admin_token_file))
    for attempt in tries:
        try:
            attempt()
        except ValueError as error:
            found.append(str(error))
    return found


def _unread(settings: config.Config) -> Iterator[tuple[str, str]]:
    """(key, why) of each file that is named and can't be read."""
    for key, path in _files(settings):
        try:
            with Path(path).open("rb") as file:
                file.read(1)
        except OSError as error:
            yield key, f"{path} can't be read: {error.strerror or error}"


def _files(settings: config.Config) -> Iterator[tuple[str, str]]:
    """(key, path) of every file that `settings` name."""
    if settings.admin_token_file is not None:
        yield "admin_token_file", settings.admin_token_file
    for block in _BLOCKS:
        given = getattr(settings, block)
        for key in () if given is None else given.__struct_fields__:
            if key.endswith("_file") and getattr(given, key) is not None:
                yield f"{block}.{key}", getattr(given, key)
    for number, group in enumerate(settings.pools):
        if group.file is not None:
            yield f"pools[{number}].file.path", group.file.path


def _kubernetes_api(given: config.KubernetesApi) -> None:
    """Raises: config.ConfigError if no certificate could be checked by what is in its `ca_file`."""
    try:
        api_server.context(making.access(given))
    except OSError as error:  # what ssl raises, too
        raise config.ConfigError(
            f"kubernetes_api.ca_file: {given.ca_file} is no PEM certificate: {error}"
        ) from error


def _store(given: config.Store, chance: Callable[[], float], *, are_read: bool) -> None:
    """Raises: config.ConfigError without the extra, or if what is in the files (`are_read`) can't be used."""
    link = store_link(given, chance)
    if are_read:
        link.check_files()


def _tracing() -> type[tracing.Tracer]:
    with _extra("traces", "otel"):
        from extproc import tracing  # noqa: PLC0415
    return tracing.Tracer


@contextlib.contextmanager
def _extra(key: str, extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise config.ConfigError(
            f"{key}: needs the extra {extra} (pip install '.[{extra}]' in the checkout)"
        ) from error

"""Envoy's full schema, from an encoder that shares nothing with kvring's: envoy-data-plane (betterproto2).

The only importer of envoy_data_plane for tests of the protocol: its generated classes use a pydantic
spelling that pydantic 2.12 deprecates, which would be an error here at import.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as http_filter
    from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
    from envoy_data_plane.google import protobuf as google

__all__ = ["core", "ext_proc", "google", "http_filter"]

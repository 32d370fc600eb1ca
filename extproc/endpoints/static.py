"""Static: members written down in the configuration; they never change while kvring runs.

Called by: the fleet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from extproc import pool
from extproc.endpoints import source

__all__ = ["Static"]


class Static:
    """A source that publishes once."""

    def __init__(self, members: Sequence[pool.Endpoint], clock: source.Clock) -> None:
        """`members`: checked by the configuration."""
        self._contact = source.Contact("static", "", clock)
        self._members, self._cut = source.bounded(members)

    async def run(self, publish: source.Publish) -> None:
        """Publish the members, then wait to be cancelled."""
        self._contact.resynced()
        self._contact.heard(self._cut)
        publish(self._members)
        await asyncio.Event().wait()

    def contact_age_s(self, now: float) -> float | None:  # noqa: ARG002  (the protocol's)
        """Always 0: what is written down is never out of date."""
        return 0.0

    @property
    def state(self) -> source.State:
        """How the source fares: well."""
        return self._contact.state

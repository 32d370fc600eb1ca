"""Link: a way to the other replicas. What is sent reaches all of them, or none, or some; never the
caller's time.

Called by: share.sharing. Implemented by: share.store, share.siblings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Heard", "Link", "State"]

Heard = Callable[[bytes], None]
"""Takes in a message; never fails, whatever the bytes are."""


@dataclass(slots=True)
class State:
    """How a link fares. `connected`: it reaches all that it should; `carries`: at least somebody.

    `dropped`: messages not sent, since nobody could take them; `problem`: why, if anything is wrong, without
    secrets; `connects`: how often a connection was made.
    """

    kind: str
    connected: bool = False
    carries: bool = False
    problem: str = ""
    dropped: int = 0
    connects: int = 0


class Link(Protocol):
    """Connects by itself, for ever."""

    state: State

    async def run(self, heard: Heard, joined: Callable[[], None]) -> None:
        """Carry until cancelled; `joined` is called whenever messages begin to pass."""
        ...

    def send(self, data: bytes) -> None:
        """Send, at some time. Returns at once; drops, counted, what can't be sent soon."""
        ...

    async def close(self) -> None:
        """Send what waits, if that goes quickly, and end."""
        ...

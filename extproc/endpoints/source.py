"""Source: where the members of a pool come from, and how it tells that it is in trouble.

A source runs for ever and publishes the whole membership whenever it changes: members, not only those that
are well, because membership decides the ring. What the world does wrong (no file, no answer, nonsense) is
counted and shown here, the members stay as they were (stale beats empty), and the source tries again.

Never: raise for the world's faults; publish what it could not read whole; more than `MEMBERS_MAX` members.
Called by: every source of this package (uses), the fleet (runs), metrics and admin (read `State`).
"""

from __future__ import annotations

import enum
import functools
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from extproc import pool

__all__ = [
    "MEMBERS_MAX",
    "Backoff",
    "Clock",
    "Contact",
    "Family",
    "FaultError",
    "Problem",
    "Publish",
    "Source",
    "State",
    "address",
    "bounded",
    "combined",
    "parse_address",
]

_log = logging.getLogger("kvring")

MEMBERS_MAX = 4096
"""Members of one pool at most; of more, the first by name stay."""

_DETAIL_CHARS_MAX = 200

Publish = Callable[[Sequence[pool.Endpoint]], None]
Clock = Callable[[], float]  # monotonic [s]
Family = Literal["ipv4", "ipv6"]  # which address of a dual-stack endpoint is taken


class Problem(enum.StrEnum):
    """What is wrong with a source; a closed set, fit for a metric's label."""

    UNREACHABLE = "unreachable"  # no connection, a broken one, no answer in time, an unreadable file
    NOT_FOUND = "not_found"  # no such file, DNS name, object or cluster
    FORBIDDEN = "forbidden"  # the source knows us not or refuses us: 401, 403, file permissions
    SERVER_ERROR = "server_error"  # the source has a fault of its own: 5xx, SERVFAIL, an ERROR event
    EXPIRED = "expired"  # what we knew is too old to continue from: 410
    MALFORMED = "malformed"  # an answer that can't be read, or not whole
    TOO_LARGE = "too_large"  # more bytes than allowed
    TOO_MANY = "too_many"  # more members than MEMBERS_MAX; published, but cut


@dataclass(frozen=True, slots=True)
class State:
    """A source as it stands: `problem` is None while all is well; counts since the start."""

    contact_s: float | None  # when the source last gave a good answer, by the clock it was given
    problem: Problem | None
    detail: str  # of the problem, for people; never a secret, at most 200 characters
    faults: Mapping[Problem, int]
    resyncs: int  # times the whole membership was read anew: file loads, DNS answers, Kubernetes lists


class FaultError(Exception):
    """The world's fault, on its way to the one place of a source that records it."""

    def __init__(self, problem: Problem, detail: str = "") -> None:
        """`detail` is for people; it must hold no secret."""
        super().__init__(detail)
        self.problem = problem


class Source(Protocol):
    """Where the members of a pool come from."""

    async def run(self, publish: Publish) -> None:
        """Publish the full membership now and on every change, until cancelled.

        A member that is known but must not be chosen (draining, terminating, not ready) has ready=False.
        """
        ...

    def contact_age_s(self, now: float) -> float | None:
        """How long ago the source last gave a good answer [s]; None if it never did."""
        ...

    @property
    def state(self) -> State:
        """How the source fares."""
        ...


class Contact:
    """The record that a source keeps of itself; logs when its problem changes, not each time it recurs."""

    def __init__(self, kind: str, what: str, clock: Clock) -> None:
        """Args: kind: of source; what: is watched; both for the log. clock: monotonic [s]."""
        self._names = {"source": kind, "of": what}
        self._clock = clock
        self._contact_s: float | None = None
        self._problem: Problem | None = None
        self._detail = ""
        self._faults: Counter[Problem] = Counter()
        self._resyncs = 0

    def heard(self, but: FaultError | None = None) -> None:
        """A good answer came, with news or without; `but`: what was wrong with it nevertheless."""
        self._contact_s = self._clock()
        if but is not None:
            self.failed(but.problem, str(but))
            return
        if self._problem is not None:
            _log.info("source is well again", extra=self._names | {"problem": self._problem.value})
        self._problem, self._detail = None, ""

    def failed(self, problem: Problem, detail: str = "") -> None:
        """An attempt failed; what was published stands."""
        self._faults[problem] += 1
        if problem is not self._problem:
            routine = problem is Problem.EXPIRED
            _log.log(
                logging.INFO if routine else logging.WARNING,
                "source is in trouble; its last members stand",
                extra=self._names
                | {
                    "problem": problem.value,
                    "detail": detail[:_DETAIL_CHARS_MAX],
                    "contact_age_s": self.age_s(self._clock()),
                },
            )
        self._problem, self._detail = problem, detail[:_DETAIL_CHARS_MAX]

    def resynced(self) -> None:
        """The whole membership was read anew."""
        self._resyncs += 1

    def age_s(self, now: float) -> float | None:
        """Since the last good answer [s, >= 0]; None if there was none."""
        return None if self._contact_s is None else max(0.0, now - self._contact_s)

    @property
    def state(self) -> State:
        """The record as a value."""
        return State(self._contact_s, self._problem, self._detail, dict(self._faults), self._resyncs)


class Backoff:
    """Waits that double from `least_s` to `most_s`, each cut by chance to between half and all of itself.

    Without the cut, every replica of kvring would come back to a recovering source at the same moment.
    """

    def __init__(self, least_s: float, most_s: float, chance: Callable[[], float]) -> None:
        """`chance` is uniform in [0, 1)."""
        self._least_s = least_s
        self._most_s = most_s
        self._chance = chance
        self._wait_s = least_s

    def next_s(self) -> float:
        """The next wait [s]."""
        wait_s = self._wait_s
        self._wait_s = min(self._most_s, 2 * wait_s)
        return wait_s * (0.5 + 0.5 * self._chance())

    def reset(self) -> None:
        """Begin again at the least wait: something went well."""
        self._wait_s = self._least_s


def bounded(members: Iterable[pool.Endpoint]) -> tuple[tuple[pool.Endpoint, ...], FaultError | None]:
    """`members` in order of name, of one name the last; of more than MEMBERS_MAX the first, and a fault."""
    by_name = {member.id: member for member in members}
    kept = tuple(by_name[name] for name in sorted(by_name)[:MEMBERS_MAX])
    if len(by_name) <= MEMBERS_MAX:
        return kept, None
    return kept, FaultError(Problem.TOO_MANY, f"{len(by_name)} members, {MEMBERS_MAX} allowed")


def combined(parts: Sequence[State], whole: State) -> State:
    """The state of a source made of `parts`, all needed; `whole`: its own, of what it made of them."""
    contacts_s = [part.contact_s for part in parts if part.contact_s is not None]
    troubled = next((state for state in (*parts, whole) if state.problem is not None), whole)
    faults: Counter[Problem] = Counter()
    for state in (*parts, whole):
        faults.update(state.faults)
    return State(
        min(contacts_s) if contacts_s and len(contacts_s) == len(parts) else None,
        troubled.problem,
        troubled.detail,
        dict(faults),
        sum(part.resyncs for part in parts),
    )


@functools.lru_cache(maxsize=4 * MEMBERS_MAX)  # the same few thousand, again at every change
def address(ip: str, port: int) -> str:
    """The address as Envoy writes it, "ip:port", IPv6 in brackets: override_host compares text.

    Raises: ValueError if `ip` is no IP address or `port` not in [1..65535].
    """
    parsed = ipaddress.ip_address(ip)
    if not 1 <= port <= 65_535:
        raise ValueError(f"port {port} is not between 1 and 65535")
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.scope_id is not None:
            raise ValueError(f"{ip[:60]!r} has a zone")
        return f"[{socket.inet_ntop(socket.AF_INET6, parsed.packed)}]:{port}"
    return f"{parsed}:{port}"


def parse_address(text: str) -> str:
    """`text`, an IP address and a port ("10.0.0.1:8000", "[fd00::1]:8000"), as Envoy writes it.

    Raises: ValueError.
    """
    ip, _, port = text.rpartition(":")
    bracketed = ip.startswith("[") and ip.endswith("]")
    bare = ip[1:-1] if bracketed else ip
    if bracketed != (":" in bare) or not (port.isascii() and port.isdigit() and len(port) <= 5):
        raise ValueError(f"{text[:60]!r} is not an IP address and a port")
    return address(bare, int(port))

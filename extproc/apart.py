"""Apart: what differs while other replicas of kvring place requests that this one does not hear of.

* Homes are seats: each has ceil(keys * weight / weights of all). A key that finds none at the first endpoint
  of its ring order has one at the next; where two want the last, the lower key has it. Who sits where depends
  on which keys there are and not on the order they came in, so all replicas find the same. Why: few keys lie
  unevenly on a ring. Of 20 over 8 endpoints one is home to five or six, more than its cache holds, while
  others have room. A router that knows what all caches hold moves them; one that knows a part cannot.
* A prompt counts as mostly cached at its home: the others sent it there.
* The floor of the bound on open requests is divided only where engines do not tell of the requests of others.

Bounds: keys are forgotten when idle for `_IDLE_S`. With more than `_KEYS_PER_ENDPOINT` an endpoint, or
`_KEYS_MAX`, the ring alone is even enough, and for `_IDLE_S` there are no seats. Seats stand in the ring of
all members, ready or not, so that an endpoint that is away for a moment moves no keys of others.
Called by: router. Source: deferred acceptance, Gale and Shapley 1962; measured in
docs/decisions/0018-seats-for-few-keys.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from extproc import policy, pool, ring

__all__ = ["PRESUMED_SHARE", "Seats", "limits"]

PRESUMED_SHARE = 0.9
"""How much of a prompt its home is presumed to hold."""

_KEYS_PER_ENDPOINT = 16
_KEYS_MAX = 512
_IDLE_S = 300.0
_SWEEP_S = 30.0


def limits(given: policy.Limits, unheard: int, *, told: bool) -> policy.Limits:
    """The limits of a router that does not hear `unheard` [>= 0] others.

    Floors are divided: the others fill endpoints too, each its part. Not that of open requests where engines
    tell (`told`) how many they have, those of others among them.
    """
    if not unheard:
        return given
    count = unheard + 1
    floor_requests = given.floor_requests if told else given.floor_requests / count
    return policy.Limits(given.factor, given.floor_tokens / count, floor_requests)


@dataclass(slots=True)
class _Key:
    """A key, when it was last used, and the endpoints it has not asked for a seat yet."""

    key: int
    used_s: float
    order: Iterator[pool.EndpointId]


@dataclass(slots=True)
class _Home:
    """An endpoint's weight, and who sits there."""

    weight: int
    keys: set[int] = field(default_factory=set)


class Seats:
    """Which endpoint each key that was seen lately has for its home, over one ring."""

    __slots__ = (
        "_closed_until_s",
        "_homes",
        "_keys",
        "_keys_max",
        "_seats",
        "_swept_s",
        "_weights",
        "_wheel",
    )

    def __init__(self, wheel: ring.Ring) -> None:
        """`wheel`: the ring of all members."""
        self._wheel = wheel
        self._weights = sum(weight for _, weight in wheel.members)
        self._keys_max = min(_KEYS_PER_ENDPOINT * len(wheel.members), _KEYS_MAX)
        self._homes = {name: _Home(weight) for name, weight in wheel.members}
        self._keys: dict[int, _Key] = {}
        self._seats: dict[int, pool.EndpointId] = {}
        self._swept_s = 0.0
        self._closed_until_s = 0.0

    def __len__(self) -> int:
        """Keys that have a seat."""
        return len(self._seats)

    def find(self, key: int) -> pool.EndpointId | None:
        """The home of `key`; None where it has no seat yet, so that the ring tells."""
        return self._seats.get(key)

    def take(self, key: int, now: float) -> None:
        """A request of `key` came at `now` [s, monotonic]; it has a seat from now on, if there are any."""
        if now >= self._swept_s + _SWEEP_S:
            self._sweep(now)
        known = self._keys.get(key)
        if known is not None:
            known.used_s = now
            return
        if now < self._closed_until_s or not self._homes:
            return
        if len(self._keys) >= self._keys_max:
            self._closed_until_s = now + _IDLE_S
            self._keys.clear()
            self._seat_all()
            return
        before = self._capacities(len(self._keys))
        self._keys[key] = _Key(key, now, self._wheel.order(key))
        if self._capacities(len(self._keys)) != before:
            self._seat_all()
        else:
            self._seat(self._keys[key])

    def _sweep(self, now: float) -> None:
        self._swept_s = now
        idle = [one.key for one in self._keys.values() if now - one.used_s > _IDLE_S]
        for key in idle:
            del self._keys[key]
        if idle:
            self._seat_all()

    def _capacities(self, keys: int) -> list[int]:
        return [self._seats_of(home, keys) for home in self._homes.values()]

    def _seats_of(self, home: _Home, keys: int) -> int:
        return -(-keys * home.weight // self._weights)

    def _seat_all(self) -> None:
        for home in self._homes.values():
            home.keys.clear()
        self._seats.clear()
        for one in self._keys.values():
            one.order = self._wheel.order(one.key)
            self._seat(one)

    def _seat(self, one: _Key) -> None:
        """Ask from home to home; who loses a seat asks on. There are as many seats as keys, so it ends."""
        while True:
            name = next(one.order)
            home = self._homes[name]
            home.keys.add(one.key)
            self._seats[one.key] = name
            if len(home.keys) <= self._seats_of(home, len(self._keys)):
                return
            one = self._keys[max(home.keys)]
            home.keys.remove(one.key)
            del self._seats[one.key]

"""Groups: which pool a request belongs to, where one kvring serves several.

    1. Envoy's cluster or route: only the pools that name it, else only those that name none; all if Envoy
       tells neither
    2. the model: an exact name (of the pool, one of its adapters, or one that an endpoint says it serves),
       else the longest wildcard
    3. the default pool: the one without any rule of its own

A request whose model is not known (no body, unreadable) goes to the default pool, or else the first one left
by step 1; one whose model nobody claims, without a default pool, has no pool: kvring has no opinion.

Never: a pool outside the cluster that Envoy has chosen, which could not be reached. Called by: exchange,
metrics, admin; made by app.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from extproc import hasher, router

__all__ = ["CLUSTER", "ROUTE", "Chooser", "Group", "Groups", "Match", "alone"]

CLUSTER = "xds.cluster_name"
ROUTE = "xds.route_name"
"""Request attributes of Envoy."""


@dataclass(frozen=True, slots=True)
class Match:
    """What belongs to a pool. `models`: names, in which `*` stands for any text; the others are exact."""

    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()

    @property
    def is_default(self) -> bool:
        """Whether the pool takes what no other one takes."""
        return not (self.models or self.adapters or self.clusters or self.routes)


Chooser = router.Router | hasher.Hasher
"""Who decides for a pool: its router, or its hasher where Envoy's own hashing chooses the endpoint."""


@dataclass(frozen=True, slots=True)
class Group:
    """Who decides for a pool, and what belongs to it."""

    chooser: Chooser
    match: Match = Match()


class Groups:
    """All pools of this process, in the order of the configuration."""

    __slots__ = ("_all", "_by_cluster", "_by_route", "_groups", "_unbound")

    def __init__(self, groups: Sequence[Group]) -> None:
        """Args: groups: at least one."""
        self._groups = tuple(groups)
        self._all = _Pools(groups)
        self._by_cluster = _by_name((group, group.match.clusters) for group in groups)
        self._by_route = _by_name((group, group.match.routes) for group in groups)
        self._unbound = _Pools([g for g in groups if not (g.match.clusters or g.match.routes)])

    @property
    def routers(self) -> tuple[router.Router, ...]:
        """Of the pools that have one."""
        found = (group.chooser for group in self._groups)
        return tuple(one for one in found if isinstance(one, router.Router))

    @property
    def hashers(self) -> tuple[hasher.Hasher, ...]:
        """Of the pools whose endpoints Envoy's own hashing chooses."""
        found = (group.chooser for group in self._groups)
        return tuple(one for one in found if isinstance(one, hasher.Hasher))

    def find(self, model: str | None, attributes: Mapping[str, str]) -> Chooser | None:
        """Who decides for the pool that a request belongs to.

        Args: model: its name in the body; None if it is not known. attributes: Envoy's, by name.
        """
        if len(self._groups) == 1:  # the usual case; what it does not serve it refuses itself
            only = self._groups[0]
            if only.match.is_default:
                return only.chooser
        bound = self._by_route.get(attributes.get(ROUTE, "")) or self._by_cluster.get(
            attributes.get(CLUSTER, "")
        )
        if bound is not None:
            return bound.find(model, bound.groups[0])
        told = ROUTE in attributes or CLUSTER in attributes
        return (self._unbound if told else self._all).find(model, None)


def alone(chooser: Chooser) -> Groups:
    """The groups of a process with one pool."""
    return Groups([Group(chooser)])


class _Pools:
    """Some of the pools, found by the model."""

    __slots__ = ("_default", "_exact", "_wild", "groups")

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(groups)
        self._default = next((group for group in groups if group.match.is_default), None)
        self._exact: dict[str, Group] = {}
        wild: list[tuple[str, str, Group]] = []
        for group in groups:
            for name in (*group.match.models, *group.match.adapters):
                head, star, tail = name.partition("*") if name in group.match.models else (name, "", "")
                if star:
                    wild.append((head, tail, group))
                else:
                    self._exact.setdefault(name, group)
        self._wild = sorted(wild, key=lambda one: -len(one[0]) - len(one[1]))

    def find(self, model: str | None, otherwise: Group | None) -> Chooser | None:
        """Who decides for `model`; that of `otherwise` for a model nobody claims."""
        found = self._claimed(model) if model is not None else None
        found = found or self._default or otherwise
        if found is None and model is None and self.groups:
            found = self.groups[0]
        return None if found is None else found.chooser

    def _claimed(self, model: str) -> Group | None:
        exact = self._exact.get(model)
        if exact is not None:
            return exact
        for group in self.groups:
            if isinstance(group.chooser, router.Router) and model in group.chooser.pool.models:
                return group
        for head, tail, group in self._wild:
            if len(model) >= len(head) + len(tail) and model.startswith(head) and model.endswith(tail):
                return group
        return None


def _by_name(named: Iterable[tuple[Group, Sequence[str]]]) -> dict[str, _Pools]:
    groups: dict[str, list[Group]] = {}
    for group, names in named:
        for name in names:
            groups.setdefault(name, []).append(group)
    return {name: _Pools(found) for name, found in groups.items()}

"""Deciding: one request's way from headers and body to what Envoy is told of the destination.

    headers, body -> prompt -> pool -> its router: an endpoint, with a lease   -> steer
                                       its hasher: a hash for Envoy's own balancing -> steer

A steer tells nothing where there is no opinion, and then removes what a client may have sent in its place. A
request that must not go on without a choice (protocol.Refuse) ends there.

Never: two choices. Called by: exchange, which knows when.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from extproc import choice, groups, hasher, hooks, pool, prompt, protocol, reading, router, served
from extproc.protocol import Refuse, Steer

__all__ = ["Deciding", "Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How every exchange is read, and its limits.

    `key_header`: request header whose value is an explicit key; None for none. In duplex, headers are held
    back for at most `held_bytes_max` of the body [bytes] and `decision_timeout_s` [s]; Envoy has no timeout
    there. `hooks`: whether the request headers of the gateways' conformance tests are obeyed, which name an
    endpoint. `explains`: every steer says why, for an answer's header.
    """

    prompt: prompt.Settings = field(default_factory=prompt.Settings)
    key_header: str | None = None
    held_bytes_max: int = 4 * 1024 * 1024
    decision_timeout_s: float = 1.0
    hooks: bool = False
    explains: bool = False


class Deciding:
    """State of one decision.

    `headers`: the request's, once they came. `endpoint`: who has it: the one chosen, or the one Envoy says
    serves it; None if none of the pool, or unknown. `result`: the choice, or why nobody was chosen; None
    while neither. `router`: of its pool, `decision`: with its lease, None without an endpoint.
    """

    __slots__ = (
        "_groups", "_hashes", "_model", "_settings", "decision", "endpoint", "headers", "result", "router",
    )  # fmt: skip

    def __init__(self, pools: groups.Groups, settings: Settings) -> None:
        self._groups = pools
        self._hashes = bool(pools.hashers)  # a client's own hash must then never go on
        self._model: str | None = None
        self._settings = settings
        self.headers = protocol.RequestHeaders({}, end_of_stream=False)
        self.router: router.Router | None = None
        self.decision: choice.Decision | None = None
        self.endpoint: pool.Endpoint | None = None
        self.result: choice.Choice | choice.Hashed | choice.NoEndpoint | None = None

    @property
    def no_opinion(self) -> Steer:
        """What Envoy is told where it shall balance by itself."""
        return Steer("", hash="" if self._hashes else None)

    def read(self, body: bytes, *, whole: bool) -> prompt.Prompt | prompt.Unkeyed:
        """The prompt in what came of the body; `whole`: whether that is all."""
        found = reading.read(self.headers.headers, body, self._settings.prompt, whole=whole)
        self._model = found.model or self._model
        return found.prompt

    def is_anchored(self, read: prompt.Prompt) -> bool:
        """Whether more of the body would not change the key of what was `read` last."""
        chooser = self._find()
        return chooser is None or self._key is not None or chooser.is_anchored(read)

    def is_key_enough(self) -> bool:
        """Whether the key is all that is asked for: by a hasher, which knows no costs, where no key of the
        body's own can come behind the prompt and win.
        """
        final = self._key is not None or not self._settings.prompt.cache_keys
        return final and isinstance(self._find(), hasher.Hasher)

    def decide(self, read: prompt.Prompt | prompt.Unkeyed, now: float, chance: float) -> Steer | Refuse:
        """What Envoy is told; `result` is set. Repeating it changes nothing."""
        if isinstance(self.result, (choice.Choice, choice.Hashed)):  # headers twice, against the protocol
            return self._steer(self.result)
        chooser = self._find()
        if chooser is None:
            return self._nobody(choice.NoEndpoint(0, 0, why=choice.Why.NO_POOL))
        if isinstance(chooser, hasher.Hasher):
            return self._hash(chooser, read, now)
        self.router = chooser
        answer = self._ask(chooser, read, now, chance)
        if isinstance(answer, choice.NoEndpoint):
            return self._nobody(answer)
        self.decision = answer
        self.result = answer.choice
        self.endpoint = answer.choice.endpoint
        return self._steer(answer.choice)

    def served(self, address: str, now: float) -> None:
        """Envoy tells who serves the request: lease and residency are put right."""
        made = self.decision
        if made is None or self.router is None:
            return
        self.endpoint = served.correct(self.router, made, address, now)
        if self.endpoint is None or self.endpoint.id != made.choice.endpoint.id:
            self.decision = choice.Decision(made.choice, made.lease)  # what was noted is taken back once

    @property
    def _key(self) -> str | None:
        """The request's explicit key from its header."""
        name = self._settings.key_header
        return self.headers.headers.get(name) or None if name else None

    def _find(self) -> groups.Chooser | None:
        return self._groups.find(self._model, self.headers.attributes)

    def _steer(self, made: choice.Choice | choice.Hashed) -> Steer:
        why = made.in_short if self._settings.explains else ""
        if isinstance(made, choice.Hashed):
            return Steer("", why, made.text)
        return Steer(made.addresses, why, "" if self._hashes else None)

    def _nobody(self, nobody: choice.NoEndpoint) -> Steer | Refuse:
        self.result = nobody
        return Refuse(nobody.status, nobody.why.value) if nobody.refuse else self.no_opinion

    def _hash(
        self, chooser: hasher.Hasher, read: prompt.Prompt | prompt.Unkeyed, now: float
    ) -> Steer | Refuse:
        """Refused where the gateway allows only some endpoints: no hash keeps to them."""
        if self.headers.subset is not None:
            return self._nobody(choice.NoEndpoint(0, 0, chooser.name, choice.Why.SUBSET, refuse=True))
        self.result = made = chooser.choose(read, now, self._key, self._model)
        return self._steer(made)

    def _ask(
        self, chooser: router.Router, read: prompt.Prompt | prompt.Unkeyed, now: float, chance: float
    ) -> choice.Decision | choice.NoEndpoint:
        answer = None
        if self._settings.hooks:
            answer = hooks.choose(
                self.headers.headers,
                lambda allowed: chooser.choose(read, now, chance, allowed, self._key, self._model),
            )
        return answer or chooser.choose(read, now, chance, self.headers.subset, self._key, self._model)

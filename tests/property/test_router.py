"""Laws of a choice over any traffic: counted at once, bounded, explained, the same everywhere."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc import choice as choices
from extproc import ledger, pool, prompt, router
from extproc import policy as policies

N = 4
NAMES = [pool.EndpointId(f"e{i}") for i in range(N)]
POLICY = st.sampled_from(["cost", "ring", "least_load", "round_robin", "random"])
FACTOR, FLOOR = 2.0, 3000.0

TEXT = st.text("ab", max_size=5).map(lambda text: "".join(letter * 400 for letter in text).encode())
ASKED = st.one_of(
    st.builds(lambda text: prompt.Prompt("chat", "m", (b"m",), text), TEXT),
    st.sampled_from([prompt.Unkeyed.JSON, prompt.Unkeyed.PATH]),
)
STEP = st.one_of(
    st.tuples(st.just("send"), ASKED, st.none() | st.sets(st.integers(0, N))),
    st.tuples(st.just("end"), st.integers(0, 20)),
    st.tuples(st.just("wait"), st.floats(0, 2)),
    st.tuples(st.just("ready"), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just("members"), st.sets(st.sampled_from(NAMES))),
)


def pool_of(names: set[pool.EndpointId], generation: int) -> pool.Pool:
    return pool.make("p", [pool.Endpoint(name, f"{name}:80") for name in names], generation)


def start(policy: str) -> router.Router:
    limits = policies.Limits(FACTOR, FLOOR)
    tuned = router.Settings(policy=policy, limits=limits, ring_points=16, block_bytes=100, kv_tokens=2000)
    return router.Router(pool_of(set(NAMES), 1), tuned)


@dataclass
class World:
    """A router, and what any history did to it."""

    of: router.Router
    now: float = 0.0
    sent: list[choices.Decision] = field(default_factory=list)

    def step(self, step: tuple[object, ...]) -> choices.Decision | choices.NoEndpoint | None:
        match step:
            case ("send", asked, subset):
                allowed = None if subset is None else {f"e{i}:80" for i in subset}  # type: ignore[attr-defined]
                decided = self.of.choose(asked, self.now, 0.7, allowed)  # type: ignore[arg-type]
                if isinstance(decided, choices.Decision):
                    self.sent.append(decided)
                return decided
            case ("end", int(index)) if index < len(self.sent):
                self.sent[index].lease.release()
            case ("wait", float(seconds)):
                self.now += seconds
            case ("ready", name, ready):
                self.of.publish(pool.with_ready(self.of.pool, {name: ready}))  # type: ignore[dict-item]
            case ("members", names):
                self.of.publish(pool_of(names, self.of.pool.generation + 1))  # type: ignore[arg-type]
            case _:
                pass
        return None

    def load(self, name: pool.EndpointId) -> ledger.Load:
        return self.of.ledger.load(name, self.now)


STEPS = st.lists(STEP, max_size=25)


@settings(deadline=None, max_examples=100)
@given(POLICY, STEPS)
def test_choice_is_ready_allowed_counted_at_once_and_explained(
    policy: str, steps: list[tuple[object, ...]]
) -> None:
    world = World(start(policy))
    for step in steps:
        before = {name: world.load(name) for name in NAMES}
        decided = world.step(step)
        if step[0] != "send" or decided is None:
            continue
        allowed = {f"e{i}:80" for i in range(N)} if step[2] is None else {f"e{i}:80" for i in step[2]}  # type: ignore[attr-defined]
        candidates = {e.id for e in world.of.pool.endpoints if e.ready and e.address in allowed}
        if isinstance(decided, choices.NoEndpoint):
            assert not candidates
            continue
        choice = decided.choice
        assert set(choice.candidates) == candidates
        assert choice.endpoint.id in candidates
        after = {name: world.load(name) for name in NAMES}
        changed = {name for name in NAMES if before[name] != after[name]}
        assert changed == {choice.endpoint.id}
        assert after[choice.endpoint.id].inflight == before[choice.endpoint.id].inflight + 1
        uncached = round(choice.prompt_tokens - choice.cached_tokens)
        assert after[choice.endpoint.id].pending == before[choice.endpoint.id].pending + uncached
        assert choice.work_seen == before[choice.endpoint.id].work
        assert 0 <= choice.cached_tokens <= choice.prompt_tokens
        assert (choice.key is None) == (choice.unkeyed is not None) == isinstance(step[1], prompt.Unkeyed)
    for decided in world.sent:
        decided.lease.release()
    assert world.of.ledger.open_leases == 0
    assert all(world.load(name) == ledger.Load(0, 0) for name in NAMES)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(["cost", "ring"]), STEPS)
def test_keyed_choice_is_below_the_bound_whenever_anyone_is(
    policy: str, steps: list[tuple[object, ...]]
) -> None:
    world = World(start(policy))
    for step in steps:
        before = {name: world.load(name).work for name in NAMES}
        decided = world.step(step)
        if isinstance(decided, choices.Decision) and decided.choice.chain_blocks:
            choice = decided.choice
            total = sum(before[name] for name in choice.candidates) + choice.prompt_tokens + 512
            # Cached tokens only lower the bound: this is the loosest it can be.
            assert choice.work_seen < ledger.bound(total, len(choice.candidates), FACTOR, FLOOR)


@settings(deadline=None, max_examples=60)
@given(POLICY, STEPS)
def test_equal_histories_give_equal_choices(policy: str, steps: list[tuple[object, ...]]) -> None:
    one, other = World(start(policy)), World(start(policy))
    for step in steps:
        first, second = one.step(step), other.step(step)
        if isinstance(first, choices.Decision):
            assert isinstance(second, choices.Decision)
            assert first.choice == second.choice
        else:
            assert first == second


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(NAMES), st.lists(TEXT, min_size=1, max_size=12))
def test_down_and_gone_move_the_same_keys_to_the_same_endpoints(
    name: pool.EndpointId, texts: list[bytes]
) -> None:
    down, gone = World(start("ring")), World(start("ring"))
    down.step(("ready", name, False))
    gone.step(("members", set(NAMES) - {name}))
    for text in texts:
        asked = prompt.Prompt("chat", "m", (b"m",), text)
        key = 12345 + len(text)
        ready = {endpoint.id for endpoint in down.of.pool.ready}
        assert list(down.of.ring.order(key, ready)) == list(gone.of.ring.order(key))
        found = down.step(("send", asked, None))
        assert isinstance(found, choices.Decision)
        assert found.choice.endpoint.id != name


@settings(deadline=None)
@given(POLICY, st.lists(STEP, max_size=30), ASKED)
def test_what_is_previewed_is_what_is_then_chosen_and_looking_changes_nothing(
    policy: str, steps: list[tuple[object, ...]], asked: prompt.Prompt | prompt.Unkeyed
) -> None:
    world = World(start(policy))
    for step in steps:
        world.step(step)
    request = world.of.read(asked)
    open_before = world.of.ledger.open_leases
    first = world.of.preview(request, world.now, 0.7)
    again = world.of.preview(request, world.now, 0.7)
    if isinstance(first, router.Preview):
        assert isinstance(again, router.Preview)
        assert (again.choice, again.order) == (first.choice, first.order)
    assert world.of.ledger.open_leases == open_before
    decided = world.of.place(request, world.now, 0.7)
    if isinstance(decided, choices.NoEndpoint):
        assert first == decided
        return
    assert isinstance(first, router.Preview)
    assert first.choice == decided.choice
    if decided.choice.key is not None:
        assert set(first.order) == set(decided.choice.candidates)

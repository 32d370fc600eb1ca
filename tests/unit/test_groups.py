"""Which pool a request belongs to."""

import pytest

from extproc import groups, pool, router


def group(name: str, *, serves: set[str] | None = None, **match: tuple[str, ...]) -> groups.Group:
    told = frozenset(serves) if serves is not None else None
    member = pool.Endpoint(pool.EndpointId(f"{name}-0"), "10.0.0.1:80", models=told)
    chooser = router.Router(pool.make(name, [member]), router.Settings())
    return groups.Group(chooser, groups.Match(**match))


def found(made: groups.Groups, model: str | None, cluster: str = "", route: str = "") -> str | None:
    attributes = {groups.CLUSTER: cluster} if cluster else {}
    attributes |= {groups.ROUTE: route} if route else {}
    of = made.find(model, attributes)
    return None if of is None else of.pool.name


def test_one_pool_without_rules_takes_everything() -> None:
    made = groups.Groups([group("only")])
    assert found(made, None) == found(made, "any", "some cluster", "some route") == "only"


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("llama-3", "chat"),
        ("llama-3-70b", "big"),
        ("llama-3-8b-instruct", "instruct"),
        ("llama-3-x", "small"),
        ("other/llama", "rest"),
        ("adapter-1", "chat"),
        ("adapter-10", "rest"),
        ("", "rest"),
        (None, "rest"),
    ],
)
def test_exact_names_come_before_the_longest_wildcard_before_the_default(model: str, expected: str) -> None:
    made = groups.Groups(
        [
            group("rest"),
            group("small", models=("llama-3-*",)),
            group("big", models=("llama-3-*b",)),
            group("instruct", models=("llama-3-8b-*",)),
            group("chat", models=("llama-3",), adapters=("adapter-1",)),
        ]
    )
    assert found(made, model) == expected


def test_a_star_in_an_adapter_is_no_wildcard_and_the_parts_of_a_wildcard_do_not_overlap() -> None:
    made = groups.Groups([group("a", adapters=("x*",)), group("b", models=("ab*ba",))])
    assert found(made, "x*") == "a"
    assert found(made, "xy") is None
    assert found(made, "aba") is None
    assert found(made, "abba") == "b"


def test_a_name_that_an_endpoint_says_it_serves_comes_before_wildcards() -> None:
    made = groups.Groups(
        [group("wild", models=("*",)), group("told", serves={"base", "adapter"}, models=("x",))]
    )
    assert found(made, "adapter") == "told"
    assert found(made, "unheard of") == "wild"


def test_cluster_and_route_come_before_the_model_and_bind_it() -> None:
    made = groups.Groups(
        [
            group("a", models=("m",)),
            group("b", models=("m",), clusters=("llm-b", "llm-b2")),
            group("c", models=("n",), clusters=("llm-b",)),
            group("d", routes=("route-d",)),
        ]
    )
    assert found(made, "m", "llm-b") == "b"
    assert found(made, "n", "llm-b") == "c"
    assert found(made, "unclaimed", "llm-b") == "b"  # none outside its cluster could be reached
    assert found(made, None, "llm-b2") == "b"
    assert found(made, "m", "llm-a") == "a"
    assert found(made, "m", "llm-b", "route-d") == "d"


def test_in_a_cluster_that_no_pool_names_bound_pools_are_never_used() -> None:
    made = groups.Groups([group("b", clusters=("llm-b",)), group("c", models=("m",), clusters=("llm-c",))])
    assert found(made, "m", "elsewhere") is None
    assert found(made, None, "elsewhere") is None


def test_where_envoy_tells_no_cluster_all_pools_compete_by_model() -> None:
    made = groups.Groups([group("a"), group("b", models=("m",), clusters=("llm-b",))])
    assert found(made, "m") == "b"
    assert found(made, "other") == "a"


def test_without_a_default_an_unknown_model_has_no_pool_and_an_unread_one_the_first() -> None:
    made = groups.Groups([group("a", models=("m",)), group("b", models=("n",))])
    assert found(made, "x") is None
    assert found(made, None) == "a"
    assert [of.pool.name for of in made.routers] == ["a", "b"]

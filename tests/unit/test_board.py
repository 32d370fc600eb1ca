"""What the router takes from the engines, while it is fresh."""

from extproc import pool, prompt, router, signals

A = pool.EndpointId("a")


def signal(**fields: float | None) -> signals.Signal:
    known = {"at_s": 100.0, "kv_usage": 0.5, "kv_tokens": 1000, "foreign": 2, "sent_tokens": 300.0}
    return signals.Signal(**{**known, **fields})  # type: ignore[arg-type]


def test_usage_grows_with_what_was_sent_since_up_to_all() -> None:
    board = signals.Board(5.0)
    assert board.load(A, 0.0, 100.0) == (None, 0)
    board.put(A, signal())
    assert board.load(A, 300.0, 101.0) == (0.5, 2)
    assert board.load(A, 500.0, 101.0) == (0.7, 2)
    assert board.load(A, 5000.0, 101.0) == (1.0, 2)
    board.put(A, signal(kv_usage=None))
    assert board.load(A, 5000.0, 101.0) == (None, 2)


def test_what_is_old_is_not_used_and_what_left_is_forgotten() -> None:
    board = signals.Board(5.0)
    assert board.age(A, 0.0) is signals.SignalAge.ABSENT
    board.put(A, signal())
    assert board.age(A, 105.0) is signals.SignalAge.FRESH
    assert board.age(A, 105.1) is signals.SignalAge.STALE
    assert board.load(A, 300.0, 105.1) == (None, 0)
    board.drop(A)
    assert board.newest(A) is None
    board.put(A, signal())
    board.retain(())
    assert board.newest(A) is None


def sent_to_a(kv_usage: float | None) -> int:
    """Of 20 cold prompts that stay open, how many go to "a", whose engine says so of its cache."""
    members = [pool.Endpoint(pool.EndpointId(name), f"10.0.0.{n}:80") for n, name in enumerate("ab")]
    chooser = router.Router(pool.make("p", members), router.Settings(kv_tokens=1_000_000))
    chooser.signals.put(
        A, signal(at_s=0.0, kv_usage=kv_usage, kv_tokens=1_000_000, foreign=0, sent_tokens=0.0)
    )
    for number in range(20):
        asked = prompt.Prompt("/completions", "m", (b"m",), f"{number} ".encode() * 4000)
        chooser.choose(asked, 1.0, 0.5)
    assert chooser.sent.to(A).requests + chooser.sent.to(pool.EndpointId("b")).requests == 20
    return chooser.sent.to(A).requests


def test_an_engine_that_is_full_gets_less() -> None:
    assert sent_to_a(0.99) < sent_to_a(0.5) == sent_to_a(None) == 10


def test_a_restart_forgets_what_was_held_and_ramps_up() -> None:
    member = pool.Endpoint(A, "10.0.0.1:80")
    chooser = router.Router(pool.make("p", [member]), router.Settings(slow_start_s=10))
    chooser.signals.put(A, signal())
    chooser.restart(A, 50.0)
    assert chooser.signals.newest(A) is None
    assert chooser.ramp.share(A, 52.0) == 0.2


def test_learned_figures_change_tokens_and_not_chains() -> None:
    member = pool.Endpoint(A, "10.0.0.1:80")
    chooser = router.Router(pool.make("p", [member]), router.Settings())
    chooser.retune(123.0, 2.0)
    assert chooser.settings.bytes_per_token == 2.0
    assert chooser.ledger.prefill_tokens_per_s == 123.0

from extproc import pool, ramp

A = pool.EndpointId("a")


def test_a_new_endpoint_takes_a_tenth_at_first_and_all_at_the_end() -> None:
    made = ramp.Ramp(30.0)
    assert made.share(A, 0.0) == 1.0  # here from the start
    made.begin(A, 100.0)
    assert [made.share(A, 100.0 + age) for age in (0, 1, 15, 15, 30, 500)] == [
        0.1,
        0.1,
        0.5,
        15 / 30,
        1,
        1,
    ]


def test_without_a_window_there_is_no_ramp() -> None:
    made = ramp.Ramp(0.0)
    made.begin(A, 100.0)
    assert made.share(A, 100.0) == 1.0


def test_an_endpoint_that_left_is_forgotten() -> None:
    made = ramp.Ramp(30.0)
    made.begin(A, 100.0)
    made.retain(())
    assert made.share(A, 100.0) == 1.0

"""Lines of an answer, however it was cut into reads; what a status means."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.endpoints import reply
from extproc.endpoints.source import FaultError, Problem


def answer(*reads: bytes):
    async def iter_any():
        for read in reads:
            yield read

    return SimpleNamespace(content=SimpleNamespace(iter_any=iter_any))


async def lines_of(*reads: bytes, bytes_max: int = 1000) -> list[bytes]:
    return [line async for some in reply.lines(answer(*reads), bytes_max) for line in some]


@given(
    st.lists(
        st.binary(min_size=1, max_size=20).filter(lambda line: b"\n" not in line and line.strip()), max_size=8
    ),
    st.lists(st.integers(0, 200), max_size=10),
)
async def test_however_a_stream_is_cut_its_lines_are_the_same(lines, cuts):
    stream = b"".join(line + b"\n" for line in lines)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reads = [stream[start:end] for start, end in itertools.pairwise(places)]
    assert await lines_of(*reads) == lines
    assert await lines_of(*(stream[at : at + 1] for at in range(len(stream)))) == lines


async def test_blank_lines_are_none():
    assert await lines_of(b"\n\na\n", b"\n", b" \r\nb\n") == [b"a", b"b"]


async def test_a_stream_that_ends_within_a_line_is_a_fault_after_the_whole_ones():
    with pytest.raises(FaultError) as caught:
        await lines_of(b"whole\nha", b"lf")
    assert caught.value.problem is Problem.MALFORMED


async def test_a_line_over_the_limit_is_a_fault_before_it_ends():
    assert await lines_of(b"x" * 500, b"x" * 500, b"\n") == [b"x" * 1000]
    with pytest.raises(FaultError) as caught:
        await lines_of(b"x" * 500, b"x" * 501 + b"\ny\n")
    assert caught.value.problem is Problem.TOO_LARGE


async def test_a_body_is_read_up_to_the_limit():
    assert await reply.read(answer(b"ab", b"", b"cd"), 4) == b"abcd"
    with pytest.raises(FaultError) as caught:
        await reply.read(answer(b"ab", b"cd", b"e"), 4)
    assert caught.value.problem is Problem.TOO_LARGE


@pytest.mark.parametrize(
    ("status", "problem"),
    [(401, Problem.FORBIDDEN), (403, Problem.FORBIDDEN), (404, Problem.NOT_FOUND), (410, Problem.EXPIRED),
     (429, Problem.SERVER_ERROR), (500, Problem.SERVER_ERROR), (503, Problem.SERVER_ERROR),
     (204, Problem.MALFORMED), (302, Problem.MALFORMED), (418, Problem.MALFORMED)],
)  # fmt: skip
def test_a_status_means_a_problem(status, problem):
    assert reply.fault(status).problem is problem

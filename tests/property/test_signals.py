"""Whatever an endpoint answers, reading it never fails and never tells an impossible number."""

import math
import pathlib

from hypothesis import given
from hypothesis import strategies as st

from extproc import signals

DUMP = (pathlib.Path(__file__).parents[1] / "data/vllm_metrics.txt").read_bytes()
NAMES = sorted(
    {line.split(b"{")[0].split(b" ")[0] for line in DUMP.splitlines() if not line.startswith(b"#")}
)
LINES = st.builds(
    lambda name, labels, value: name + labels + b" " + value,
    st.sampled_from([*NAMES, b"sglang:token_usage", b"llamacpp:prompt_tokens_total", b"tgi_queue_size"]),
    st.sampled_from([b"", b"{}", b'{le="x"}', b'{le="0.1",a="}"}', b"{", b'{status="5xx"'])
    | st.binary(max_size=9),
    st.sampled_from([b"1", b"-1", b"NaN", b"+Inf", b"1e400", b"x", b"", b"1 2 3", b"1_0"])
    | st.binary(max_size=9),
)
TEXTS = st.binary(max_size=300) | st.lists(LINES, max_size=20).map(b"\n".join)


def sound(reading: signals.Reading) -> None:
    for name in signals.Reading.__struct_fields__:
        value = getattr(reading, name)
        assert not isinstance(value, float) or (0 <= value < math.inf)
    assert reading.kv_usage is None or reading.kv_usage <= 1
    assert list(reading.ttft) == sorted(reading.ttft)
    for share in (0.0, 0.5, 1.0):
        found = signals.quantile(reading.ttft, share)
        assert found is None or 0 <= found < math.inf


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_any_texts_one_after_the_other_are_read(texts: list[bytes]) -> None:
    reader = signals.Reader()
    for text in texts:
        sound(reader.read(text))
        signals.read_models(text)


@given(st.integers(0, len(DUMP)), st.integers(0, len(DUMP)), st.binary(max_size=20))
def test_a_real_exposition_with_a_piece_cut_out_or_put_in_is_read(start: int, end: int, piece: bytes) -> None:
    reader = signals.Reader()
    reader.read(DUMP)
    sound(reader.read(DUMP[:start] + piece + DUMP[max(start, end) :]))

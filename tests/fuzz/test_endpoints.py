"""What an endpoint sends beside its streams: pages, lists of models and headers, made by a grammar. Whatever they say, the prober
takes values that can be, or none, and raises nothing."""

import contextlib
import math

from hypothesis import given
from hypothesis import strategies as st

from prober.exposition.parse import Parser
from prober.features.engines.page_reading import facts, recognise
from prober.features.engines.page_reading import read_signals as read
from prober.measure.engine_signals import EngineHistogram
from prober.measure.engines import TABLES
from prober.measure.payload import Malformed, json_object
from prober.net.exchange import MAX_PAUSE_S, requested_pause_s
from prober.probing.probe import MAX_HEADER_DIGITS, header_number
from tests.fuzz.hostile import FEW, TEXTS

HONEST = 'vllm:num_requests_running{model_name="m"} 3\n'
VLLM = next(table for table in TABLES if recognise(Parser().parse(HONEST.encode()), (table,)))
NAMES = (
    *(
        "vllm:num_requests_waiting",
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:kv_cache_usage_perc",
    ),
    *("vllm:time_to_first_token_seconds_bucket", "vllm:time_to_first_token_seconds_sum", "vllm:request_success_total"),
    *(
        "vllm:cache_config_info",
        "process_start_time_seconds",
        "vllm:gpu_cache_usage_perc",
        "vllm:num_preemptions_total",
    ),
)
NUMBERS = st.one_of(
    st.sampled_from(
        ("1e308", "-1e308", "NaN", "+Inf", "-Inf", "1e999", "0", "-0", "9" * 400, "1e-320", "0x1", "1_0", "")
    ),
    st.floats().map(repr),
    st.integers(-9, 10**30).map(str),
)
LABELS = st.dictionaries(
    st.sampled_from(("model_name", "engine", "le", "num_gpu_blocks", "block_size", "finished_reason")),
    st.one_of(st.sampled_from(("m", "0", "1", "9" * 400)), NUMBERS, st.text("ab\\\u202e\U0001f600 {}", max_size=9)),
    max_size=4,
)


@st.composite
def samples(draw: st.DrawFn) -> str:
    """A line of a page."""
    labels = ",".join(f'{name}="{value}"' for name, value in draw(LABELS).items())
    return f"{draw(st.sampled_from(NAMES))}{{{labels}}} {draw(NUMBERS)}\n"


@FEW
@given(st.lists(samples(), max_size=12).map("".join))
def test_every_signal_of_any_page_is_a_plausible_number(lines: str) -> None:
    """Sums that overflow, NaN and infinities are no values."""
    page = Parser().parse((HONEST + lines).encode())
    signals = read(page, VLLM, version="0.9.1", model="m").signals
    for name in type(signals).__dataclass_fields__:
        value = getattr(signals, name)
        if isinstance(value, EngineHistogram):
            assert all(map(math.isfinite, (*value.bounds, *value.counts, value.sum or 0.0)))
            assert list(value.bounds) == sorted(value.bounds)
            assert list(value.counts) == sorted(value.counts)
        elif isinstance(value, float):
            assert abs(value) <= 1e21, name


SECONDS = st.one_of(
    st.text("0123456789-+.e \u00b2\u0667\x00", max_size=20),
    st.integers(-9, 10**40).map(str),
    st.sampled_from(TEXTS),
    st.datetimes().map(lambda at: at.strftime("%a, %d %b %Y %H:%M:%S GMT")),
    st.builds(
        "{}, {:02} {} {:04} {:02}:{:02}:{:02} {}".format,
        st.sampled_from(("Mon", "Sunday", "x", "")),
        st.integers(-1, 99),
        st.sampled_from(("Jan", "Feb", "Dec", "13")),
        st.integers(-1, 10_000),
        *([st.integers(-1, 99)] * 3),
        st.sampled_from(("GMT", "UTC", "+0000", "")),
    ),
)


@FEW
@given(SECONDS, SECONDS, st.sampled_from((0.0, 1.8e9, 1e12)))
def test_any_header_is_a_bounded_pause_or_none(value: str, date: str, unix_s: float) -> None:
    """`\\xb2` is a digit for Python and no number; a date may be ten thousand years away."""
    pause_s = requested_pause_s({"retry-after": value, "date": date}, unix_s)
    assert pause_s is None or 0.0 <= pause_s <= MAX_PAUSE_S
    left = header_number({"x": value}, "x")
    assert left is None or 0 <= left < 10**MAX_HEADER_DIGITS


DOCUMENTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(-(10**30), 10**30), st.sampled_from(TEXTS)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(("version", "data", "id", "max_model_len")), inner)
    ),
    max_leaves=12,
)


@FEW
@given(DOCUMENTS, DOCUMENTS)
def test_facts_of_any_documents_are_short_texts(version: object, listed: object) -> None:
    """Wherever a document has something else than the engine's."""
    answers = {
        fact.path: document for fact, document in zip(VLLM.facts, (version, listed) * len(VLLM.facts), strict=False)
    }
    assert all(len(fact.value) <= 300 for fact in facts(VLLM.facts, answers).values())


@FEW
@given(
    st.lists(
        st.sampled_from((b"[", b"]", b"{", b"}", b"[],", b'"a":', b'"', b"\\u00", b"1,", b"NaN", b"\xff")), max_size=40
    )
)
def test_json_of_any_pieces_is_an_object_or_malformed(pieces: list[bytes]) -> None:
    """Many times over, too, which is nested deeply or has many values."""
    for times in (1, 5_000):
        with contextlib.suppress(Malformed):
            assert isinstance(json_object(b"".join(pieces) * times), dict)

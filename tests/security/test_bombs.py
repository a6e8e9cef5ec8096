"""Answers of an endpoint that are small on the wire and large in memory, or claim what cannot be: each beside the honest answer.

Peaks are those of a process of its own (`read_bombs`), held against the 256 MiB of the manifests.
"""

import asyncio
import json
import math
import sys
import zlib
from collections.abc import Callable

import orjson
import pytest

from prober.exposition.parse import MAX_LINE_BYTES, MAX_SAMPLES, PageTooLarge, Parser
from prober.features.engines.page_reading import MAX_BUCKETS, recognise
from prober.features.engines.page_reading import read_signals as read
from prober.measure.engine_signals import EngineHistogram
from prober.measure.engines import TABLES
from prober.measure.payload import MAX_VALUES, Malformed, json_object
from prober.measure.recording import Recording
from tests.security.hostile_engine import by_path, chunk, engine, models, response, stream

PEAK_MIB = 256  # of the manifests
GROWTH_MIB = 80  # that one endpoint may cause
HONEST_PAGE = (
    b'vllm:num_requests_running{model_name="m"} 3\n'
    b'vllm:num_requests_waiting{model_name="m"} 0\n'
    b'vllm:generation_tokens_total{model_name="m"} 1000\n'
    b'vllm:prompt_tokens_total{model_name="m"} 5000\n'
)
LISTS = b"[" + b"[]," * 1_300_000 + b"[]]"  # 4 MB of JSON, 100 MB of lists
STREAM = stream(chunk("hi"), chunk(" you", finish="stop", usage={"prompt_tokens": 9, "completion_tokens": 2}))


def page(body: bytes) -> bytes:
    return response(body, kind="text/plain; version=0.0.4")


HONEST = {
    "/v1/models": models("m"),
    "/v1/chat/completions": STREAM,
    "/metrics": page(HONEST_PAGE),
    "/version": response(b'{"version": "0.9.1"}'),
    "/health": response(b""),
}
# What one path answers, and what the log or the outcome then says; the rest is honest.
BOMBS: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "version of 16 MB": ("/version", lambda: response(b'{"version": "' + b"x" * (16 << 20) + b'"}'), "have the server answer"),
    "version in lists": ("/version", lambda: response(b'{"version": "1", "x": ' + LISTS + b"}"), "have the server answer"),
    "version in numbers": ("/version", lambda: response(b'{"x": [' + b"1," * 30_000 + b"1]}"), ""),
    "models in lists": ("/v1/models", lambda: response(b'{"data": ' + LISTS + b"}"), "set `model` and `engine`"),
    "60,000 models": ("/v1/models", lambda: models(*(f"model-{number}" for number in range(60_000))), "set `model` and `engine`"),
    "a model's name of 200 kB": ("/v1/models", lambda: models("m" * 200_000), "set `model` and `engine`"),
    "a model's name of 200 kB in wide characters": ("/v1/models", lambda: models("\U0001f600" * 50_000), "set `model` and `engine`"),
    "a page of 250,000 series": (
        "/metrics",
        lambda: page(HONEST_PAGE + b"".join(b'vllm:request_success_total{model_name="m",id="%d"} 1\n' % at for at in range(250_000))),
        "nothing of it is used",
    ),
    "a short page of 250,000 series": (
        "/metrics",
        lambda: page(HONEST_PAGE + b"".join(b'x{a="%d"} 1\n' % at for at in range(250_000))),
        "nothing of it is used",
    ),
    "a page of 64 MB": ("/metrics", lambda: page(HONEST_PAGE + b"# comment\n" * 6_400_000), "nothing of it is used"),
    "a page with a line of 6 MB": (
        "/metrics",
        lambda: page(HONEST_PAGE + b'x{a="' + "\U0001f600".encode() * 1_500_000 + b'"} 1\n'),
        "a line of more than",
    ),
    "a compressed page": (
        "/metrics",
        lambda: response(zlib.compress(b"x" * (64 << 20), wbits=31), kind="text/plain", headers=(("Content-Encoding", b"gzip"),)),
        "switch that off for the prober",
    ),
}  # fmt: skip


async def outcome(changes: dict[str, bytes]) -> dict[str, object]:
    """What `read_bombs` says of an honest engine with these answers in place of its own."""
    async with engine(by_path(HONEST | changes)) as url:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.security.read_bombs", url), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, object] = json.loads(out)
    return found


async def test_an_honest_engine_is_read_in_full() -> None:
    """The neighbour of all bombs below."""
    found = await outcome({})
    assert (found["outcome"], found["model"], found["read"]) == ("ok", "m", 2)
    assert all("should have" in line for line in found["log"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_bomb_is_refused_within_bounded_memory_and_told_once(bomb: str) -> None:
    """What is larger than its limit is not believed in part, and the message says what to do."""
    path, answer, remedy = BOMBS[bomb]
    found = await outcome({path: answer()})
    told = [line for line in [*found["log"], found["detail"]] if remedy and remedy in line]  # type: ignore[misc]
    assert len(told) == bool(remedy), found
    assert (found["outcome"] == "ok") is (path != "/v1/models")
    assert found["read"] == (2 if path == "/version" else 0)  # without a model the engine is not known, nor its page
    assert float(str(found["grown_mib"])) < GROWTH_MIB
    assert float(str(found["peak_mib"])) < PEAK_MIB


# --- pages


def test_a_page_is_read_up_to_its_limit_and_not_beyond() -> None:
    """Samples are counted while they are parsed; names that nobody asked for do not count."""
    lines = b"".join(b'x{a="%d"} 1\n' % number for number in range(MAX_SAMPLES))
    assert len(Parser().parse(lines).samples["x"]) == MAX_SAMPLES
    with pytest.raises(PageTooLarge, match=f"more than {MAX_SAMPLES:,} series"):
        Parser().parse(lines + b"x 1\n")
    assert Parser({"y"}).parse(lines + b"x 1\n" * 1_000 + b"y 1\n").stored == 1
    with pytest.raises(PageTooLarge, match="a line of more than"):
        Parser().parse(b"x" * (2 * MAX_LINE_BYTES))


ODD = ("1e308", "-1e308", "NaN", "+Inf", "-Inf", "1e999", "-0", "1e22", "9" * 400, "buckets without end")


def odd_page(value: str) -> str:
    """Every kind of signal with this value, twice, so that sums overflow."""
    name = "vllm:time_to_first_token_seconds"
    if value not in ODD[:-1]:
        return "".join(f'{name}_bucket{{le="{le}"}} 1\n' for le in (*range(MAX_BUCKETS), "+Inf"))
    lines = [f'{name}_bucket{{le="{le}",engine="%d"}} {value}\n' for le in ("0.1", value, "NaN", "-Inf", "+Inf")]
    of_one = (
        "generation_tokens_total",
        "kv_cache_usage_perc",
        "num_requests_waiting",
        "time_to_first_token_seconds_sum",
    )
    lines += [f'vllm:{each}{{model_name="m",engine="%d"}} {value}\n' for each in of_one]
    return "".join(line % engine for line in lines for engine in range(2))


@pytest.mark.parametrize("odd", ODD)
def test_a_sum_that_overflows_is_no_value_and_ends_no_reading(odd: str) -> None:
    """Every value of the reading is finite and plausible, and that of the honest series beside it is right."""
    honest = 'vllm:num_requests_running{model_name="m"} 3\nvllm:prompt_tokens_total{model_name="m"} 5000\n'
    parsed = Parser().parse((honest + odd_page(odd)).encode())
    table = recognise(parsed, TABLES)
    assert table is not None
    signals = read(parsed, table, version="0.9.1", model="m").signals
    assert (signals.requests_running, signals.prompt_tokens_total) == (3.0, 5000.0)
    for name in type(signals).__dataclass_fields__:
        value = getattr(signals, name)
        if isinstance(value, EngineHistogram):
            assert all(map(math.isfinite, (*value.bounds, *value.counts, value.sum or 0.0)))
            assert list(value.bounds) == sorted(set(value.bounds))
            assert len(value.bounds) <= MAX_BUCKETS
        elif isinstance(value, float):
            assert 0.0 <= value <= 1e21, name


# --- streams


def test_a_stream_of_nested_lists_is_given_up() -> None:
    """60 events of 240 KB, of which each is JSON of 80,000 lists: only as many are parsed as the answer's length explains."""
    event = b"data: " + b'{"choices": [], "x": [' + b"[]," * 80_000 + b"[]]}\n\n"
    hostile, honest = Recording(tokens=16), Recording(tokens=16)
    fed = 0
    for _ in range(60):
        fed += len(event)
        if hostile.feed(1, event):
            break
    assert hostile.malformed is not None
    assert fed < 3 << 20
    for recorded in (chunk("hi"), chunk("", finish="stop")):
        honest.feed(1, b"data: " + orjson.dumps(recorded) + b"\n\n")
    honest.finish()
    assert (honest.malformed, honest.answer.finish_reason) == (None, "stop")


def test_json_of_too_many_values_is_not_parsed() -> None:
    """An empty list takes two bytes of JSON and sixty of memory; a long text has as many commas as it likes."""
    with pytest.raises(Malformed, match=f"more than {MAX_VALUES:,} values"):
        json_object(b'{"x": [' + b"[]," * MAX_VALUES + b"[]]}")
    assert json_object(b'{"x": [' + b"1," * (MAX_VALUES - 10) + b"1]}")
    assert json_object(orjson.dumps({"text": "So, then, " * 9_000}))


# --- claims

"""Pages of every engine and release in tests/pages, with the expected signals beside each.

Pages named with a full release of vLLM 0.32, llama.cpp and LiteLLM were captured from running servers; the others are small
ones with the names and labels of their release.
"""

import json
from dataclasses import fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from prober.exposition.parse import Parser
from prober.features.engines.page_reading import facts, metrics, needed_metrics, recognise, release_of
from prober.features.engines.page_reading import read_signals as read
from prober.measure.engine_signals import AnySource, Computed, EngineHistogram, EngineInfo, EngineSignals, EngineTable
from prober.measure.engines import DIALECTS, TABLES, tables

PAGES = Path(__file__).parents[2] / "pages"
MORE = PAGES / "more"  # what another server of the same release has on it besides, and the signals of that
FIELDS = {field.name for field in fields(EngineSignals)} - {"info"}
NAMES = sorted(path.stem for path in PAGES.glob("*.prom"))


def present(signals: EngineSignals) -> dict[str, Any]:
    """Signals that are not None, in the form of the expected files."""
    values: dict[str, Any] = {}
    for name in FIELDS:
        value = getattr(signals, name)
        if isinstance(value, EngineHistogram):
            values[name] = {"bounds": list(value.bounds), "counts": list(value.counts), "sum": pytest.approx(value.sum)}
        elif value is not None:
            values[name] = pytest.approx(value)
    return values


def page_of(name: str, keep: frozenset[str] | None = None) -> Any:
    return Parser(keep).parse((PAGES / f"{name}.prom").read_bytes())


@pytest.mark.parametrize("name", NAMES)
def test_a_page_gives_the_expected_reading(name: str) -> None:
    """It is recognised by its shape; signals, model, flags and missing signals are as expected."""
    expected = json.loads((PAGES / f"{name}.json").read_text())
    table = recognise(page_of(name), TABLES)
    assert table is not None
    assert table.engine == expected["engine"]
    assert recognise(page_of(name, needed_metrics(tables(table.engine))), tables(table.engine)) is table
    page = page_of(name, needed_metrics([table]))
    assert page.broken == 0
    reading = read(page, table, version=expected["version"], model=expected["model"])
    assert present(reading.signals) == expected["signals"]
    assert [name for missing in reading.missing for name in missing.names] == expected["missing"]
    assert (reading.signals.info.engine, reading.signals.info.version) == (expected["engine"], expected["version"])
    assert reading.signals.info.model == expected["model"]
    assert reading.signals.info.flags == expected["flags"]


@pytest.mark.parametrize("name", NAMES)
def test_without_the_version_the_signals_are_the_same(name: str) -> None:
    """Every name is tried then."""
    expected = json.loads((PAGES / f"{name}.json").read_text())
    page = page_of(name)
    table = recognise(page, TABLES)
    assert table is not None
    assert present(read(page, table, model=expected["model"]).signals) == expected["signals"]


@pytest.mark.parametrize("name", sorted(path.stem for path in MORE.glob("*.prom")))
def test_what_only_some_servers_have_is_read_where_the_page_has_it(name: str) -> None:
    """Speculation, finish reasons, failures and KV transfers, beside all that the page has without them."""
    expected = json.loads((PAGES / f"{name}.json").read_text())
    more = json.loads((MORE / f"{name}.json").read_text())
    table = recognise(page_of(name), TABLES)
    assert table is not None
    page = Parser(needed_metrics([table])).parse(
        (PAGES / f"{name}.prom").read_bytes() + (MORE / f"{name}.prom").read_bytes()
    )
    assert page.broken == 0
    reading = read(page, table, version=expected["version"], model=expected["model"])
    assert present(reading.signals) == expected["signals"] | more
    assert [name for missing in reading.missing for name in missing.names] == expected["missing"]


def test_every_table_is_tested_on_a_page() -> None:
    """Every table of an engine with a page has one in tests/pages."""
    tested = {id(recognise(page_of(name), TABLES)) for name in NAMES}
    untested = [table for table in TABLES if table.paths and id(table) not in tested]
    # NIM 2.x has vLLM's page; SGLang under Ray has SGLang's with another prefix: both below.
    assert [table.engine for table in untested] == ["ray", "nim"]


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("vllm_0") and "rust" not in name])
def test_the_end_of_openmetrics_does_not_make_a_page_of_python_that_of_rust(name: str) -> None:
    """A proxy in front of vLLM may ask for OpenMetrics: capacity and start are read all the same."""
    plain = page_of(name)
    table = recognise(plain, TABLES)
    assert table is not None
    page = Parser().parse((PAGES / f"{name}.prom").read_bytes() + b"# EOF\n")
    assert page.eof
    assert recognise(page, TABLES) is table


def test_nim_2_is_read_by_its_own_table_from_a_page_like_vllms() -> None:
    """With `engine: nim` the page of 2.x gives all signals, and no names of other releases are missing."""
    page = page_of("vllm_0.32.0_under_load")
    table = recognise(page, tables("nim"))
    assert table is not None
    reading = read(page, table, version="2.0.0")
    assert reading.missing == ()
    assert (reading.signals.info.engine, reading.signals.requests_waiting) == ("nim", 29.0)


def test_sglang_under_ray_is_sglang_with_another_prefix() -> None:
    """Names inside sums and products are renamed too."""
    text = (PAGES / "sglang_0.5.23.prom").read_text().replace("sglang:", "ray_sglang_")
    page = Parser().parse(text.encode())
    table = recognise(page, TABLES)
    assert table is not None
    assert table.engine == "ray"
    expected = json.loads((PAGES / "sglang_0.5.23.json").read_text())["signals"]
    assert present(read(page, table).signals) == expected


def parts(source: AnySource) -> list[tuple[str, Any]]:
    """Names of a source with labels and aggregation."""
    if isinstance(source, Computed):
        return [part for value in source.parts for part in parts(value)]
    return [(source.metric, (sorted(source.where.items()), source.labels, source.aggregation))]


def overlap(one: AnySource, other: AnySource) -> bool:
    """Whether a release has both sources."""
    first = max(release_of(source.since) or (0,) for source in (one, other))
    last = min(release_of(source.until) or (10**9,) for source in (one, other))
    return first < last


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.engine}-{table.shape and table.shape.prefixes}")
def test_no_table_names_a_metric_twice_for_one_release(table: EngineTable) -> None:
    """Neither in one source nor in two sources of the same release."""
    for signal, sources in table.signals.items():
        assert signal in FIELDS
        for source in sources:
            named = parts(source)
            assert all(one != other for one, other in combinations(named, 2)), signal
            assert metrics(signal, source)
        for one, other in combinations(sources, 2):
            if overlap(one, other):
                # A part may stand in two sources (ready endpoints), but no two sources begin with the same series.
                assert parts(one)[0] != parts(other)[0], signal


def signals_of(text: str) -> EngineSignals:
    page = Parser().parse(text.encode())
    table = recognise(page, TABLES)
    assert table is not None
    return read(page, table).signals


LITELLM = "litellm_in_flight_requests 1\nlitellm_proxy_total_requests_metric_total"


@pytest.mark.parametrize(
    ("page", "failed", "rejected", "judged"),
    [
        (f'{LITELLM}{{status_code="200"}} 9\n', 0, 0, 9),
        (f'{LITELLM}{{status_code="503"}} 9\n', 9, 0, 9),
        (f'{LITELLM}{{status_code="401"}} 9\n', 0, 0, 0),
        (f'{LITELLM}{{status_code="500"}} NaN\n', None, 0, None),
        (f"{LITELLM} 9\n", None, None, None),
        ("litellm_in_flight_requests 1\n", None, None, None),
    ],
    ids=("only good ones", "only failures", "only users' own", "no number", "no status", "no requests yet"),
)
def test_no_failure_is_only_stated_where_a_page_counts_them(
    page: str, failed: float | None, rejected: float | None, judged: float | None
) -> None:
    """A status that has not occurred has no series: it is 0 where the page tells the status of others, else unknown."""
    signals = signals_of(page)
    read_values = signals.requests_failed_total, signals.requests_rejected_total, signals.requests_judged_total
    assert read_values == (failed, rejected, judged)


def test_the_flags_of_tensorrt_llm_are_those_of_its_info_series() -> None:
    """Names of the model are no flags: a renamed one has its own change."""
    flags = signals_of((MORE / "trtllm_2026.prom").read_text()).info.flags
    assert flags.keys() >= {"dtype", "quantization", "tensor_parallel_size", "enable_block_reuse", "cache_dtype"}
    assert flags["quantization"] == "FP8"
    assert not flags.keys() & {"model", "served_model_name", "engine_type", "gpu_count"}


SERVER_INFO = {  # of SGLang 0.5.23, shortened
    "model_path": "m", "host": "10.0.0.7", "port": 30000, "nccl_port": 28401, "random_seed": 118834905, "api_key": "sk-secret",
    "dist_init_addr": "10.0.0.7:28400", "startup_time": 41.7, "launch_command": "sglang serve --api-key sk-secret", "tp_size": 2,
    "quantization": None, "kv_cache_dtype": "auto", "disable_radix_cache": False, "chunked_prefill_size": 8192,
}  # fmt: skip


def test_a_changed_flag_of_sglang_is_seen_and_what_every_start_changes_is_not() -> None:
    """`auto`, null and false are values of a flag; ports, seeds, hosts, keys and the time of the start are none."""
    (sglang,) = tables("sglang")

    def settings(**changed: object) -> dict[str, str]:
        read_facts = facts(sglang.facts, {"/server_info": SERVER_INFO | changed})
        return {
            fact.name: read_facts[fact.name].value
            for fact in sglang.facts
            if fact.is_setting and fact.name in read_facts
        }

    before = settings()
    assert before["kv_cache_dtype"] == "auto"
    assert before["quantization"] == "none"
    assert before["disable_radix_cache"] == "False"
    assert not any("secret" in value or "10.0.0.7" in value for value in before.values())
    again = settings(host="10.0.0.9", port=30001, nccl_port=1, random_seed=7, api_key="sk-other", startup_time=39.0)
    assert again == before
    for changed in (
        {"quantization": "fp8"},
        {"disable_radix_cache": True},
        {"kv_cache_dtype": "fp8_e5m2"},
        {"tp_size": 4},
    ):
        assert settings(**changed) != before


def test_an_older_release_that_counts_no_errors_has_no_failures() -> None:
    """TensorRT-LLM 1.2 counts finished requests, but no errors: 0 would be a statement that it cannot make."""
    old = 'trtllm_request_success_total{finished_reason="length"} 2\ntrtllm_kv_cache_hit_rate 0.5\n'
    assert signals_of(old).requests_failed_total is None
    assert signals_of(old).requests_judged_total is None
    assert signals_of(old + "trtllm_prompt_cached_tokens_total 0\n").requests_failed_total == 0


def test_an_engine_sleeps_where_none_of_its_ranks_is_awake() -> None:
    """One that is awake answers."""
    text = 'vllm:num_requests_running{engine="0"} 0\n'
    for rank, awake in (("0", 1), ("1", 0)):
        text += f'vllm:engine_sleep_state{{engine="{rank}",sleep_state="awake"}} {awake}\n'
        text += f'vllm:engine_sleep_state{{engine="{rank}",sleep_state="weights_offloaded"}} {1 - awake}\n'
    assert signals_of(text).sleeping == 0
    assert signals_of(text.replace('"awake"} 1', '"awake"} 0')).sleeping == 1
    assert signals_of(text.partition("vllm:engine_sleep_state")[0]).sleeping is None


def test_deferred_requests_are_not_queued_for_capacity() -> None:
    """They wait for an adapter or a transfer; a page that does not tell them apart queues all."""
    signals = EngineSignals(EngineInfo("vllm"), requests_waiting=5, requests_deferred=2)
    assert signals.requests_queued == 3
    assert replace(signals, requests_deferred=None).requests_queued == 5
    assert replace(signals, requests_deferred=9).requests_queued == 0
    assert replace(signals, requests_waiting=None).requests_queued is None


def test_engines_without_a_page() -> None:
    """Ollama, TabbyAPI and transformers serve have no path, no signals, and a note for the log."""
    without = {table.engine for table in TABLES if not table.paths}
    assert without == {"ollama", "tabbyapi", "transformers"}
    for engine in without:
        (table,) = tables(engine)
        assert table.note
        assert not table.signals
        assert table.shape is None


def test_every_engine_with_a_dialect_has_a_table() -> None:
    """Except plain OpenAI."""
    assert {name for name in DIALECTS if not tables(name)} == {"openai"}


def test_a_page_of_another_program_is_not_recognised() -> None:
    """Such as a Python process or a GPU exporter."""
    page = Parser().parse(b'process_start_time_seconds 1.7e9\nDCGM_FI_DEV_GPU_UTIL{gpu="0"} 3\n')
    assert recognise(page, TABLES) is None


def test_facts_come_from_the_first_response_that_has_them() -> None:
    """Version, context and capacity from JSON; responses of another form give no facts."""
    (sglang,) = tables("sglang")
    answers = {
        "/get_server_info": {"version": "0.5.2"},
        "/server_info": {"version": "0.5.23", "max_total_num_tokens": 4096, "context_length": None},
        "/v1/models": {"data": [{"id": "tiny", "max_model_len": 2048}]},
    }
    found = {name: fact.value for name, fact in facts(sglang.facts, answers).items()}
    assert found == {"version": "0.5.23", "context_tokens": "2048", "capacity_tokens": "4096"}
    assert facts(sglang.facts, {"/server_info": ["no object"], "/v1/models": {"data": []}}) == {}


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("0.32.0", (0, 32, 0)),
        ("v3.3.7", (3, 3, 7)),
        ("0.8.5.post1", (0, 8, 5)),
        ("1.2.0rc3", (1, 2, 0)),
        ("b10488-0c1e570", (10488,)),
        ("0.1.dev1+g1a2b3c4", None),
        ("nightly", None),
        (None, None),
    ],
)
def test_releases_are_compared_by_their_numbers(text: str | None, release: tuple[int, ...] | None) -> None:
    """A build without a number is an unknown release, not an old one."""
    assert release_of(text) == release

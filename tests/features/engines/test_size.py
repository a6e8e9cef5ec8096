"""Changes of an engine's size, by readings of vLLM's captured page: two data-parallel ranks that have served requests."""

import re
from pathlib import Path

import pytest

from prober.exposition.parse import Parser
from prober.features.engines.continuity import Continuity, EngineIdentity
from prober.features.engines.page_reading import read_signals, recognise
from prober.measure.engine_signals import EngineChange, SteadySize, size_change
from prober.measure.engines import TABLES
from tests.features.engines.test_monitor import NO_PAGE, Gateway

PAGE = (Path(__file__).parents[2] / "pages/vllm_0.32.0_dp2_multi_api.prom").read_text()
OF_A_RANK = int(re.findall(r'kv_cache_size_tokens="(\d+)"', PAGE)[0])
WHOLE = f"2 ranks, {2 * OF_A_RANK:,} tokens of KV cache"


def sized(share: float) -> str:
    """The page of the same engine with this share of its KV cache."""
    return PAGE.replace(f'kv_cache_size_tokens="{OF_A_RANK}"', f'kv_cache_size_tokens="{round(share * OF_A_RANK)}"')


def without_a_rank(page: str = PAGE) -> str:
    return "\n".join(line for line in page.splitlines() if 'engine="1"' not in line) + "\n"


def unsized(page: str = PAGE) -> str:
    """As some write it before the cache is allocated."""
    return re.sub(r'(kv_cache_size_tokens|num_gpu_blocks)="\d+"', r'\1="None"', page)


def restarted(page: str = PAGE) -> str:
    """All counters are as after a start."""
    return re.sub(r"^(vllm:\w+_(?:total|bucket|sum|count)\{.*\}) \S+$", r"\1 0.0", page, flags=re.MULTILINE)


def heard(*pages: str | None, continuity: Continuity | None = None) -> list[str]:
    """What is said of the engine at successive readings. None: the page cannot be read for a minute"""
    continuity, said = continuity or Continuity(), list[str]()
    for text in pages:
        if text is None:
            continuity.gap()
            continue
        page = Parser().parse(text.encode())
        table = recognise(page, TABLES)
        assert table is not None
        reading = continuity.take(read_signals(page, table, version="0.32.0").signals)
        said += ["restart"] * reading.restarted + [change.text() for change in reading.changes]
    return said


HALF = [f"size was {2 * OF_A_RANK:,} tokens of KV cache, is {OF_A_RANK:,} tokens of KV cache"]
ONE_RANK = [f"size was {WHOLE}, is 1 rank, {OF_A_RANK:,} tokens of KV cache"]
STORIES: dict[str, tuple[list[str | None], list[str]]] = {
    "half of the cache after a restart": ([PAGE, PAGE, *[restarted(sized(0.5))] * 4], ["restart", *HALF]),
    "half of the cache without a visible restart": ([PAGE, *[sized(0.5)] * 4], HALF),
    "a rank leaves for good": ([PAGE, *[without_a_rank()] * 4], ONE_RANK),
    "it returns": (
        [PAGE, *[without_a_rank()] * 4, *[PAGE] * 4],
        [*ONE_RANK, f"size was 1 rank, {OF_A_RANK:,} tokens of KV cache, is {WHOLE}"],
    ),
    "the page is away while the engine is replaced": ([PAGE, None, *[restarted(sized(0.5))] * 4], ["restart", *HALF]),
    "the size comes late, and is another one": (
        [PAGE, *[restarted(unsized())] * 5, *[restarted(sized(0.5))] * 3],
        ["restart", *HALF],
    ),
    "step by step, each of less than 5%": (
        [PAGE, *[sized(0.97)] * 3, *[sized(0.94)] * 3],
        [f"size was {2 * OF_A_RANK:,} tokens of KV cache, is {2 * round(0.94 * OF_A_RANK):,} tokens of KV cache"],
    ),
    # beside them, what is no change of the size
    "a restart with the same size": ([PAGE, PAGE, *[restarted()] * 4], ["restart"]),
    "a restart with 2% less of the cache, as profiled": ([PAGE, PAGE, *[restarted(sized(0.98))] * 4], ["restart"]),
    "a rank is missing in one reading": ([PAGE, without_a_rank(), PAGE, PAGE, without_a_rank(), PAGE], []),
    "the page is away for a minute": ([PAGE, None, PAGE, PAGE], []),
    "the size is missing in the first readings after a start": (
        [PAGE, *[restarted(unsized())] * 5, *[restarted()] * 3],
        ["restart"],
    ),
    "the size was never there before": ([*[unsized()] * 3, *[PAGE] * 3], []),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_change_of_the_size_is_told_once_and_nothing_else_is_one(name: str) -> None:
    """By more than 5% of what it was, in two readings in a row."""
    pages, said = STORIES[name]
    assert heard(*pages) == said


def test_readings_that_differ_from_each_other_confirm_no_size() -> None:
    """While several pods start, each reading may show another number."""
    steady = SteadySize({"ranks": 8.0})
    changes = [steady.take({"ranks": ranks}) for ranks in (3.0, 4.0, 5.0, 6.0, 6.0, 6.0)]
    assert changes == [None, None, None, None, EngineChange("size", "8 ranks", "6 ranks"), None]


def test_a_change_while_the_prober_was_away_is_told_at_its_start() -> None:
    """The size is saved with the other facts of the engine."""
    size = {"ranks": 2.0, "tokens of KV cache": 2.0 * OF_A_RANK}
    assert heard(*[sized(0.5)] * 3, continuity=Continuity(EngineIdentity({}, size))) == HALF
    assert heard(*[PAGE] * 3, continuity=Continuity(EngineIdentity({}, size))) == []


@pytest.mark.parametrize(("now", "changed"), [(95.0, False), (94.9, True), (105.0, False), (105.1, True)])
def test_one_definition_says_whether_a_size_differs(now: float, changed: bool) -> None:
    """By more than 5% of what it was; a name that only one has is no difference."""
    assert (size_change({"slots": 100.0, "ranks": 2.0}, {"slots": now}) is not None) is changed


def test_pods_that_come_and_go_all_day_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each change is an event; the log has a few an hour, and those of other kinds."""
    gateway = Gateway()
    target = gateway.target(spec=NO_PAGE)

    def logged() -> int:
        return sum("size was" in record.message for record in caplog.records)

    with caplog.at_level("INFO"):
        for hour in range(3):
            for minute in range(60):
                target.engine_changed(EngineChange("size", f"{minute} ranks", f"{minute + 1} ranks"))
                target.target.clock.ns += 60 * 10**9  # type: ignore[attr-defined]
            assert logged() <= 3 * (hour + 1) + 1
        assert len(gateway.texts()) == 180
        target.engine_changed(EngineChange("version", "1", "2"))
    assert any("version was 1" in record.message for record in caplog.records)


def test_a_rank_reads_its_own_series() -> None:
    """Both ranks of the captured page together, and each alone; no rank of that number: nothing."""
    page = Parser().parse(PAGE.encode())
    table = recognise(page, TABLES)
    assert table is not None
    read = [read_signals(page, table, version="0.32.0", rank=rank).signals for rank in (None, "0", "1", "7")]
    assert [signals.finished_length_total for signals in read] == [9.0, 5.0, 4.0, None]
    assert [signals.kv_cache_capacity_tokens for signals in read] == [2 * OF_A_RANK, OF_A_RANK, OF_A_RANK, None]
    assert [signals.ranks for signals in read] == [2, 1, 1, None]


def test_failures_of_the_whole_server_are_no_ranks_own() -> None:
    """The HTTP server and its queue limit count without a rank: the failures of a dead rank are not those of its neighbour."""
    own = 'vllm:request_success_total{engine="%d",finished_reason="error",model_name="tiny"} %d\n'
    http = 'http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 7\n'
    page = Parser().parse((PAGE + own % (0, 0) + own % (1, 5) + http).encode())
    table = recognise(page, TABLES)
    assert table is not None
    read = [read_signals(page, table, version="0.32.0", rank=rank).signals for rank in (None, "0", "1")]
    assert [signals.http_errors_total for signals in read] == [7.0, None, None]
    assert [signals.requests_rejected_total for signals in read] == [0.0, None, None]
    assert [signals.requests_failed_total for signals in read] == [5.0, 0.0, 5.0]

"""Signals from samples."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from prober.exposition.parse import Page, Sample
from prober.features.engines.page_reading import read_signals as read
from prober.features.engines.page_reading import recognise, release_of
from prober.measure.engine_signals import (
    Aggregation,
    AnySource,
    Computed,
    EngineHistogram,
    EngineTable,
    PageShape,
    Source,
)


def sample(value: float, labels: Mapping[str, str] = MappingProxyType({})) -> Sample:
    return Sample(labels, value)


def page(**samples: list[Sample] | float) -> Page:
    return Page({name: values if isinstance(values, list) else [sample(values)] for name, values in samples.items()})


def table(*sources: AnySource, signal: str = "requests_waiting", **more: Any) -> EngineTable:
    return EngineTable(engine="x", signals={signal: sources}, **more)


def waiting(samples: Page, *sources: AnySource, **more: Any) -> float | None:
    return read(samples, table(*sources, **more)).signals.requests_waiting


RANKS = [sample(1.0, {"rank": "0"}), sample(3.0, {"rank": "1"}), sample(float("nan"), {"rank": "2"})]


@pytest.mark.parametrize(
    ("over", "value"),
    [(Aggregation.SUM, 4.0), (Aggregation.MAX, 3.0), (Aggregation.MEAN, 2.0), (Aggregation.FIRST, 1.0)],
)
def test_ranks_are_aggregated(over: Aggregation, value: float) -> None:
    """By each kind of aggregation; NaN of a rank is ignored."""
    assert waiting(page(a=RANKS), Source("a", over)) == value
    assert waiting(page(a=[sample(float("inf"))]), Source("a", over)) is None


def test_labels_select_series() -> None:
    """Series without the label, as in older releases, are selected too."""
    split = page(a=[sample(1.0, {"reason": "capacity"}), sample(5.0, {"reason": "deferred"})])
    assert waiting(split, Source("a", where={"reason": ("capacity",)})) == 1.0
    assert waiting(page(a=7.0), Source("a", where={"reason": ("capacity",)})) == 7.0
    assert waiting(split, Source("a", where={"reason": ("other",)})) is None


def test_an_absent_value_is_none() -> None:
    """Never 0, for every kind of source."""
    a, b = Source("a"), Source("b")
    only_a, only_b = page(a=2.0), page(b=0.0)
    assert waiting(only_b, a) is None
    total, product, ratio = (Computed("sum", (a, b)), Computed("product", (a, b)), Computed("ratio", (a, b)))
    assert (waiting(only_a, total), waiting(only_b, total)) == (2.0, None)
    assert (waiting(only_a, product), waiting(page(a=2.0, b=3.0), product)) == (None, 6.0)
    assert (waiting(only_a, ratio), waiting(page(a=2.0, b=0.0), ratio)) == (None, None)
    assert waiting(page(a=2.0, b=8.0), ratio) == 0.25
    assert waiting(page(a=[]), a) is None


def test_scale_and_offset() -> None:
    """A scale converts the unit; an offset excludes the scrape itself; no value is below 0."""
    assert waiting(page(a=1500.0), Source("a", scale=0.001)) == 1.5
    assert waiting(page(a=1.0), Source("a", offset=-1.0)) == 0.0
    assert waiting(page(a=0.0), Source("a", offset=-1.0)) == 0.0


@pytest.mark.parametrize(
    ("labels", "value"),
    [
        ({"blocks": "10", "size": "16"}, 320.0),
        ({"blocks": "None", "size": "16"}, None),
        ({"size": "16"}, None),
        ({"blocks": "inf", "size": "16"}, None),
    ],
)
def test_numbers_in_labels(labels: dict[str, str], value: float | None) -> None:
    """Capacities of two ranks are added; text that is not a number gives no value."""
    info = page(info=[sample(1.0, {**labels, "engine": str(rank)}) for rank in range(2)])
    assert waiting(info, Source("info", labels=("blocks", "size"))) == value


def test_duplicate_series_count_once() -> None:
    """Tensor-parallel ranks report the same scheduler and count once, in any order; data-parallel ranks count each."""
    series = [
        sample(5.0, {"tp": "10", "dp": "0"}),
        sample(4.0, {"tp": "2", "dp": "0"}),
        sample(7.0, {"tp": "11", "dp": "1"}),
    ]
    assert waiting(page(a=series), Source("a"), duplicate_labels=("tp",)) == 11.0
    reading = read(page(a=series), table(Source("a"), signal="requests_running", duplicate_labels=("tp",)))
    assert reading.signals.ranks == 2


def test_histograms_of_ranks_are_added() -> None:
    """Bounds are sorted and common to all ranks, counts are monotonic, the unit is seconds; without a total there is no histogram."""

    def bucket(le: str, value: float, rank: str) -> Sample:
        return sample(value, {"le": le, "rank": rank})

    both = [bucket("+Inf", 9, "0"), bucket("100", 2, "0"), bucket("500", 1, "0")]
    both += [bucket("100", 1, "1"), bucket("500.0", 4, "1"), bucket("+Inf", 4, "1"), bucket("200", 3, "1")]
    both += [sample(1.0, {"le": "x"}), sample(1.0, {})]
    reading = read(
        Page({"h_bucket": both, "h_sum": [sample(3000.0)]}), table(Source("h", scale=0.001), signal="ttft_seconds")
    )
    assert reading.signals.ttft_seconds == EngineHistogram((0.1, 0.5), (3.0, 5.0, 13.0), 3.0)
    without = Page({"h_bucket": [bucket("100", 1, "0")], "h_sum": [sample(1.0)]})
    assert read(without, table(Source("h"), signal="ttft_seconds")).signals.ttft_seconds is None


RENAMED = (Source("new", since="2.0"), Source("old", until="3.0"))


@pytest.mark.parametrize(
    ("version", "missed"),
    [
        ("1.9", ("old",)),
        ("2.0", ("new", "old")),
        ("2.5.1", ("new", "old")),
        ("3.0.0", ("new",)),
        (None, ("new", "old")),
        ("nightly", ("new", "old")),
    ],
)
def test_signals_that_a_release_should_have_are_missing_by_name(version: str | None, missed: tuple[str, ...]) -> None:
    """Names are those of the release; nothing is missing if one of them is present."""
    reading = read(page(other=1.0), table(*RENAMED), version=version)
    assert [missing.names for missing in reading.missing] == [missed]
    assert reading.missing[0].signal == "requests_waiting"
    assert read(page(old=1.0), table(*RENAMED), version=version).missing == ()


def test_optional_signals_are_not_missing() -> None:
    """Signals of later releases, optional ones, and, for an unknown release, those that not every release has."""
    later = table(Source("a", since="2.0"))
    assert read(page(), later, version="1.9").missing == ()
    assert read(page(), later).missing == ()
    assert len(read(page(), later, version="2.0").missing) == 1
    assert read(page(), table(Source("a", expected=False)), version="2.0").missing == ()


def test_a_lazy_engine_has_counters_after_its_first_request() -> None:
    """Counters and histograms are not missing before it; gauges are."""
    signals: dict[str, tuple[AnySource, ...]] = {
        "requests_running": (Source("running"),),
        "prompt_tokens_total": (Source("prompt"),),
        "requests_finished_total": (Source("finished"),),
        "ttft_seconds": (Source("ttft"),),
    }
    lazy = EngineTable(engine="x", signals=signals, lazy=True)
    assert [missing.signal for missing in read(page(), lazy).missing] == ["requests_running"]
    assert read(page(running=1.0, finished=0.0), lazy).missing == ()
    late = read(page(running=1.0, finished=2.0), lazy)
    assert [missing.signal for missing in late.missing] == ["prompt_tokens_total", "ttft_seconds"]


def test_the_release_selects_the_name() -> None:
    """If both names are present, that of the release is read; otherwise the one that is present."""
    both = page(new=1.0, old=2.0)
    assert read(both, table(*RENAMED), version="1.0").signals.requests_waiting == 2.0
    assert read(both, table(*RENAMED), version="2.0").signals.requests_waiting == 1.0
    assert read(page(old=2.0), table(*RENAMED), version="4.0").signals.requests_waiting == 2.0


def test_series_of_other_models_are_left_out() -> None:
    """If the page has the model, ignoring case; otherwise all series count."""
    series = page(
        a=[sample(1.0, {"model": "org/tiny"}), sample(2.0, {"model": "other"}), sample(4.0)],
        b=[sample(8.0, {"model": "x"})],
    )
    models = table(Source("a"), model_labels=("model",))
    assert read(series, models, model="Org/Tiny").signals.requests_waiting == 5.0
    assert read(series, models, model="alias").signals.requests_waiting == 7.0
    assert read(series, models, model="alias").signals.info.model == "alias"
    assert read(page(a=[sample(1.0, {"model": "tiny"})]), models).signals.info.model == "tiny"
    assert read(page(a=[sample(1.0, {"model": "undefined"})]), models).signals.info.model is None


def test_different_flags_of_ranks_are_joined() -> None:
    """Only labels that are settings."""
    info = page(info=[sample(1.0, {"block": "16", "n": "1"}), sample(1.0, {"block": "32", "n": "2"})])
    reading = read(info, table(Source("a"), flags=(("info", ("block", "absent")),)))
    assert reading.signals.info.flags == {"block": "16|32"}


def test_the_start_time_may_come_from_a_header() -> None:
    """That of the page takes precedence."""
    start = table(Source("start"), signal="start_time_seconds")
    assert read(page(), start, start_time_seconds=5.0).signals.start_time_seconds == 5.0
    assert read(page(start=6.0), start, start_time_seconds=5.0).signals.start_time_seconds == 6.0


def test_pages_are_recognised_by_prefix_label_or_names() -> None:
    """The first table that fits is used; the end of OpenMetrics can separate two."""

    def shaped(engine: str, **shape: Any) -> EngineTable:
        return EngineTable(engine=engine, shape=PageShape(**shape))

    tables = (
        shaped("open", prefixes=("v:",), openmetrics=True),
        shaped("ranked", prefixes=("v:",), with_label="engine"),
        shaped("plain", prefixes=("v:",), without_label="engine"),
        shaped("named", names=("x", "y")),
        EngineTable(engine="nothing"),
    )

    def engine(lines: Page) -> str | None:
        table = recognise(lines, tables)
        return table.engine if table else None

    ranked = {"v:info": [sample(1.0)], "v:a": [sample(1.0, {"engine": "0"})]}
    assert engine(Page(ranked)) == "ranked"
    assert engine(Page(ranked, eof=True)) == "open"
    assert engine(Page({"v:a": [sample(1.0)]})) == "plain"
    assert engine(page(x=1.0, y=1.0)) == "named"
    assert engine(page(x=1.0)) is None


@pytest.mark.parametrize("digits", ["9" * 5_000, "٣"])
def test_a_number_that_is_too_long_or_not_ascii_is_no_release_and_no_rank(digits: str) -> None:
    """int() refuses the first and accepts the second; neither may end the reading of a page."""
    assert release_of(f"v{digits}.1") is None
    series = [sample(5.0, {"tp": digits}), sample(5.0, {"tp": "0"})]
    assert waiting(page(a=series), Source("a"), duplicate_labels=("tp",)) == 5.0

"""Signals from samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from prober.features.engines.page_reading import in_slices, read, recognise, release_of
from prober.measure.engine_signals import (
    Aggregation,
    EngineHistogram,
    EngineTable,
    HistogramSource,
    LabelProductSource,
    PageShape,
    ProductSource,
    RatioSource,
    SampleSource,
    Source,
    SumSource,
)


@dataclass
class One:
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Lines:
    samples: dict[str, list[One]]
    eof: bool = False


def page(**samples: list[One] | float) -> Lines:
    return Lines({name: found if isinstance(found, list) else [One(found)] for name, found in samples.items()})


def table(*sources: Source, signal: str = "requests_waiting", **more: Any) -> EngineTable:
    return EngineTable(engine="x", signals={signal: sources}, **more)


def waiting(samples: Lines, *sources: Source, **more: Any) -> float | None:
    return read(samples, table(*sources, **more)).signals.requests_waiting


RANKS = [One(1.0, {"rank": "0"}), One(3.0, {"rank": "1"}), One(float("nan"), {"rank": "2"})]


@pytest.mark.parametrize(
    ("over", "value"),
    [(Aggregation.SUM, 4.0), (Aggregation.MAX, 3.0), (Aggregation.MEAN, 2.0), (Aggregation.FIRST, 1.0)],
)
def test_ranks_become_one_value(over: Aggregation, value: float) -> None:
    """Each way of taking ranks together; a rank that says NaN says nothing."""
    assert waiting(page(a=RANKS), SampleSource("a", over)) == value
    assert waiting(page(a=[One(float("inf"))]), SampleSource("a", over)) is None


def test_labels_choose_series_and_a_series_without_the_label_passes() -> None:
    """A label that older releases do not have keeps nobody out."""
    split = page(a=[One(1.0, {"reason": "capacity"}), One(5.0, {"reason": "deferred"})])
    assert waiting(split, SampleSource("a", where={"reason": ("capacity",)})) == 1.0
    assert waiting(page(a=7.0), SampleSource("a", where={"reason": ("capacity",)})) == 7.0
    assert waiting(split, SampleSource("a", where={"reason": ("other",)})) is None


def test_absent_is_none_and_never_zero() -> None:
    """No expression makes up a value for what the page does not say."""
    a, b = SampleSource("a"), SampleSource("b")
    only_a, only_b = page(a=2.0), page(b=0.0)
    assert waiting(only_b, a) is None
    assert (waiting(only_a, SumSource(a, (b,))), waiting(only_b, SumSource(a, (b,)))) == (2.0, None)
    assert (waiting(only_a, ProductSource((a, b))), waiting(page(a=2.0, b=3.0), ProductSource((a, b)))) == (None, 6.0)
    assert (waiting(only_a, RatioSource(a, b)), waiting(page(a=2.0, b=0.0), RatioSource(a, b))) == (None, None)
    assert waiting(page(a=2.0, b=8.0), RatioSource(a, b)) == 0.25
    assert waiting(page(a=[]), a) is None


def test_units_and_what_counts_itself() -> None:
    """A scale turns the page's unit into ours; an offset takes out the scrape itself, and nothing is below 0."""
    assert waiting(page(a=1500.0), SampleSource("a", scale=0.001)) == 1.5
    assert waiting(page(a=1.0), SampleSource("a", offset=-1.0)) == 0.0
    assert waiting(page(a=0.0), SampleSource("a", offset=-1.0)) == 0.0


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
    """Two ranks' capacities are added; what is no number is not guessed."""
    info = page(info=[One(1.0, {**labels, "engine": str(rank)}) for rank in range(2)])
    assert waiting(info, LabelProductSource("info", ("blocks", "size"))) == value


def test_series_that_say_the_same_count_once() -> None:
    """Tensor-parallel ranks that report the same scheduler are one, whatever order they come in; data-parallel ones are two."""
    series = [
        One(5.0, {"tp": "10", "dp": "0"}),
        One(4.0, {"tp": "2", "dp": "0"}),
        One(7.0, {"tp": "11", "dp": "1"}),
    ]
    assert waiting(page(a=series), SampleSource("a"), duplicate_labels=("tp",)) == 11.0
    reading = read(page(a=series), table(SampleSource("a"), signal="requests_running", duplicate_labels=("tp",)))
    assert reading.signals.ranks == 2


def test_histograms_of_ranks_are_added() -> None:
    """Bounds sorted, only those that all have, counts never falling, unit turned into seconds; no total, no histogram."""

    def bucket(le: str, value: float, rank: str) -> One:
        return One(value, {"le": le, "rank": rank})

    both = [bucket("+Inf", 9, "0"), bucket("100", 2, "0"), bucket("500", 1, "0")]
    both += [bucket("100", 1, "1"), bucket("500.0", 4, "1"), bucket("+Inf", 4, "1"), bucket("200", 3, "1")]
    both += [One(1.0, {"le": "x"}), One(1.0, {})]
    found = read(
        Lines({"h_bucket": both, "h_sum": [One(3000.0)]}),
        table(HistogramSource("h", scale=0.001), signal="ttft_seconds"),
    )
    assert found.signals.ttft_seconds == EngineHistogram((0.1, 0.5), (3.0, 5.0, 13.0), 3.0)
    without = Lines({"h_bucket": [bucket("100", 1, "0")], "h_sum": [One(1.0)]})
    assert read(without, table(HistogramSource("h"), signal="ttft_seconds")).signals.ttft_seconds is None


RENAMED = (SampleSource("new", since="2.0"), SampleSource("old", until="3.0"))


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
def test_what_a_release_should_have_is_missed_by_name(version: str | None, missed: tuple[str, ...]) -> None:
    """Only names of that release; and nothing is missed if one of them is there."""
    reading = read(page(other=1.0), table(*RENAMED), version=version)
    assert [missing.names for missing in reading.missing] == [missed]
    assert reading.missing[0].signal == "requests_waiting"
    assert read(page(old=1.0), table(*RENAMED), version=version).missing == ()


def test_what_need_not_be_there_is_not_missed() -> None:
    """Signals of later releases, those behind a switch, and, of an unknown release, those that not every release has."""
    later = table(SampleSource("a", since="2.0"))
    assert read(page(), later, version="1.9").missing == ()
    assert read(page(), later).missing == ()
    assert len(read(page(), later, version="2.0").missing) == 1
    assert read(page(), table(SampleSource("a", expected=False)), version="2.0").missing == ()


def test_a_lazy_engine_lacks_counters_only_once_it_has_worked() -> None:
    """Counters and histograms that come with the first request are not missed before it; gauges always are."""
    signals: dict[str, tuple[Source, ...]] = {
        "requests_running": (SampleSource("running"),),
        "prompt_tokens_total": (SampleSource("prompt"),),
        "requests_finished_total": (SampleSource("finished"),),
        "ttft_seconds": (HistogramSource("ttft"),),
    }
    lazy = EngineTable(engine="x", signals=signals, lazy=True)
    assert [missing.signal for missing in read(page(), lazy).missing] == ["requests_running"]
    assert read(page(running=1.0, finished=0.0), lazy).missing == ()
    late = read(page(running=1.0, finished=2.0), lazy)
    assert [missing.signal for missing in late.missing] == ["prompt_tokens_total", "ttft_seconds"]


def test_the_release_decides_between_names_and_a_build_may_differ() -> None:
    """Where both names are present the release's own is read; the other one if only that is there."""
    both = page(new=1.0, old=2.0)
    assert read(both, table(*RENAMED), version="1.0").signals.requests_waiting == 2.0
    assert read(both, table(*RENAMED), version="2.0").signals.requests_waiting == 1.0
    assert read(page(old=2.0), table(*RENAMED), version="4.0").signals.requests_waiting == 2.0


def test_only_the_target_s_model_counts() -> None:
    """Series of other models are left out if the page knows the model, in whatever case; else all count."""
    series = page(
        a=[One(1.0, {"model": "org/tiny"}), One(2.0, {"model": "other"}), One(4.0)], b=[One(8.0, {"model": "x"})]
    )
    models = table(SampleSource("a"), model_labels=("model",))
    assert read(series, models, model="Org/Tiny").signals.requests_waiting == 5.0
    assert read(series, models, model="alias").signals.requests_waiting == 7.0
    assert read(series, models, model="alias").signals.info.model == "alias"
    assert read(page(a=[One(1.0, {"model": "tiny"})]), models).signals.info.model == "tiny"
    assert read(page(a=[One(1.0, {"model": "undefined"})]), models).signals.info.model is None


def test_flags_of_ranks_that_differ_are_shown_together() -> None:
    """Only the labels that are settings."""
    info = page(info=[One(1.0, {"block": "16", "n": "1"}), One(1.0, {"block": "32", "n": "2"})])
    reading = read(info, table(SampleSource("a"), flags=(("info", ("block", "absent")),)))
    assert reading.signals.info.flags == {"block": "16|32"}


def test_the_start_time_may_come_from_a_header() -> None:
    """The page's own is preferred."""
    start = table(SampleSource("start"), signal="start_time_seconds")
    assert read(page(), start, start_time_seconds=5.0).signals.start_time_seconds == 5.0
    assert read(page(start=6.0), start, start_time_seconds=5.0).signals.start_time_seconds == 6.0


def test_reading_can_be_interrupted() -> None:
    """A slice a signal, and the same reading."""
    many = EngineTable(
        engine="x", signals={"requests_running": (SampleSource("a"),), "requests_waiting": (SampleSource("b"),)}
    )
    slices = in_slices(page(a=1.0, b=2.0), many)
    assert [next(slices), next(slices)] == [None, None]
    with pytest.raises(StopIteration) as stop:
        next(slices)
    assert stop.value.value == read(page(a=1.0, b=2.0), many)


def test_a_shape_is_a_prefix_with_or_without_a_label_or_a_set_of_names() -> None:
    """The first table that fits wins; OpenMetrics' end can tell two apart."""

    def shaped(engine: str, **shape: Any) -> EngineTable:
        return EngineTable(engine=engine, shape=PageShape(**shape))

    tables = (
        shaped("open", prefixes=("v:",), openmetrics=True),
        shaped("ranked", prefixes=("v:",), with_label="engine"),
        shaped("plain", prefixes=("v:",), without_label="engine"),
        shaped("named", names=("x", "y")),
        EngineTable(engine="nothing"),
    )

    def engine(lines: Lines) -> str | None:
        found = recognise(lines, tables)
        return found.engine if found else None

    ranked = {"v:info": [One(1.0)], "v:a": [One(1.0, {"engine": "0"})]}
    assert engine(Lines(ranked)) == "ranked"
    assert engine(Lines(ranked, eof=True)) == "open"
    assert engine(Lines({"v:a": [One(1.0)]})) == "plain"
    assert engine(page(x=1.0, y=1.0)) == "named"
    assert engine(page(x=1.0)) is None


@pytest.mark.parametrize("digits", ["9" * 5_000, "٣"])
def test_a_number_that_is_too_long_or_not_ascii_is_no_release_and_no_rank(digits: str) -> None:
    """int() refuses the first and accepts the second; neither may end the reading of a page."""
    assert release_of(f"v{digits}.1") is None
    series = [One(5.0, {"tp": digits}), One(5.0, {"tp": "0"})]
    assert waiting(page(a=series), SampleSource("a"), duplicate_labels=("tp",)) == 5.0

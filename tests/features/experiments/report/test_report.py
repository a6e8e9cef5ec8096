"""The report: what it says, what it never claims, and that its HTML needs nothing from elsewhere."""

import csv
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import pytest

from prober.features.experiments.report import csv_export, plots
from prober.features.experiments.report.report import html, markdown
from prober.results.adapters import AdapterUse
from prober.results.capacity import Capacity
from prober.results.disturbance import Contrast, Disturbance, Ratio, Recovery
from prober.results.result import Load, MeasuredTarget, RequestRow, Result, Stage
from prober.results.stage import stage_of_requests
from prober.results.stage_parts import Reasoning, Series
from prober.statistics.quantiles import Quantile
from tests.processes import HANG_S
from tests.results.samples import requests, sweep
from tests.scripted import Asked, Script, threaded
from tests.wire.heads import body

BARE = Result("bare", "run", 0.0, 0.0, "tool", MeasuredTarget(), Load(), ())
MOMENTS = ("mean", "std. deviation")
FIGURES = [
    *("TTFT over load", "TPOT over load", "ITL over load", "E2E over load"),
    *("Throughput against TTFT", "Throughput against TPOT"),
    *("Distribution of TTFT", "Distribution of ITL", "Stages over time"),
]


def section(text: str, title: str) -> str:
    """A section of a Markdown report."""
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def row(text: str, *begins: str) -> list[str]:
    """The cells of the table row that begins so."""
    for line in filter(lambda line: line.startswith("|"), text.splitlines()):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[: len(begins)] == list(begins):
            return cells
    raise AssertionError(f"no row {begins} in\n{text}")


def test_the_verdict_is_first() -> None:
    """Decision, capacities with intervals, which SLO gives way, why it ended; the contract by stage among the raw figures."""
    text = markdown([sweep()])
    found = section(text, "Verdict")
    assert text.index("## Verdict") < text.index("## Target and load")
    answer = "ttft: estimated knee 12/s, 90% interval 10 to 13; tpot holds at 16.5/s; no knee was reached."
    assert f"Rollback: low. {answer} The SLO ttft gives way first, by the estimates. Why it ended: decided." in found
    assert row(found, "ttft")[1:6] == ["estimated", "10", "12", "13", "12"]
    assert row(found, "tpot")[1:4] == ["*not reached*", "16.5", "*unknown*"]
    found = section(text, "Bad events by stage")
    assert "| stage | ttft: 99% of ttft within 500 ms | tpot: 95% of tpot within 30 ms |" in found
    assert row(found, "16/s")[1:] == ["10% bad 12 of 120", "0% bad 0 of 108"]
    assert row(found, "1/s")[1:] == ["0% bad 0 of 120", "0% bad 0 of 120"]


def test_load_of_others_and_use_of_the_engine_by_stage() -> None:
    """What was there already, the engine's page, and unknown where a GPU was not read; failures by kind."""
    text = markdown([sweep()])
    throughput, use = section(text, "Throughput"), section(text, "Engine and GPUs")
    assert dict(zip(row(throughput, "stage"), row(throughput, "16/s"), strict=True))["there already /s"] == "0.5"
    assert row(section(text, "Outcomes"), "16/s") == ["16/s", "108 ok, 12 http_5xx", "10%"]
    values = dict(zip(row(use, "stage"), row(use, "4/s"), strict=True))
    assert (values["running"], values["KV cache, peak"], values["power, W"]) == ("8", "40%", "*unknown*")


def test_the_audit_is_the_results_own() -> None:
    """Done, not done and unknown come from the data."""
    found = section(markdown([sweep()]), "How it was measured")
    assert row(found, "open loop")[1] == "done poisson arrivals, whatever becomes of the requests"
    assert row(found, "tails")[1].startswith("**not done**")
    other = section(markdown([replace(sweep(), load=Load(arrivals="closed"))]), "How it was measured")
    assert row(other, "open loop")[1].startswith("**not done** closed")
    assert row(other, "realistic lengths")[1].startswith("*unknown*")


def test_what_nobody_knows_is_marked() -> None:
    """No field of the context is left out, none is made up; a result that knows nothing makes a report.

    What nobody knows stands in one line, not in a row for each.
    """
    found = section(markdown([sweep()]), "Context")
    assert row(found, "GPU")[1] == "NVIDIA L4"
    (missing,) = [line for line in found.splitlines() if line.startswith("Not known: ")]
    assert "CUDA" in missing
    assert "attention backend" in missing
    assert "*unknown*" not in found
    assert row(found, "interference")[1] == "none seen"
    bare = markdown([BARE])
    assert "There is no contract to judge it by" in bare
    assert row(section(bare, "Context"), "interference")[1] == "*unknown*"
    assert row(section(bare, "Target and load"), "started")[1] == "*unknown*"
    assert "done" not in section(bare, "How it was measured").replace("not done", "")
    assert "<svg" not in html([BARE])
    unread = replace(sweep(), stages=tuple(replace(each, use={}) for each in sweep().stages))
    assert section(markdown([unread]), "Engine and GPUs").startswith("\nUnknown where it is not shown")
    assert "Unknown where" not in markdown([sweep()])


def test_results_stand_side_by_side() -> None:
    """Named apart even if they are called alike; a colour each in one chart."""
    text = markdown([sweep(), sweep(seed=2)])
    assert row(section(text, "Target and load"), "") == ["", "sweep-1 (1)", "sweep-1 (2)"]
    assert row(section(text, "Latency"), "sweep-1 (2)", "4/s", "TTFT")[3] == "120"
    page = html([sweep("a"), sweep("b", seed=2)])
    curve = page[page.index("TTFT, p50 and p99</text></svg>") :].split("</figure>")[0]
    assert ">a</span>" in curve
    assert ">b</span>" in curve
    assert "Distribution of TTFT, a" in page
    assert "Distribution of TTFT, b" in page


def test_repeats_show_their_spread() -> None:
    """Stages of one rate, from the least to the most."""
    first = sweep()
    twice = replace(first, stages=(*first.stages, sweep(seed=5).stages[1]))
    found = row(section(markdown([twice]), "Repeats"), "4/s", "4")
    assert found[2:4] == ["2", "1"]
    assert " to " in found[4]
    assert "## Repeats" not in markdown([first])


def found_at(name: str, estimate: float | None, **changes: Any) -> Result:
    """A sweep that found, or did not reach, this capacity."""
    capacity = Capacity("ttft", "found", (estimate or 0) - 1, estimate, (estimate or 0) + 1)
    capacity = replace(capacity, alone_per_s=2 * (estimate or 0))
    other = Capacity("ttft", "not_reached", lower=16.0)
    return replace(sweep(name, seed=len(name)), capacities=(capacity if estimate else other,), **changes)


def test_runs_of_one_configuration_show_their_spread() -> None:
    """Median, least to most, and of how many: of the capacity, and of each rate."""
    text = markdown([found_at("a", 10.0), found_at("bb", 14.0), found_at("ccc", 11.0), found_at("dddd", None)])
    runs, rates = section(text, "Repeats").split("\n\n")[:2]
    assert row(runs, "ttft") == ["ttft", "4", "3", "11 10 to 14, ±17%", "22 20 to 28, ±17%", "not reached"]
    assert row(rates, "16/s", "16")[2:4] == ["4", "4"]
    assert "drawn apart" not in text


def test_runs_under_other_conditions_are_not_pooled_and_it_says_why() -> None:
    """Another engine version, another contract, other lengths, another model, or lengths that nobody knows."""
    one = found_at("a", 10.0)
    others = {
        "engine": replace(one.target, engine_version="0.33.0"),
        "model": replace(one.target, model="other"),
        "engine's flags": replace(one.target, flags={"tensor_parallel_size": "4"}),
    }
    for what, target in others.items():
        text = markdown([one, found_at("b", 20.0, target=target)])
        assert "## Repeats" not in text
        assert f"nothing is pooled over them, as they differ in {what}: a; b." in text
    changed: dict[str, dict[str, Any]] = {
        "prompt tokens": {"load": replace(one.load, prompt_tokens="fixed")},
        "SLOs": {"slos": (replace(one.slos[0], threshold_s=0.2), one.slos[1])},
        "precision": {"context": replace(one.context, precision="fp8")},
    }
    for what, changes in changed.items():
        text = markdown([one, found_at("b", 20.0, **changes)])
        assert "## Repeats" not in text
        assert f"as they differ in {what}: a; b." in text
    unknown: dict[str, Any] = {"load": replace(one.load, prompt_tokens=None)}
    text = markdown([found_at("a", 10.0, **unknown), found_at("b", 20.0, **unknown)])
    assert "## Repeats" not in text
    assert "a is pooled with no other result, as its prompt tokens are not known" in text


def test_events_of_other_slos_have_columns_of_their_own() -> None:
    """Results side by side with other contracts: no figure stands under the SLO of another one."""
    other = replace(sweep("b"), slos=(replace(sweep().slos[0], threshold_s=0.2),))
    for results in ([sweep("a"), other], [other, sweep("a")]):
        found = section(markdown(results), "Bad events by stage")
        cells = {name: dict(zip(row(found, "result"), row(found, name, "16/s"), strict=True)) for name in "ab"}
        assert cells["a"]["ttft: 99% of ttft within 200 ms"] == cells["b"]["tpot: 95% of tpot within 30 ms"] == "–"
        assert cells["b"]["ttft: 99% of ttft within 200 ms"] == "10% bad 12 of 120"
        assert "ttft: 99% of ttft within 200 ms" in html(results)


def rows_of_a_matrix() -> Result:
    """Three rows at one rate, two of them of one shape; each with a contract of its own."""
    first, second, third = sweep().stages
    short, long = (replace(sweep().load, workload=name, prompt_tokens=name) for name in ("short", "long"))
    stages = (
        replace(first, name="short", load=short, rate_per_s=4.0, slos={"ttft": (120, 0)}),
        replace(second, name="long", load=long, rate_per_s=4.0, slos={"tpot": (120, 0)}),
        replace(third, name="short", load=short, rate_per_s=4.0, slos={"ttft": (120, 0)}),
    )
    return replace(sweep(), kind="run", stages=stages, capacities=())


def test_rows_of_other_shapes_are_never_one_line() -> None:
    """Neither pooled nor joined: what they were sent, why they stand apart, a name and a colour each."""
    result = rows_of_a_matrix()
    text = markdown([result])
    said = section(text, "Target and load")
    assert row(said, "long") == ["long", "long", "lognormal", "poisson"]
    assert "2 groups of stages are drawn apart" in said
    assert "as they differ in workload, prompt tokens, SLOs: short; long." in said
    repeated = section(text, "Repeats")
    assert row(repeated, "short", "4")[2] == "2"
    assert "| long |" not in repeated
    (curve,) = (each for each in plots.curves([("m", result)]) if each.title == "TTFT over load")
    assert curve.keys == [("var(--c0)", "short"), ("var(--c1)", "long")]
    assert [line.count("L") for line in re.findall(r'class="data[^"]*"[^>]* d="([^"]*)"', curve.svg)] == [1, 1]
    assert "within 500 ms (short)" in curve.svg
    frontier = plots.frontiers([("m", result)])[0]
    assert frontier.keys == curve.keys
    assert row(section(text, "Bad events by stage"), "long")[1] == "–", (
        "the TTFT of `short` is nothing that `long` promised"
    )


def test_the_raw_figures_are_folded_behind_the_answer() -> None:
    """Answer, chart, frontier, cost, context and audit are open; figures of stages are one click away, and printed."""
    page = html([sweep()])
    opened, _, folded = page.partition("<details>")
    heads = re.findall("<h2>(.*?)</h2>", opened)
    assert heads == [
        *("Verdict", "Throughput against latency", "Cost", "Target and load", "Context", "How it was measured")
    ]
    assert re.findall("<summary>(.*?)</summary>", page)[:2] == ["Bad events by stage", "Latency"]
    assert "<h2>" not in folded
    assert opened.index("knee 12/s") < opened.index("<h2>Throughput")
    assert "details:not([open])::details-content" in page


def test_the_chart_is_about_the_slo_that_gives_way() -> None:
    """The tail is the quantile of the objective: TPOT within 30 ms for 95% is a p95."""
    first = sweep()
    tpot = replace(first.capacities[0], slo="tpot")
    (curve,) = filter(None, [plots.main_curve([("s", replace(first, capacities=(tpot,)))])])
    assert curve.title == "TPOT over load"
    assert "TPOT, p50 and p95" in curve.svg
    (other,) = filter(None, [plots.main_curve([("s", replace(first, slos=(), capacities=()))])])
    assert other.title == "TTFT over load"
    assert "TTFT, p50 and p99" in other.svg


def test_a_knee_beyond_all_rates_is_an_extrapolation() -> None:
    """It is called one, and does not squeeze the measured points."""
    far = Capacity("ttft", "found", 60.0, 100.0, 250.0, 0.9, 2000, "model")
    result = replace(sweep(), capacities=(far,))
    assert (
        "an extrapolation, as no rate above 16.5/s was sent" in row(section(markdown([result]), "Verdict"), "ttft")[-1]
    )
    assert "No rate above 16.5/s was sent: a knee above it is an extrapolation." in markdown([result])
    assert "No rate above" not in markdown([sweep()])
    (curve,) = filter(None, [plots.main_curve([("s", result)])])
    assert 'class="band"' not in curve.svg
    assert "The knee of ttft, 100/s (60 to 250, 90% interval), is beyond the axis" in curve.note
    near = row(section(markdown([sweep()]), "Verdict"), "ttft")[-1]
    assert "extrapolation" not in near


def test_the_fitted_curve_is_drawn_where_the_sweep_has_one() -> None:
    """Dotted, of the quantile that is drawn, and named; within the axis. Without a model nothing is claimed."""
    ttft, tpot = sweep().capacities
    modelled = replace(sweep(), capacities=(replace(ttft, curve=((1.0, 0.1), (8.0, 0.3), (13.5, 0.7))), tpot))
    drawn, other = plots.curves([("s", modelled)], ["ttft", "tpot"])
    assert drawn.svg.count('class="data dotted"') == 1
    assert "Dotted: the p99 of the engine model that was fitted to the sweep." in drawn.note
    for figure in (other, *plots.curves([("s", sweep())])):
        assert 'class="data dotted"' not in figure.svg
        assert "engine model" not in figure.note


def test_a_tail_that_is_not_known_is_drawn_as_a_bound() -> None:
    """Requests that were cut leave only a lower bound of p99: the stage stays in the chart, and is called that."""
    first = sweep()
    last = first.stages[-1]
    known = {**last.latencies, "ttft": tuple(q for q in last.latencies["ttft"] if q.q < 0.9)}
    cut = replace(last, latencies=known, at_least={"ttft": (Quantile(0.99, 0.7, None, None, 0),)})
    (curve,) = filter(None, [plots.main_curve([("s", replace(first, stages=(*first.stages[:-1], cut)))])])
    assert "16/s: TTFT p99 700 ms or more" in curve.svg
    assert "the p99 is only known to be at least that of the point" in curve.note
    assert " or more" not in plots.curves([("s", first)])[0].svg


def test_changes_and_trade_offs_of_several_results() -> None:
    """A single changed setting is named with both values; several are not attributed; percentages are against the first."""
    first = sweep("a")
    flags = {"tensor_parallel_size": "4"}
    wider = replace(
        first,
        id="b",
        target=replace(first.target, flags=flags),
        stages=tuple(replace(stage, gpus=4) for stage in first.stages),
        capacities=(replace(first.capacities[0], estimate=18.0), first.capacities[1]),
    )
    found = section(markdown([first, wider]), "Changes and trade-offs")
    assert "b changed tensor_parallel_size from 2 to 4, against a." in found.replace("\\_", "_")
    figures = row(found, "b")
    assert figures[1:4] == ["18 +50%", "4.5 -25%", "8,100 -25%"]  # of 4 GPUs at $2 an hour instead of 2
    assert figures[5].endswith("-50%")
    assert figures[7].endswith("+100%")
    assert figures[-1] == "**a**"
    assert row(found, "a")[1:4] == ["12", "6", "10,800"]
    assert row(found, "a")[-1] == "–"
    both = replace(wider, context=replace(first.context, precision="fp8"))
    said = section(markdown([first, both]), "Changes and trade-offs")
    assert "precision from bf16 to fp8" in said
    assert "no difference between their figures can be attributed to one of the changes alone" in said
    less = replace(
        first, id="c", context=replace(first.context, driver=None), target=replace(first.target, url="http://o")
    )
    alike = section(markdown([first, less]), "Changes and trade-offs")
    assert "c has no known change of settings, against a; known of one of the two only: driver; they were" in alike
    assert "measured at different addresses." in alike
    assert "Changes and trade-offs" not in markdown([first])
    assert "Changes and trade-offs" in markdown(
        [BARE, replace(BARE, id="other")]
    )  # no stage: a table of unknown values


def test_the_frontier_is_of_set_ups_that_gain_something() -> None:
    """Slower and cheaper is a trade-off; worse quality is a loss; what only one of them has decides nothing."""

    def with_quality(result: Result, wrong: int) -> Result:
        return replace(result, stages=tuple(replace(stage, quality=(10, wrong)) for stage in result.stages))

    first = sweep("a")
    cheaper = replace(first, id="b", prices=replace(first.prices, gpu_per_hour=1.0))
    found = section(markdown([first, cheaper]), "Changes and trade-offs")
    assert (row(found, "a")[-1], row(found, "b")[-1]) == ("**b**", "–")
    found = section(markdown([with_quality(first, 0), with_quality(cheaper, 1)]), "Changes and trade-offs")
    assert (row(found, "a")[-1], row(found, "b")[-1]) == ("–", "–")
    assert [row(found, name)[8] for name in "ab"] == ["0", "10"]
    found = section(markdown([first, with_quality(cheaper, 1)]), "Changes and trade-offs")
    assert row(found, "a")[-1] == "**b**"
    found = section(markdown([first, replace(first, id="b")]), "Changes and trade-offs")
    assert (row(found, "a")[-1], row(found, "b")[-1]) == ("–", "–")


def run(name: str, rate: float | None = 8.0, share_s: float = 1.0, **changes: Any) -> Result:
    """A run of one stage of 100 requests, whose latencies are `share_s` of the usual ones."""
    rows = [
        replace(row, ttft_s=row.ttft_s and row.ttft_s * share_s, tpot_s=row.tpot_s and row.tpot_s * share_s)
        for row in requests(4.0, 0.0, 100, Random(1))
    ]
    bad = changes.pop("bad", 0)
    rows = [RequestRow(row.start_s, "http_5xx", "busy") for row in rows[:bad]] + rows[bad:]
    gpus = changes.pop("gpus", 1)
    stage = stage_of_requests("s", rate, rows, begin_s=0.0, sending_s=None, duration_s=changes.pop("duration_s", 12.5))
    load = replace(sweep().load, **changes)
    return replace(BARE, id=name, load=load, stages=(replace(stage, gpus=gpus),))


@pytest.mark.parametrize(
    ("better", "dominates"),
    [
        (run("b", share_s=0.5), True),
        (run("b", share_s=0.5, seed=9, max_in_flight=500), True),  # neither is the load of an open loop
        (run("b", rate=8.2, share_s=0.5), True),
        (run("b", share_s=0.5, bad=2), None),
        (run("b", share_s=0.5, bad=90), None),
        (run("b", share_s=0.5, bad=100), None),
        (run("b", rate=4.0, share_s=0.5), None),
        (run("b", rate=16.0, share_s=0.5), None),
        (run("b", share_s=0.5, gpus=None), None),
        (run("b", share_s=0.5, prompt_tokens="fixed 9", output_tokens="fixed 9", workload="other"), None),
        (run("b", share_s=0.5, prompt_tokens=None), None),
        (run("b", share_s=0.5, arrivals="constant"), None),
        (run("b", share_s=0.5, sampling={"temperature": 1}), None),
        (run("b", share_s=2.0), False),
    ],
)
def test_set_ups_are_compared_only_at_equal_terms(better: Result, dominates: bool | None) -> None:
    """Load, GPUs and failures; else no set-up is called dominated, and no percentage is stated."""
    text = section(markdown([run("a"), better]), "Changes and trade-offs")
    verdict = {True: ("**b**", "–"), False: ("–", "**a**"), None: ("*not compared*", "*not compared*")}[dominates]
    assert (row(text, "a")[-1], row(text, "b")[-1]) == verdict
    assert ("%" in " ".join(row(text, "b"))) == (dominates is not None)


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (run("b", None, 0.5, arrivals="closed", max_in_flight=4, duration_s=6.0), ("**b**", "–")),
        (run("b", None, 0.5, arrivals="closed", max_in_flight=4, duration_s=25.0), ("–", "–")),
        (run("b", None, 0.5, arrivals="closed", max_in_flight=8, duration_s=6.0), ("*not compared*",) * 2),
    ],
)
def test_the_rate_of_a_closed_loop_is_a_result(other: Result, verdict: tuple[str, str]) -> None:
    """Its load is the number of requests at once; with the same one, more requests a second are better."""
    text = section(markdown([run("a", None, arrivals="closed", max_in_flight=4), other]), "Changes and trade-offs")
    assert (row(text, "a")[-1], row(text, "b")[-1]) == verdict


def test_sweeps_are_compared_at_their_capacity() -> None:
    """Their rates may differ; latencies at a lower rate dominate nothing."""

    def swept(name: str, knee: float, ttft: float) -> Result:
        first = sweep(name)
        stages = tuple(
            replace(stage, latencies={"ttft": (Quantile(0.99, ttft, None, None, 2000),)}) for stage in first.stages
        )
        (capacity, other) = first.capacities
        return replace(first, stages=stages, capacities=(replace(capacity, lower=knee - 1, estimate=knee), other))

    for results, verdict in (
        ((swept("a", 4.0, 0.2), swept("b", 12.0, 0.1)), ("**b**", "–")),
        ((swept("a", 4.0, 0.1), swept("b", 12.0, 0.2)), ("–", "–")),
    ):
        text = section(markdown(results), "Changes and trade-offs")
        assert (row(text, "a")[-1], row(text, "b")[-1]) == verdict


def test_a_sweep_is_one_line() -> None:
    """Rates are what a line is drawn over."""
    curve = plots.curves([("s", sweep())])[0]
    assert curve.keys == []
    assert [line.count("L") for line in re.findall(r'class="data[^"]*"[^>]* d="([^"]*)"', curve.svg)] == [2, 2]


def test_curves_use_the_load_that_was_there_too() -> None:
    """A capacity is of the whole load; a closed loop has the rate it came to."""
    stage = sweep().stages[0]
    assert plots.rate_of(stage) == 1.5
    assert plots.rate_of(replace(stage, rate_per_s=None, demand_per_s=None)) == stage.at_rate.requests_per_s
    assert plots.rate_of(replace(stage, rate_per_s=None, duration_s=None)) is None


def test_figures_without_requests_make_charts_too() -> None:
    """Percentiles that a tool tells are drawn through; without times there is no timeline."""
    known = {
        "ttft": tuple(Quantile(q, 0.1 + q, None, None, 0) for q in (0.5, 0.99)),
        "itl": (Quantile(0.5, 0.01, None, None, 0),),
    }
    result = replace(BARE, stages=(Stage("8/s", 8.0, None, None, 10.0, 80, 80, latencies=known, output_tokens=800.0),))
    page = html([result])
    assert "TTFT over load" in page
    assert "Distribution of TTFT" in page
    assert "Stages over time" not in page


HOSTILE = '<img src="http://127.0.0.1:{port}/taken"><script>document.title = 1</script>|`x`\n## Verdict'


def test_a_name_is_never_markup() -> None:
    """Texts come from targets and from files."""
    name = HOSTILE.format(port=1)
    result = replace(sweep(), target=MeasuredTarget(model=name), id=name)
    page, text = html([result]), markdown([result])
    assert "<script" not in page
    assert "<img" not in page
    assert "\n## Verdict" in text
    assert text.count("\n## Verdict") == 1
    assert "<img" not in text.replace("\\<img", "")


class Loads(HTMLParser):
    """References to anything that a page could load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.places: list[str] = []
        self.ids: list[str] = []
        self.policy: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "link", "img", "iframe", "object", "embed", "base", "use", "image", "form"):
            self.found.append(tag)
        if tag == "a" and str(values.get("href")).startswith("#"):  # a place in the page itself
            self.places.append(str(values.pop("href")).removeprefix("#"))
        self.ids += [str(values["id"])] if "id" in values else []
        self.found += [
            name for name in values if name in ("src", "href", "xlink:href", "srcset") or name.startswith("on")
        ]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]


def test_the_page_names_nothing_to_load() -> None:
    """No link to elsewhere, no script, no picture; its own policy forbids it. Points lead to the figures of their stage."""
    page = html([sweep("a"), sweep("b")])
    loads = Loads()
    loads.feed(page)
    assert loads.found == []
    assert set(loads.places) == {f"{name}-{stage}" for name in "ab" for stage in range(3)}
    assert sorted(loads.ids) == sorted(set(loads.places))
    assert loads.policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert "url(" not in page
    assert "@import" not in page


@pytest.fixture
def hits() -> Iterator[tuple[int, list[str]]]:
    """A server's port, and what was asked of it."""
    asked: list[str] = []

    def reply(request: Asked) -> Script:
        asked.append(request.path)
        return body("404 Not Found", "")

    with threaded(reply) as url:
        yield int(url.rpartition(":")[2]), asked


def browse(chromium: Path, page: Path, *options: str) -> str:
    """The page as real Chromium has it after loading; no name can be resolved. What its console said is in the file `console`."""
    command = [
        *(str(chromium), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
        *(
            "--disable-component-update",
            "--enable-logging=stderr",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ),
        *(f"--user-data-dir={page.parent / 'profile'}", "--window-size=1280,1600", *options, f"file://{page}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
    (page.parent / "console").write_text("\n".join(line for line in done.stderr.splitlines() if ":CONSOLE" in line))
    return done.stdout


def test_a_browser_shows_every_chart_and_loads_nothing(
    chromium: Path, tmp_path: Path, hits: tuple[int, list[str]]
) -> None:
    """Real Chromium without a network: all charts are in the page, nobody is asked for anything, and its console is empty."""
    port, asked = hits
    name = HOSTILE.format(port=port)
    page = tmp_path / "report.html"
    page.write_text(html([replace(sweep(), target=MeasuredTarget(model=name, url=name))]))
    seen = browse(chromium, page, "--dump-dom")
    assert [title for title in FIGURES if f"<b>{title}.</b>" not in seen] == []
    assert seen.count('<svg class="chart"') == len(FIGURES)
    assert "NaN" not in seen
    assert asked == []
    console = tmp_path / "console"
    assert console.read_text() == ""
    control = tmp_path / "control.html"
    control.write_text(name)
    browse(chromium, control, "--dump-dom")
    assert asked == ["/taken"]  # so the page above would have been caught
    control.write_text(page.read_text().replace("</body>", '<img src="data:image/png;base64,AA"></body>'))
    browse(chromium, control, "--dump-dom")
    assert "Content Security Policy" in console.read_text()  # even what needs no network is not loaded


def test_the_threshold_and_the_knees_interval_are_drawn() -> None:
    """The SLO's line across the chart with its label, and the band from the knee's lower to its upper end."""
    (chart,) = filter(None, [plots.main_curve([("s", sweep())])])
    begin, end = (float(each) for each in re.findall(r'class="rule" d="M([\d.]+) [\d.]+H([\d.]+)"', chart.svg)[0])
    assert ">ttft: 99% within 500 ms</text>" in chart.svg
    left, width = (float(re.findall(rf'class="band"[^>]* {name}="([\d.]+)"', chart.svg)[0]) for name in ("x", "width"))
    assert begin <= left < left + width <= end
    (knee,) = re.findall(r'class="knee"[^>]* d="M([\d.]+) ', chart.svg)
    assert left + width * 2 / 3 == pytest.approx(float(knee), abs=1.0)  # 12 of 10 to 13
    assert "<title>estimated knee of ttft: 12/s (10 to 13, 90% interval)</title>" in chart.svg
    assert ">knee 12/s (10 to 13, 90% interval)</text>" in chart.svg
    assert "The band is the interval of the knee." in chart.note


def test_a_browser_draws_it_in_light_and_in_dark(chromium: Path, tmp_path: Path) -> None:
    """The reader's own colours; a chart is more than an empty page."""
    page, empty = tmp_path / "report.html", tmp_path / "empty.html"
    page.write_text(html([sweep()]))
    empty.write_text("<p>")
    sizes = {}
    for name, file, scheme in (("light", page, 1), ("dark", page, 0), ("empty", empty, 1)):
        picture = tmp_path / f"{name}.png"
        browse(chromium, file, f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={picture}")
        sizes[name] = picture.read_bytes()
    assert len(sizes["light"]) > 5 * len(sizes["empty"])
    assert sizes["light"] != sizes["dark"]


def test_csv_has_a_row_a_stage() -> None:
    """With vLLM's names where it has them; nothing a spreadsheet would run."""
    result = replace(sweep(), target=MeasuredTarget(model="=HYPERLINK(1)"))
    rows = list(csv.DictReader(csv_export.stages([result, sweep("b")]).splitlines()))
    assert [each["stage"] for each in rows] == ["1/s", "4/s", "16/s"] * 2
    assert rows[0]["model_id"] == "'=HYPERLINK(1)"
    assert {each["workload"] for each in rows} == {"chat"}
    assert float(rows[2]["p99_ttft_ms"]) > float(rows[0]["p99_ttft_ms"])
    assert (rows[2]["outcome_http_5xx"], rows[0]["outcome_http_5xx"]) == ("12", "")
    assert rows[0]["gpu_utilization_mean_ratio"] == ""
    assert rows[0]["running_mean"] == "2.0"


def test_csv_has_a_row_a_request() -> None:
    """Seconds; what is not known is empty."""
    rows = list(csv.DictReader(csv_export.requests([sweep()]).splitlines()))
    assert len(rows) == 360
    assert rows[240]["outcome"] == "http_5xx"
    assert rows[240]["ttft"] == ""
    assert rows[0]["start_time"] == "0.0"
    assert len(rows[0]["itls"].split()) == 7
    assert csv_export.requests([BARE]) == "\n"


def test_a_result_whose_content_came_at_once_says_so() -> None:
    """TPOT and ITL are absent and not 0, with the reason; other tools may keep no gaps, which says nothing."""
    seen = sweep()
    stages = [
        stage_of_requests(
            stage.name,
            stage.rate_per_s,
            [replace(row, itls_s=(), tpot_s=None) for row in stage.requests],
            begin_s=0.0,
            sending_s=1.0,
        )
        for stage in seen.stages
    ]
    at_once = replace(seen, tool="llm-slo-prober 1.0", stages=tuple(stages))
    sentence = "All content of each answer arrived at once: TPOT and ITL are not measurable here"
    assert sentence in markdown([at_once])
    assert "| TPOT |" not in markdown([at_once])
    assert sentence not in markdown([replace(at_once, tool="vllm bench serve")]) + markdown([seen])


def test_parts_reasoning_and_a_load_beside_a_stage_are_shown() -> None:
    """With their samples; a share that nobody counted is unknown, and too few samples are marked."""
    p50, p99 = Quantile(0.5, 0.1, 0.09, 0.11, 1200), Quantile(0.99, 0.4, 0.3, None, 300)
    turns = (Series("chat_turn1", 1200, (p50,), 1000, 0), Series("chat_turn2", 300, (p99,), 0, 0, 7, "http_5xx: no"))
    recovery = Recovery("holds", 98, 0, 11.0, 12.0)
    beside = Disturbance("overload", 60.0, 90.0, "", "ttft", 30, 20, (60, 30), (Ratio(0.5, 8.0, 6.0, 9.0),), recovery)
    reasoning = Reasoning(40, 3, 20, 2000, 400, (p50,))
    plain = sweep()
    contrast = Contrast("free", (Ratio(0.5, 1.2, 1.1, 1.3),), None, (60, 60), (3, 3))
    uses = AdapterUse(4, 20, 30, 5, 0, 0, (), (), (Ratio(0.5, 3.0, 2.0, 4.0),))
    first = replace(
        plain.stages[0], series=turns, reasoning=reasoning, disturbance=beside, adapters=uses, contrast=contrast
    )
    stages = (first, *plain.stages[1:])
    text = markdown([replace(plain, stages=stages)])
    parts = section(text, "Parts of the load")
    assert row(parts, "1/s", "chat_turn1")[2:4] == ["1,200", "100 ms \\[90 ms, 110 ms\\]"]
    assert row(parts, "1/s", "chat_turn1")[-2:] == ["0%", "0"]
    assert row(parts, "1/s", "chat_turn2")[-3].startswith("*400 ms \\**")
    assert row(parts, "1/s", "chat_turn2")[-2:] == ["*unknown*", "7: http_5xx: no"]
    assert row(parts, "1/s", "40")[2:4] == ["100", "20"]
    assert row(parts, "1/s", "40")[-1] == "3"
    compared = section(text, "Comparisons within the run")
    assert "1/s: overload was sent for 30 s. Beside it 20 of 30 bad by ttft; TTFT beside it" in compared
    assert "1/s: 4 adapters: TTFT of 20 first uses" in compared
    assert "1/s: Relative to free, sent before it: TTFT" in compared
    assert "Parts of the load" not in markdown([plain])

"""The generated dashboards: committed, linted, complete, and valid PromQL."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from prober.daemon.dashboards import files
from prober.daemon.registry import ALL as ALL_SERIES
from prober.daemon.rules import example_rules
from prober.exposition.dashboards.board import UIDS, in_place
from prober.exposition.dashboards.queries import BUDGET_LEFT, STATES
from tests.commands import prober
from tests.daemon.promtool import PROBE, case, check_expressions, expects, run_cases
from tools.dashboard_lint.promql import parse
from tools.dashboard_lint.rules import expressions, labels_of_series, panels, problems

ROOT = Path(__file__).parents[2]
LABELS = labels_of_series(ALL_SERIES, example_rules())
FILES = files()
CHOSEN = {"$__rate_interval": "5m", "$__range": "3h", "$window": "2h", "$1": "one"}
# Series that no panel shows, and why.
NOT_SHOWN = {
    "llmslo_chunk_gap_seconds": "ITL is the same divided by the tokens of a chunk; gaps differ only with large chunks",
    "llmslo_sweep_requests_total": "the rate that a sweep adds shows when and how much",
    "llmslo_sweep_tokens_total": "as above",
    "llmslo_sweep_period_seconds": "for an alert",
    "llmslo_addable_requests_per_second": "demand and capacity are drawn, and this is their distance",
    "llmslo_sweep_stops_total": "verdicts count each sweep once; the reason of the last one is shown",
    "llmslo_shards": "for an alert",
    "llmslo_answers_engine_change_timestamp_seconds": "changes of the engine are annotations",
    "llmslo_drift_load": "the status page says what the load tells of a drift",
    "llmslo_service_tier_info": "a label for own queries; the status page names the tier, and a change is an event",
}


def without_variables(text: str, cluster: str = "") -> str:
    """An expression with a value in place of every variable."""
    for name, value in {**CHOSEN, "$cluster": cluster}.items():
        text = text.replace(name, value)
    return re.sub(r"\$\w+", ".*", text)


def board(name: str = "overview") -> dict[str, Any]:
    """JSON of one dashboard."""
    document: dict[str, Any] = json.loads(FILES[f"{name}.json"])
    return document


def cli(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return prober("dashboards", *words)


def test_the_committed_dashboards_are_up_to_date() -> None:
    """`prober dashboards check` prints nothing and exits with 0."""
    done = cli("check", "--output", ROOT / "dashboards")
    assert (done.returncode, done.stderr) == (0, "")


def test_check_names_missing_outdated_and_foreign_files(tmp_path: Path) -> None:
    """Each file is named with the remedy; writing again repairs the first two."""
    assert cli("write", "--output", tmp_path / "new").returncode == 0
    (tmp_path / "new/overview.json").write_text("{}")
    (tmp_path / "new/slo.json").unlink()
    (tmp_path / "new/mine.json").write_text("{}")
    done = cli("check", "--output", tmp_path / "new")
    assert done.returncode == 1
    assert "overview.json is out of date" in done.stderr
    assert "slo.json is missing; `prober dashboards write" in done.stderr
    assert "mine.json is not a generated dashboard" in done.stderr
    cli("write", "--output", tmp_path / "new")
    assert cli("check", "--output", tmp_path / "new").stderr.count("\n") == 1


def test_an_unknown_action_is_a_wrong_call() -> None:
    """The error lists the actions."""
    done = cli("paint")
    assert done.returncode == 2
    assert "'write', 'check'" in done.stderr


@pytest.mark.parametrize("name", FILES)
def test_the_lint_finds_nothing(name: str) -> None:
    """Schema and all rules."""
    assert problems(json.loads(FILES[name]), LABELS) == []


def test_uids_do_not_change() -> None:
    """Bookmarks and alerts contain them: this list only grows."""
    documents = [json.loads(text) for text in FILES.values()]
    assert [document["uid"] for document in documents] == [
        "llm-slo", "llm-slo-target", "llm-slo-budget", "llm-slo-capacity", "llm-slo-engine", "llm-slo-drift",
    ]  # fmt: skip
    assert len(documents) == len(UIDS)


@pytest.mark.parametrize("name", ["target", "capacity", "engine"])
def test_a_dashboard_of_one_target_accepts_a_link_with_all_targets(name: str) -> None:
    """`target` may be several or all; the panels use `one`, which is a single target of these."""
    document = board(name)
    variables = {variable["name"]: variable for variable in document["templating"]["list"]}
    target, one = variables["target"], variables["one"]
    assert (target["multi"], target["includeAll"]) == (True, True)
    assert (one["multi"], one["includeAll"]) == (False, False)
    assert 'target=~"$target"' in one["query"]["query"]
    assert not [place for place, text in expressions(document) if "$target" in text and place != "variable 'one'"]


def test_every_series_is_shown() -> None:
    """On a dashboard, by itself or in a recorded series, or NOT_SHOWN has the reason."""
    text = " ".join(FILES.values())
    recorded = (ROOT / "deploy/prometheus/rules.yaml").read_text()
    names = [declared.name for declared in ALL_SERIES]
    assert [name for name in names if name not in text + recorded and name not in NOT_SHOWN] == []
    assert [name for name in NOT_SHOWN if name in text] == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("release", ["2", "3"])
def test_promtool_accepts_every_expression(
    name: str, release: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """promtool of Prometheus 2 and 3."""
    promtool = request.getfixturevalue("promtool" if release == "2" else "newer_promtool")
    queries = list(expressions(board(name.removesuffix(".json"))))
    assert len(queries) > 10
    check_expressions(promtool, tmp_path, [without_variables(text) for _, text in queries])


def ttft(vantage: str, s: float) -> dict[str, str]:
    """Histogram of a target whose every TTFT from a vantage is just below `s`, of one bucket each 0.1 s."""
    labels = PROBE.replace('instance="a"', f'instance="{vantage}"') + (f',vantage="{vantage}"' if vantage else "")
    bounds = [f"{tenth / 10:g}" for tenth in range(1, 10)]
    return {
        f'llmslo_ttft_seconds_bucket{{{labels},le="{le}"}}': "0+12x130" if le == "+Inf" or float(le) >= s else "0x130"
        for le in (*bounds, "+Inf")
    }


PLACES = [
    ({"paris": 0.2, "tokyo": 0.5, "lima": 0.2}, {"": 0.15, "paris": 0.0, "tokyo": 0.3, "lima": 0.0}),
    ({"paris": 0.7, "tokyo": 0.7}, {"": 0.65, "paris": 0.0, "tokyo": 0.0}),
    ({"paris": 0.2}, {}),
    ({"": 0.2}, {}),
    ({"paris": 0.2, "": 0.5}, {}),
]


@pytest.mark.parametrize(("latencies", "expected"), PLACES, ids=str)
def test_the_panel_by_vantage_separates_what_is_shared_from_what_a_place_adds(
    promtool: Path, tmp_path: Path, latencies: dict[str, float], expected: dict[str, float]
) -> None:
    """The median of the fastest place, and the distance of each from it; nothing to compare with one place."""
    (panel,) = (panel for panel in board("target")["panels"] if panel["title"] == "TTFT shared and added, p50")
    shared, added = (without_variables(query["expr"]) for query in panel["targets"])
    series = {name: values for place, s in latencies.items() for name, values in ttft(place, s).items()}
    samples: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for place, value in expected.items():
        of_place = f',vantage="{place}"' if place else ""
        samples[bool(place)][f'target="llama",workload="probe"{of_place}'] = value
    tests = [
        expects(f"round({expr}, 0.001)", "125m", found) for expr, found in zip((shared, added), samples, strict=True)
    ]
    run_cases(promtool, tmp_path, [], [case(series, promql_expr_test=tests)])


@pytest.mark.parametrize("file", FILES)
def test_every_query_is_of_one_cluster(file: str) -> None:
    """Of panels, marks and choices, but for the choice of the cluster; a reader chooses one, and cannot choose all.

    Rules keep the cluster where they are told to, and that about exporters of GPUs always.
    """
    document = board(file.removesuffix(".json"))
    for place, text in expressions(document):
        for selector in parse(text).selectors:
            of_cluster = [matcher for matcher in selector.matchers if matcher[0] == "cluster"]
            own = {label: value for label, _, value in selector.matchers}
            by_rules = selector.name.startswith("ALERTS") or ":" in selector.name + own.get("__name__", "")
            name = selector.name or own["__name__"].partition("|")[0]
            loose = not name.startswith("gpu:") and (by_rules or "target" not in LABELS[name])
            wanted = ("=~", "$cluster|") if loose else ("=", "$cluster")
            assert of_cluster == ([("cluster", *wanted)] if place != "variable 'cluster'" else []), (place, text)
    (cluster,) = (variable for variable in document["templating"]["list"] if variable["name"] == "cluster")
    assert (cluster["multi"], cluster["includeAll"]) == (False, False)
    links = [text for text in re.findall(r'"(/d/llm-slo[^"]*)"', json.dumps(document)) if "var-" in text]
    assert all("${cluster:queryparam}" in link for link in links), links


def in_cluster(cluster: str, series: dict[str, str]) -> dict[str, str]:
    """The series as they arrive from a cluster; empty for one without a name."""
    return {
        name.replace("}", f',cluster="{cluster}"}}') if cluster else name: values for name, values in series.items()
    }


def of_target(name: str, labels: str, values: str) -> dict[str, str]:
    return {f'{name}{{job="llm-slo-prober",instance="a",target="llama",{labels}}}': values}


def test_targets_of_one_name_in_two_clusters_are_shown_apart(promtool: Path, tmp_path: Path) -> None:
    """State, latency and shares are those of the chosen cluster, or of probers without one; what rules recorded without the label is
    what they judged and alert on, so it is shown in each."""
    budget = "slo:llmslo_bad:ratio1h"
    of_rules = 'target="llama",workload="w",slo="{slo}"'
    scenes = {"berlin": ("failing", 0.7, 0.1), "delhi": ("ready", 0.2, 0.9), "": ("draining", 0.4, None)}
    series: dict[str, str] = {f"{budget}{{{of_rules.format(slo='merged')}}}": "0.5x130"}
    for cluster, (state, latency_s, left) in scenes.items():
        shown = of_target("llmslo_target_state", f'state="{state}"', "1x130") | ttft("", latency_s)
        series |= in_cluster(cluster, shown)
        if left is not None:
            series |= in_cluster(cluster, {f"{budget}{{{of_rules.format(slo='apart')}}}": f"{left}x130"})
    state_panel = next(panel for panel in board("target")["panels"] if panel["title"] == "State")
    ttft_panel = next(panel for panel in board("target")["panels"] if panel["title"] == "TTFT")
    p50 = next(target["expr"] for target in ttft_panel["targets"] if target["legendFormat"].endswith("p50"))
    left_of = f'min by (slo) ({budget}{{target=~"$one"}})'
    tests = []
    for cluster, (state, latency_s, left) in scenes.items():
        own = {} if left is None else {'slo="apart"': left}
        figures: dict[str, dict[str, float]] = {
            state_panel["targets"][0]["expr"]: {'target="llama"': STATES.index(state)},
            f"round({p50}, 0.001)": {'target="llama",workload="probe"': round(latency_s - 0.05, 3)},
            in_place(left_of): {**own, 'slo="merged"': 0.5},
        }
        tests += [expects(without_variables(expr, cluster), "125m", figure) for expr, figure in figures.items()]
    run_cases(promtool, tmp_path, [], [case(series, promql_expr_test=tests)])


def test_a_prediction_is_shown_against_what_came_of_it(promtool: Path, tmp_path: Path) -> None:
    """60 ms instead of 100 ms are 40% too optimistic. Nothing is shown of a handful of requests, of predictions alone, or where the two
    histograms count different requests."""

    def counted(
        target: str, predicted: tuple[float, float] | None, outcome: tuple[float, float] | None
    ) -> dict[str, str]:
        """(requests each minute, mean) of both histograms."""
        series: dict[str, str] = {}
        for kind, figures in (("predicted", predicted), ("outcome", outcome)):
            if figures is not None:
                name, (count, mean) = f"llmslo_engine_{kind}_ttft_seconds", figures
                for part, step in (("count", count), ("sum", count * mean)):
                    series[f'{name}_{part}{{job="llm-slo-prober",instance="a",target="{target}"}}'] = f"0+{step}x60"
        return series

    row = next(row for row in board("engine")["panels"] if row["title"].startswith("Failures, phases"))
    panel = next(panel for panel in row["panels"] if panel["title"] == "Predicted against measured latency")
    expr = next(target["expr"] for target in panel["targets"] if target["legendFormat"] == "TTFT")
    series = (
        counted("optimistic", (60, 0.06), (60, 0.1))
        | counted("right", (60, 0.1), (60, 0.1))
        | counted("few", (2, 0.06), (2, 0.1))
        | counted("alone", (60, 0.06), None)
        | counted("others", (60, 0.06), (90, 0.1))
    )
    rounded = f"round({without_variables(expr)}, 0.001)"
    shown = expects(rounded, "30m", {'target="optimistic"': -0.4, 'target="right"': 0.0})
    run_cases(promtool, tmp_path, [], [case(series, promql_expr_test=[shown])])


SPEC = "llmslo_engine_speculation"
CLOSED = {
    "Finish reasons": "finish_reasons",
    "Failures, phases, offload, router": "some_engines",
    "Speculative decoding": "speculation",
    "KV transfer": "kv_transfer",
    "Engine pages": "pages",
    "GPUs": "gpus",
}


def test_rows_that_many_targets_have_no_data_for_are_closed() -> None:
    """On the engine dashboard; they hold their panels, and their title says by a hidden variable whether there are data."""
    document = board("engine")
    rows = {row["title"].partition(":")[0]: row for row in document["panels"] if row["type"] == "row"}
    assert [title for title, row in rows.items() if row["collapsed"]] == list(CLOSED)
    variables = {variable["name"]: variable for variable in document["templating"]["list"]}
    for title, name in CLOSED.items():
        assert rows[title]["title"] == f"{title}: ${name}"
        assert rows[title]["panels"]
        assert (variables[name]["hide"], variables[name]["multi"], variables[name]["refresh"]) == (2, False, 2)
        assert variables[name]["skipUrlSync"], "a link keeps no title of another target or day"
        assert "$target" not in json.dumps(rows[title])
    shown = [name for name, variable in variables.items() if variable["hide"] == 0]
    assert shown == ["datasource", "cluster", "namespace", "job", "model", "target", "one", "workload"]


def told(one: str, **expected: str) -> list[dict[str, Any]]:
    """What the titles of the closed rows say."""
    queries = dict(expressions(board("engine")))
    asked = {name: without_variables(queries[f"variable {name!r}"].replace("$one", one)) for name in expected}
    return [expects(asked[name], "10m", {f'told="{text}"': text != "no data"}) for name, text in expected.items()]


def test_the_title_of_a_closed_row_says_whether_the_target_has_its_data(promtool: Path, tmp_path: Path) -> None:
    """Of the chosen target only; what exists but is 0 is not in use."""

    def of(target: str, instance: str = "a", **speculation: float) -> dict[str, str]:
        labels = f'job="llm-slo-prober",instance="{instance}",target="{target}"'
        values = {f"{SPEC}_{name}": value for name, value in speculation.items()} | {"llmslo_engine_up": 1.0}
        return {f"{name}{{{labels}}}": f"{value:g}x20" for name, value in values.items()}

    series = {
        **of("counts", draft_tokens_total=9, accepted_tokens_total=4),
        **of("idle", draft_tokens_total=0, accepted_tokens_total=0),
        **of("computes", length_tokens=2.5, acceptance_ratio=0.5),
        **of("computes_none", length_tokens=0, acceptance_ratio=0),
        **of("accepts", accepted_tokens_total=4),
        **of("plain"),
        **of("sidecars"),
        **of("sidecars", "b"),
        'llmslo_engine_requests_finished_total{job="llm-slo-prober",instance="a",target="counts",finished_reason="stop"}': "0x20",
    }
    tests = [
        *told(
            "counts",
            speculation="tokens are drafted",
            finish_reasons="counted by the engine",
            pages="read by one prober",
        ),
        *told("idle", speculation="nothing is drafted", finish_reasons="no data"),
        *told("computes", speculation="tokens are drafted"),
        *told("computes_none", speculation="nothing is drafted"),
        *told("accepts", speculation="tokens are drafted"),
        *told("plain", speculation="no data", gpus="no data"),
        *told("sidecars", pages="read by several probers"),
        *told("gone", speculation="no data", finish_reasons="no data", pages="no data", gpus="no data"),
    ]
    run_cases(promtool, tmp_path, [], [case(series, promql_expr_test=tests)])


def engine_query(title: str, ref: str = "A") -> str:
    """A query of the engine dashboard, as Grafana asks for the target `t`."""
    (panel,) = (panel for panel in panels(board("engine")) if panel["title"] == title)
    expr = next(target["expr"] for target in panel["targets"] if target["refId"] == ref)
    return without_variables(expr.replace("$one", "t"))


# Counters by their rise a minute, gauges by their value; then share of accepted tokens and tokens per draft.
SPECULATING: dict[str, tuple[dict[str, float], dict[str, float], float | None, float | None]] = {
    "vLLM": ({"drafts": 60, "draft_tokens": 240, "accepted_tokens": 150}, {}, 0.625, 3.5),
    "SGLang": ({"drafts": 60}, {"acceptance_ratio": 0.6, "length_tokens": 2.5}, 0.6, 2.5),
    "SGLang, nothing accepted": ({"drafts": 60}, {"acceptance_ratio": 0.0, "length_tokens": 1.0}, 0.0, 1.0),
    "SGLang without speculation": ({}, {"acceptance_ratio": 0.0, "length_tokens": 0.0}, None, None),
    "TensorRT-LLM": ({"draft_tokens": 200, "accepted_tokens": 50}, {"length_tokens": 1.75}, 0.25, 1.75),
    "TGI": ({"accepted_tokens": 50}, {}, None, None),
    "llama.cpp without speculation": ({"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}, {}, None, None),
}


@pytest.mark.parametrize("name", SPECULATING)
def test_speculation_is_from_counters_else_as_the_engine_computes_it(promtool: Path, tmp_path: Path, name: str) -> None:
    """Nothing is shown for an engine that drafts nothing, or counts too little; two probers that read one page count once."""
    counters, gauges, acceptance, length = SPECULATING[name]
    series = {
        f'{SPEC}_{kind}{{job="llm-slo-prober",instance="{instance}",target="t"}}': values
        for instance in ("a", "b")
        for kind, values in (
            *((f"{kind}_total", f"0+{rise}x30") for kind, rise in counters.items()),
            *((kind, f"{value}x30") for kind, value in gauges.items()),
        )
    }
    tests = [
        expects(f"round({engine_query(title)}, 0.001)", "20m", {} if value is None else {'target="t"': value})
        for title, value in (("Drafted tokens accepted", acceptance), ("Tokens per draft", length))
    ]
    run_cases(promtool, tmp_path, [], [case(series, promql_expr_test=tests)])


def test_requests_without_a_counted_reason_are_not_left_out(promtool: Path, tmp_path: Path) -> None:
    """SGLang counts aborted requests apart, and all others with them; where every reason is counted nothing is without one."""

    def of(name: str, rise: int, reason: str = "") -> dict[str, str]:
        more = f',finished_reason="{reason}"' if reason else ""
        return {f'{name}{{job="llm-slo-prober",instance="a",target="t"{more}}}': f"0+{rise}x30"}

    every, by_reason = "llmslo_engine_requests_total", "llmslo_engine_requests_finished_total"
    named, errors, unnamed = (f"round({engine_query('Requests finished, by reason', ref)})" for ref in "ABC")

    def shown(expr: str, **samples: float) -> dict[str, Any]:
        named = {
            'target="t"' if label == "none" else f'finished_reason="{label}"': value for label, value in samples.items()
        }
        return expects(expr, "20m", named)

    scenes = [
        (
            of(every, 30) | of(by_reason, 20, "stop") | of(by_reason, 8, "length") | of(by_reason, 2, "error"),
            [shown(named, stop=100, length=40), shown(errors, error=10), shown(unnamed)],
        ),
        (of(every, 30) | of(by_reason, 3, "abort"), [shown(named, abort=15), shown(errors), shown(unnamed, none=135)]),
        (of(every, 30), [shown(named), shown(errors), shown(unnamed)]),
        (
            of(every, 30) | of(by_reason, 0, "stop") | of(by_reason, 30, "length"),
            [shown(named, length=150), shown(unnamed)],
        ),
    ]
    cases = [case(series, promql_expr_test=tests) for series, tests in scenes]
    run_cases(promtool, tmp_path, [], cases)


def test_each_engine_of_one_target_is_shown_by_the_prober_that_reads_it(promtool: Path, tmp_path: Path) -> None:
    """Sidecars: one with an older version, one that cannot read its page."""

    def of(name: str, instance: str, value: str, more: str = "") -> dict[str, str]:
        return {f'{name}{{job="llm-slo-prober",instance="{instance}",target="t"{more}}}': value}

    series = {
        **of("llmslo_engine_up", "pod-a", "1x30"),
        **of("llmslo_engine_up", "pod-b", "1x30"),
        **of("llmslo_engine_up", "pod-c", "0x30"),
        **of("llmslo_engine_info", "pod-a", "1x30", ',engine="vllm",version="0.32.0",model="m"'),
        **of("llmslo_engine_info", "pod-b", "1x30", ',engine="vllm",version="0.31.0",model="m"'),
        **of("llmslo_engine_requests_running", "pod-a", "12x30"),
        **of("llmslo_engine_requests_running", "pod-b", "3x30"),
        **of("llmslo_engine_generation_tokens_total", "pod-a", "0+6000x30"),
        **of("llmslo_engine_generation_tokens_total", "pod-b", "0+600x30"),
    }

    def shown(title: str, expected: dict[str, float], ref: str = "A") -> dict[str, Any]:
        return expects(engine_query(title, ref), "20m", expected)

    tests = [
        shown("Engines", {'instance="pod-a"': 1, 'instance="pod-b"': 1, 'instance="pod-c"': 0}, "B"),
        shown(
            "Engines",
            {
                'instance="pod-a",engine="vllm",version="0.32.0",model="m"': 1,
                'instance="pod-b",engine="vllm",version="0.31.0",model="m"': 1,
            },
        ),
        shown("Requests running, by prober", {'instance="pod-a"': 12, 'instance="pod-b"': 3}),
        shown("Output tokens, by prober", {'instance="pod-a"': 100, 'instance="pod-b"': 10}),
        shown("Preemptions, by prober", {}),
    ]
    run_cases(promtool, tmp_path, [], [case(series, promql_expr_test=tests)])


@pytest.mark.parametrize("name", FILES)
def test_limits_are_selected_by_signal(name: str) -> None:
    """Thresholds are selected by `signal`, not by the name of an SLO; the dashboard `slo` shows each with its SLO."""
    thresholds = [
        selector.matchers
        for _, text in expressions(board(name.removesuffix(".json")))
        for selector in parse(text).selectors
        if selector.name == "llmslo_slo_threshold_seconds"
    ]
    if name == "slo.json":
        assert [("slo", "=~", "$slo") in matchers for matchers in thresholds] == [True]
        return
    by = [{label: value for label, _, value in matchers} for matchers in thresholds]
    assert all("signal" in labels and "slo" not in labels for labels in by)
    assert bool(by) == (name != "drift.json")


@pytest.mark.parametrize("name", FILES)
def test_annotations_mark_possible_causes(name: str) -> None:
    """Sweeps, drift, changed answers and engine changes from the prober's series, deployments from Grafana's own store by their tag."""
    marks = {mark["name"]: mark for mark in board(name.removesuffix(".json"))["annotations"]["list"]}
    assert set(marks) == {"Engine changed", "Drift", "Changed answers", "Sweep", "Deployment"}
    assert marks["Deployment"]["datasource"] == {"type": "grafana", "uid": "-- Grafana --"}
    assert marks["Deployment"]["target"]["tags"] == ["deployment"]


def test_the_headroom_is_the_smaller_of_both(promtool: Path, tmp_path: Path) -> None:
    """Of that by sweeps and that by the users' own latencies, each bound for itself; of the one that is known. At a peak of 90% or more
    of the capacity, two instances are needed, so that each has 20% free."""
    panels = {panel["title"]: panel["targets"] for panel in board("capacity")["panels"] if "targets" in panel}
    free, needed = (
        [without_variables(target["expr"].replace("$one", "t").replace("$__range", "1h")) for target in panels[title]]
        for title in ("Headroom", "Instances for the peak")
    )
    by_sweeps = {"lower": 0.3, "estimate": 0.4, "upper": 0.5}
    by_users = {"lower": 0.1, "estimate": 0.25, "upper": 0.6}

    def shown(name: str, figures: dict[str, float]) -> dict[str, str]:
        return {
            f'llmslo_{name}{{instance="a",target="t",bound="{bound}"}}': f"{figure}x90"
            for bound, figure in figures.items()
        }

    both = shown("headroom_ratio", by_sweeps) | shown("users_headroom_ratio", by_users)
    cases = [
        case(
            series,
            promql_expr_test=[
                *(expects(query, "80m", {"": figure}) for query, figure in zip(free, figures, strict=False)),
                *(expects(query, "80m", {"": count}) for query, count in zip(needed, counts, strict=False)),
            ],
        )
        for series, figures, counts in (
            (both, (0.1, 0.25, 0.5), (1, 2)),
            (shown("headroom_ratio", by_sweeps), (0.3, 0.4, 0.5), (1, 1)),
            (shown("users_headroom_ratio", by_users), (0.1, 0.25, 0.6), (1, 2)),
        )
    ]
    run_cases(promtool, tmp_path, [], cases)


def curve_of(prober: str, stages: dict[str, float], knee: float, success: int | None, end: int) -> dict[str, str]:
    """Series of one of several probers, each with the sweep that it made last."""
    of = f'instance="{prober}",target="t"'
    more = {} if success is None else {f"llmslo_sweep_last_success_timestamp_seconds{{{of}}}": f"{success}"}
    knees = {"lower": 0.9 * knee, "estimate": knee, "upper": 1.1 * knee}
    found = {
        f'llmslo_capacity_requests_per_second{{{of},slo="s",bound="{bound}"}}': f"{value:g}"
        for bound, value in knees.items()
        if success is not None
    }
    return {
        **{
            f'llmslo_sweep_stage_rate_per_second{{{of},stage="{stage}"}}': f"{rate:g}" for stage, rate in stages.items()
        },
        f'llmslo_sweep_last_end_timestamp_seconds{{{of},reason="guard"}}': f"{end}",
        f'llmslo_slo_threshold_seconds{{{of},workload="w",slo="s",signal="ttft"}}': "0.5",
        f'llmslo_sweep_stage_latency_seconds{{{of},stage="00",signal="ttft",percentile="p50"}}': "0.2",
        f'llmslo_sweep_stage_latency_seconds{{{of},stage="00",signal="ttft",percentile="p99"}}': "0.25",
        **more,
        **found,
    }


def test_the_load_curve_is_of_one_sweep_with_its_knee(promtool: Path, tmp_path: Path) -> None:
    """Of several probers that with the latest capacity, however late another one's sweep was aborted; rates of its stages and of the
    edges of the knee, whose band reaches the limit. Without a capacity there is no knee, and the latest sweep is shown."""
    old = curve_of("a", {"00": 1.0, "01": 2.0, "02": 3.0}, 3.0, 100, 900)
    new = curve_of("b", {"00": 4.0, "01": 8.0}, 10.0, 200, 200)
    aborted = curve_of("c", {"00": 7.0}, 70.0, None, 999)
    (panel,) = (panel for panel in board("capacity")["panels"] if panel["title"] == "TTFT over load")
    queries = {target["refId"]: without_variables(target["expr"].replace("$one", "t")) for target in panel["targets"]}

    def expected(ref: str, values: dict[str, float]) -> dict[str, Any]:
        return expects(queries[ref], "0m", {f'stage="{stage}"': value for stage, value in values.items()})

    edges = "lower", "upper"
    several = [
        expected("A", {"00": 4.0, "01": 8.0, **dict(zip(edges, (9.0, 11.0), strict=True))}),
        expected("B", {"00": 0.2}),
        expected("C", {}),
        expected("E", {"00": 0.25}),
        expected("F", dict.fromkeys(("00", "01", *edges), 0.5)),
        expected("G", dict.fromkeys(edges, 0.5)),
    ]
    alone = [expected("A", {"00": 7.0}), expected("F", {"00": 0.5}), expected("G", {})]
    run_cases(
        promtool,
        tmp_path,
        [],
        [case(old | new | aborted, promql_expr_test=several), case(aborted, promql_expr_test=alone)],
    )


@pytest.mark.parametrize("name", FILES)
def test_the_columns_of_a_table_fit_a_laptop(name: str) -> None:
    """In a window of 1,440 pixels no column with a width is beyond the right edge: people miss what they must scroll to."""
    for panel in board(name.removesuffix(".json"))["panels"]:
        if panel["type"] == "table":
            overrides = [
                setting for override in panel["fieldConfig"]["overrides"] for setting in override["properties"]
            ]
            widths = [setting["value"] for setting in overrides if setting["id"] == "custom.width"]
            assert sum(widths) <= panel["gridPos"]["w"] * (1440 - 32) / 24 - 16, panel["title"]


def test_a_budget_that_is_never_gone_has_no_time(promtool: Path, tmp_path: Path) -> None:
    """`Gone in` is of targets that burn faster than their objective allows: at half that rate a budget lasts for ever, however
    little is left. A neighbour at twice the rate has 50 bad events left, and has 0.5 a second: 100 s."""
    (panel,) = (panel for panel in board()["panels"] if panel["title"] == "Targets")
    (query,) = (target["expr"] for target in panel["targets"] if "clamp_min" in target["expr"])
    series: dict[str, Any] = {}
    for target, bad_a_minute in (("steady", "7.5"), ("burning", "30")):
        labels = f'target="{target}",workload="w",slo="s",cluster="",namespace="n",job="j"'
        series[f"llmslo_slo_objective_ratio{{{labels}}}"] = "0.75x150"
        series[f"llmslo_slo_events_total{{{labels}}}"] = "0+60x150"
        series[f"llmslo_slo_bad_events_total{{{labels}}}"] = f"0+{bad_a_minute}x150"
        series[f"llmslo_slo_window_events{{{labels}}}"] = "400x150"
        series[f"{BUDGET_LEFT}{{{labels}}}"] = "0.5x150"
    expected = expects(without_variables(query), "130m", {'target="burning"': 100})
    run_cases(promtool, tmp_path, [], [case(series, promql_expr_test=[expected])])

"""Every figure of the stages in a report, recomputed from the requests in the file of its result.

Written from docs/methods.md and docs/commands.md, with numpy and without the code of the prober, so that a mistake there is not
repeated here. The file is a real sweep of a simulated engine: docs/examples/sweep.json.
"""

import json
import math
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prober.features.experiments.report.report import html, markdown
from prober.measure.outcome import NEUTRAL
from prober.results.result_file import from_json
from tests.known import known

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"
QS = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
ENOUGH = {"p50": 20, "p75": 40, "p90": 100, "p95": 200, "p99": 1_000, "p99.9": 100_000, "max": 0}
FAR_TAIL_SAMPLES = 1_000  # of fewer, p99.9 is their maximum
TTFT_S, TPOT_S = 0.3, 0.04  # the SLOs of the sweep, each for 95%
ANSWERED = ("ok", "wrong_answer")
PROMPT, OUTPUT = 256, 24  # tokens of every request, as the workload asks
PRICE, GPUS = 2.5, 1

Row = dict[str, Any]


@cache
def file() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((EXAMPLES / "sweep.json").read_text())
    return document


@cache
def text() -> str:
    return markdown([from_json((EXAMPLES / "sweep.json").read_text(), "sweep.json")])


def requests() -> list[list[Row]]:
    """The requests of each stage."""
    document, own = file(), file()["llm_slo_prober"]["requests"]
    rows = [
        {
            **{name: own[name][i] for name in own},
            "start": document["start_times"][i],
            "ttft": document["ttfts"][i] or None,
            "itls": document["itls"][i],
            "e2e": document["latencies"][i] or None,
        }
        for i in range(len(own["stage"]))
    ]
    return [[row for row in rows if row["stage"] == stage] for stage in range(len(stages()))]


def stages() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = file()["llm_slo_prober"]["result"]["stages"]
    return listed


def table(title: str) -> list[dict[str, str]]:
    """The rows of the first table of a section, by column."""
    lines = [line for line in text().split(f"## {title}\n", 1)[1].split("\n## ", 1)[0].splitlines() if line[:1] == "|"]
    head, _, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines)
    return [dict(zip(head, row, strict=True)) for row in rows]


def figure(cell: str) -> float | None:
    """The number at the start of a cell, in seconds if it is a duration; None: unknown."""
    if "unknown" in cell:
        return None
    value, unit = re.match(r"[*≥ ]*([\d.,e+-]+)\s*(ms|s)?", cell.replace("\\", "")).groups()  # type: ignore[union-attr]
    return float(value.replace(",", "")) * (1e-3 if unit == "ms" else 1.0)


def near(cell: str, value: float | None, digits: int = 4) -> bool:
    shown = figure(cell)
    return shown is None if value is None else shown == pytest.approx(value, rel=0.6 * 10 ** (1 - digits), abs=1e-6)


def timed(rows: list[Row]) -> list[Row]:
    return [
        row
        for row in rows
        if not row["warm_up"] and not row["cached"] and (row["outcome"] in ANSWERED or row["cut_s"] is not None)
    ]


def values(latency: str, rows: list[Row]) -> tuple[list[float], list[float]]:
    """Known values, and lower bounds of those that were cut before they were known."""
    counted = timed(rows)
    if latency == "ITL":
        return [gap for row in counted for gap in row["itls"]], []
    if latency == "TPOT":
        many_cut = sum(row["cut_s"] is not None for row in counted) > 0.05 * len(counted)
        return [] if many_cut else [row["tpot_s"] for row in counted if row["tpot_s"] is not None], []
    name = latency.lower()
    bounds = [row["cut_s"] for row in counted if row[name] is None and row["cut_s"] is not None]
    return [row[name] for row in counted if row[name] is not None], bounds


def test_quantiles_mean_and_deviation() -> None:
    """The value at rank ceil(q·n) of those known and cut together; a cut one below it makes it a bound; * for too few."""
    by_name = {stage["name"]: rows for stage, rows in zip(stages(), requests(), strict=True)}
    shown = table("Latency")
    assert len(shown) > 3 * len(stages())
    for row in shown:
        known, bounds = values(row["latency"], by_name[row["stage"]])
        ordered, place = np.sort([*known, *bounds]), f"{row['stage']} {row['latency']}"
        assert figure(row["samples"]) == len(ordered), place
        for name, q in QS.items():
            rank = max(1, math.ceil(q * len(ordered) - 1e-9))
            value, cell = float(ordered[rank - 1]), row[name]
            if name == "p99.9" and len(ordered) < FAR_TAIL_SAMPLES:
                assert "unknown" in cell, f"{place} {name}"
                continue
            is_known = not bounds or value < min(bounds)
            assert near(cell, value, 3), f"{place} {name}: {cell} {value}"
            assert ("≥" in cell) is (not is_known), f"{place} {name}"
            if is_known:
                assert cell.startswith("*") is (len(ordered) < ENOUGH[name]), f"{place} {name}"
            ends = re.search(r"\[(\S+) (m?s), (\S+) (m?s)\]", cell.replace("\\", ""))
            if ends and is_known and row["latency"] != "ITL":
                low, high = (float(ends[i]) * (1e-3 if ends[i + 1] == "ms" else 1.0) for i in (1, 3))
                assert low <= value * 1.005, place
                assert value <= high * 1.005, place
                below = np.searchsorted(ordered, low * 0.995), np.searchsorted(ordered, high * 1.005)
                assert binomial_mass(len(ordered), q, int(below[0]), int(below[1])) > 0.93, f"{place} {name}"
        mean, deviation = (float(np.mean(known)), float(np.std(known))) if not bounds else (None, None)
        assert near(row["mean"], mean, 3), place
        assert near(row["std. deviation"], deviation, 3), place


def binomial_mass(n: int, q: float, low: int, high: int) -> float:
    """Probability that from `low` to `high` of n samples are below the true quantile."""
    return sum(math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(low, high + 1))


def is_good(row: Row) -> bool | None:
    """Answered and no SLO missed; None: cut before that was decided."""
    if row["outcome"] == "cancelled":
        if (row["cut_s"] if row["ttft"] is None else row["ttft"]) > TTFT_S:
            return False
        return True if row["ttft"] is not None else None
    return row["outcome"] in ANSWERED and row["ttft"] <= TTFT_S and row["tpot_s"] <= TPOT_S


def is_answered(row: Row) -> bool | None:
    return (True if row["ttft"] is not None else None) if row["outcome"] == "cancelled" else row["outcome"] in ANSWERED


def good_shares() -> dict[float, float]:
    """Share of good requests by rate: the isotonic regression that falls, as the maximum of minima of means."""
    counts = []
    for stage, rows in zip(stages(), requests(), strict=True):
        known = [
            good for row in rows if row["outcome"] not in NEUTRAL - {"cancelled"} and (good := is_good(row)) is not None
        ]
        if len(rows) - len(known) <= 0.05 * len(rows):
            counts.append((stage["rate_per_s"], sum(known), len(known)))
    counts.sort()
    number, good_requests = np.array([n for _, _, n in counts], float), np.array([g for _, g, _ in counts], float)
    shares = {}
    for i, (rate, _, _) in enumerate(counts):
        means = [
            [good_requests[a : b + 1].sum() / number[a : b + 1].sum() for b in range(i, len(counts))]
            for a in range(i + 1)
        ]
        shares[rate] = min(max(line) for line in means)
    return shares


def test_throughput_goodput_and_cost() -> None:
    """Rate × share × mean tokens; dollars per second ÷ tokens per second; 1 ÷ median TPOT. What is unknown is not checked."""
    shares, checked = good_shares(), 0
    for stage, rows, shown, cost in zip(stages(), requests(), table("Throughput"), table("Cost by stage"), strict=True):
        rate, name = stage["rate_per_s"], stage["name"]
        assert shown["stage"] == cost["stage"] == name
        assert figure(shown["sent"]) == len(rows)
        assert near(shown["added /s"], rate)
        known = [answered for row in rows if (answered := is_answered(row)) is not None]
        if figure(shown["answered /s"]) is None:
            assert figure(shown["output tokens/s"]) is None, name
            assert figure(cost["$ a million tokens"]) is None, name
            continue
        checked += 1
        answers = rate * sum(known) / len(known)
        prompt, output = answers * PROMPT, answers * OUTPUT
        assert near(shown["answered /s"], answers), name
        assert near(shown["goodput /s"], rate * shares[rate]), name
        for column, value in {"prompt": prompt, "output": output}.items():
            assert near(shown[f"{column} tokens/s"], value), name
            assert near(shown[f"{column} tokens/s a GPU"], value / GPUS), name
            assert near(cost[f"$ a million {column} tokens"], GPUS * PRICE / 3600 / value * 1e6), name
        assert near(shown["tokens/s"], prompt + output), name
        assert near(cost["$ a million tokens"], GPUS * PRICE / 3600 / (prompt + output) * 1e6), name
        tpots = np.sort(values("TPOT", rows)[0])
        assert near(cost["tokens/s a user"], 1 / tpots[math.ceil(len(tpots) / 2) - 1], 3), name
    assert checked > 10


def test_tokens_delivered_are_those_stamped() -> None:
    """A content chunk has one token here; all requests count, and each stage has the chunks that arrived while it was sending."""
    rows = [row for of_stage in requests() for row in of_stage]
    stamps = np.concatenate(
        [row["start"] + row["ttft"] + np.cumsum([0.0, *row["itls"]]) for row in rows if row["ttft"] is not None]
    )
    answered = [row for row in rows if row["outcome"] == "ok"]
    assert all(len(row["itls"]) + 1 <= row["output_tokens"] == OUTPUT for row in answered)
    for stage, shown in list(zip(stages(), table("Throughput"), strict=True))[1:]:  # the first one ends the warm-up too
        begin, end = stage["begin_s"], stage["begin_s"] + stage["sending_s"]
        tokens = int(((stamps >= begin) & (stamps < end)).sum())
        delivered = known(figure(shown["output tokens/s delivered"]))
        assert delivered * stage["sending_s"] == pytest.approx(tokens, abs=max(2.0, 0.01 * tokens)), stage["name"]


def test_outcomes_and_slos_by_stage() -> None:
    """Counts by outcome; bad events of all, with the TTFTs of cut requests that are decided."""
    for stage, rows, shown, slos in zip(
        stages(), requests(), table("Outcomes"), table("Bad events by stage"), strict=True
    ):
        counts = Counter(row["outcome"] for row in rows)
        pairs = [pair.split(" ") for pair in shown["requests by outcome"].replace("\\", "").split(", ")]
        assert {name: int(count) for count, name in pairs} == counts
        unanswered = sum(count for name, count in counts.items() if name not in ANSWERED) / len(rows)
        assert near(shown["not answered"], unanswered * 100, 3), stage["name"]
        ended = [row for row in rows if row["outcome"] not in NEUTRAL]
        cut = [row for row in rows if row["cut_s"] is not None]
        first_seen = [row for row in cut if row["ttft"] is not None or row["cut_s"] > TTFT_S]
        for latency, threshold_s in (("ttft", TTFT_S), ("tpot", TPOT_S)):
            (cell,) = (value for name, value in slos.items() if name.startswith(f"{latency}:"))
            name = "tpot_s" if latency == "tpot" else "ttft"
            judged = ended if latency == "tpot" else [*ended, *first_seen]
            bad = sum(row[name] is None or row[name] > threshold_s for row in judged)
            assert cell == f"{100 * bad / len(judged):.3g}% bad {bad} of {len(judged)}", stage["name"]


def test_the_committed_report_is_that_of_the_committed_result() -> None:
    """docs/examples/sweep.html shows what the code writes now; write it again with `prober report` if this fails."""
    result = from_json((EXAMPLES / "sweep.json").read_text(), "sweep.json")
    page = (EXAMPLES / "sweep.html").read_text()
    assert html([result]) == page
    assert len(page.encode()) < 300_000

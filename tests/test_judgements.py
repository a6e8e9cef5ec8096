"""An SLO is judged in two ways only: the compliance of a window, and the evidence about a rate. No output contradicts itself."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from decimal import Decimal

import pytest

from prober.config.rows import Row
from prober.features.capacity.estimate import estimate_capacity
from prober.features.capacity.sweep_record import Record, RequestRecord
from prober.features.capacity.sweep_record import Stage as SweptStage
from prober.features.experiments.gate import Gate
from prober.features.experiments.gate import decision as gated
from prober.features.experiments.instance_sizing import Demand, Size, size
from prober.features.experiments.matrix import decision, fails_error, judge, sentences
from prober.features.experiments.report.report import markdown
from prober.features.slo.compliance import SloStatus, compliance
from prober.measure.objective import JudgedStream, Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.capacity import words
from prober.results.judgement import slo_question
from prober.results.result import Load, MeasuredTarget, Result
from prober.results.stage import stage_of
from prober.statistics.sequential_test import ERROR, Evidence, Observations, evidence
from prober.web.page.layout import TEMPLATES
from prober.web.targets import SloAnswer
from prober.workload.shapes import Fixed
from tests.web import scenes

TTFT = Slo("ttft", "ttft", 0.5, Decimal("0.99"), 2_592_000.0)
STREAM = JudgedStream("t", "a", 2.0, 10.0, 10)
ROW = Row(name="a", prompt_tokens=Fixed(100), output_tokens=Fixed(10), accept=(TTFT,), rate=2.0, requests=100)
COMPLIANCE = re.compile(r"\b(met|missed|no[ _]data)\b")
WORDS: dict[Evidence, str] = {
    "holds": r"\b(holds|accepted|ready)\b",
    "fails": r"\b(fails|rejected|degraded)\b",
    "undecided": r"\b(undecided|not enough data)\b",
}
# (events, bad events): at and around every count at which a judgement changes its word.
CASES = [
    *[(events, 0) for events in (1, 267, 268, 300, 345, 346, 999, 1_000)],
    *[(2, 2), (20, 2), (60, 1), (300, 3), (1_000, 4), (1_000, 10), (1_000, 11), (1_000, 40)],
]


def probe(ttft_s: float) -> ProbeResult:
    first_ns = round(ttft_s * 1e9)
    timeline = Timeline(0, first_ns=first_ns, end_ns=first_ns, content_ns=(first_ns,))
    return ProbeResult("t", "a", "id", 0.0, Outcome.OK, "", timeline, requested_output_tokens=1)


GOOD, BAD = probe(0.1), probe(1.0)


def probes(events: int, bad: int) -> list[ProbeResult]:
    return [BAD] * bad + [GOOD] * (events - bad)


def shown(events: int, bad: int) -> Evidence:
    return evidence(Observations({0.0: events - bad, 1.0: bad}), 0.01)


def reported(results: Sequence[ProbeResult], **more: object) -> str:
    """The report of one stage of these results."""
    stage = stage_of("a", 2.0, results, origin_ns=0, begin_ns=0, sending_s=60.0, slos=(TTFT,))
    result = Result("r", "gate", 0.0, 60.0, "llm-slo-prober 1", MeasuredTarget(), Load(), (stage,), slos=(TTFT,))
    return markdown([replace(result, **more)])  # type: ignore[arg-type]


def says(text: str, claim: Evidence) -> None:
    """The text makes this claim about the SLO, no other one, and none about a window."""
    assert not COMPLIANCE.search(text), text
    assert [word for word, pattern in WORDS.items() if re.search(pattern, text.lower().replace("_", " "))] == [claim], (
        text
    )


@pytest.mark.parametrize("bad", [0, 1, 12])
def test_every_number_of_events_has_one_word_of_each_judgement(bad: int) -> None:
    """From 1 to 2,000 events, the bad ones first: a month takes 1,000 events at least, a rate of which none is bad 346."""
    question, seen = slo_question(TTFT, 1, 1.0), list[Evidence]()
    for events in range(1, 2_001):
        question.take(BAD if events <= bad else GOOD)
        question.close_block()
        seen.append(question.evidence(ERROR, ERROR))
        now_bad = min(bad, events)
        state, _ = compliance(TTFT, STREAM, events, now_bad, trusted=True, quiet_s=1.0)
        enough = events >= 1_000 or now_bad > 10
        assert state == ("no_data" if not enough else "missed" if now_bad > 0.01 * events else "met")
        assert seen[-1] == shown(events, now_bad)
    if not bad:
        assert seen == ["undecided"] * 345 + ["holds"] * 1_655


@pytest.mark.parametrize(("events", "bad"), CASES)
def test_gate_matrix_and_their_reports_make_the_claim_of_the_evidence(events: int, bad: int) -> None:
    """The same word in the finding, the state, the reason and the report of the saved result."""
    claim, results = shown(events, bad), probes(events, bad)
    row = judge(ROW, results, error=fails_error([ROW]), burst_s=0.0)
    assert [finding.evidence for finding in row.findings] == [claim]
    says(f"{row.state} {row.why} {json.dumps(asdict(row))}", claim)
    says(reported(results, kind="run", decision=decision([row]), stop_detail=sentences([row])), claim)
    gate = Gate(((TTFT, STREAM),), rate_per_s=2.0, burst_s=0.0, error=2 * ERROR, most=2_000)
    taken = (gate.take(result, float(number)) for number, result in enumerate(results))
    verdict = next((verdict for verdict in taken if verdict is not None), gate.verdict())
    found = verdict.findings[1]
    says(f"{verdict.state} {found.evidence} {verdict.why}", found.evidence)
    says(reported(results, decision=gated(verdict, None), stop_detail=verdict.why), found.evidence)


@pytest.mark.parametrize(("events", "bad"), CASES)
def test_sweep_plan_and_report_make_the_claim_of_the_evidence(events: int, bad: int) -> None:
    """One rate, kept for a minute or longer: it holds, fails or is undecided; a plan rests on a rate that holds."""
    claim, span_s = shown(events, bad), max(60.0, events / 2)
    requests = [
        RequestRecord(
            number * span_s / events, 1, 1, 0, known_s=span_s, end_s=None, events={"ttft": (1, int(number < bad))}
        )
        for number in range(events)
    ]
    stages = (SweptStage(0, "grid", 2.0, 0.0, span_s),)
    capacities = estimate_capacity(Record((TTFT,), tuple(requests), stages, cut=True)).capacities
    verdicts = {"holds": "not_reached", "fails": "below", "undecided": "not_enough_data"}
    assert capacities[0].verdict == verdicts[claim]
    text = reported(probes(events, bad), kind="sweep", capacities=capacities)
    assert words(capacities) in text.replace("\\", "")
    says(text, claim)
    result = Result("r", "sweep", 0.0, 60.0, "", MeasuredTarget(), Load(), (), slos=(TTFT,), capacities=capacities)
    assert isinstance(size(result, Demand(1.0), 1), Size) == (claim == "holds")


@pytest.mark.parametrize(("events", "bad"), CASES)
def test_page_api_and_watch_have_the_word_of_the_window(events: int, bad: int) -> None:
    """The same one, and no word about a rate."""
    state, why = compliance(TTFT, STREAM, events, bad, trusted=True, quiet_s=1.0)
    status = SloStatus(TTFT, STREAM.workload, events, bad, 0.0, state, why)
    word = status.state.replace("_", " ")
    answer = SloAnswer.model_validate(status)
    assert answer.state == status.state
    assert f": {word}, " in answer.words(60.0)
    values = {"target": scenes.replace(scenes.target(), slos=[answer]), "now": 60.0}
    page = TEMPLATES.get_template("slos.html").render(values)
    assert COMPLIANCE.findall(page) == [word]
    assert not re.search(r"\b(holds|fails|undecided)\b", page)

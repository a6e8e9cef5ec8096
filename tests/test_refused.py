"""Refused requests count as one thing in everything that judges."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prober.cli.exit_codes import ExitCode
from prober.features.capacity.sweep_result import has_capacity
from prober.features.experiments import matrix
from prober.features.experiments.instance_sizing import Demand, Refused, size
from prober.features.experiments.report.report import html, markdown
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.results.comparison import from_object
from prober.results.refused_requests import RefusedRequests, refused_requests
from prober.results.result_file import from_json, to_json
from prober.results.stage import stage_of
from tests.commands import prober
from tests.refusals import (
    AT_MOST,
    RATE_PER_S,
    REASON,
    REQUESTS,
    ROW,
    SUCCESS,
    gated,
    kept,
    probe,
    probes,
    rowed,
    swept,
    verdicts,
)

SHARES = [AT_MOST + 1, round(0.63 * REQUESTS), REQUESTS]
JUDGED = {
    "matrix": ("accepted", ExitCode.OK),
    "gate": ("ready", ExitCode.OK),
    "sweep": ("not_reached", ExitCode.OK),
    "compare": ("done", ExitCode.OK),
    "plan": ("done", ExitCode.OK),
    "report": ("not_reached", ExitCode.OK),
}


def of_turns(refuses_from: int, turns: int = 8) -> list[ProbeResult]:
    """Twelve sessions, each refused from this turn on."""
    return [
        probe(n, Outcome.OK if n % turns + 1 < refuses_from else Outcome.REJECTED, workload=f"chat_turn{n % turns + 1}")
        for n in range(12 * turns)
    ]


@pytest.mark.parametrize("refused", [0, AT_MOST])
def test_up_to_5_percent_of_refused_requests_leave_every_verdict_as_it_is(refused: int) -> None:
    """Those that are refused are no event of an SLO."""
    said = verdicts(refused)
    assert said.pop("run") == (f"{REQUESTS - refused} events of an SLO", ExitCode.OK)
    assert said == JUDGED


@pytest.mark.parametrize("refused", SHARES)
def test_above_5_percent_of_refused_requests_nothing_is_judged(refused: int) -> None:
    """One verdict and one exit code of all commands; a report is written all the same."""
    said = dict(verdicts(refused))
    assert said.pop("report") == ("not_judged", ExitCode.OK)
    assert said.pop("run") == (f"{REQUESTS - refused} events of an SLO", ExitCode.OK)
    assert said == dict.fromkeys(("matrix", "gate", "sweep", "compare", "plan"), ("not_judged", ExitCode.NOT_JUDGED))


@pytest.mark.parametrize("outcome", [Outcome.INVALID, Outcome.CANCELLED, Outcome.OVER_BUDGET])
def test_requests_that_the_prober_spoilt_are_not_refused(outcome: Outcome) -> None:
    """They are in neither number of the share."""
    sent = probes(AT_MOST, outcome)
    assert refused_requests(sent) == RefusedRequests(0, REQUESTS - AT_MOST)
    assert rowed(sent).state == "accepted"
    mixed = [*sent, probe(REQUESTS, Outcome.REJECTED)]
    assert refused_requests(mixed) == RefusedRequests(1, REQUESTS - AT_MOST + 1, REASON, "")


def test_failures_beside_refused_requests_are_judged_only_without_too_many_of_them() -> None:
    """A verdict against the target needs requests that it accepts, too."""
    failing = [replace(one, outcome=Outcome.HTTP_5XX) if n % 2 else one for n, one in enumerate(probes(0))]
    assert (rowed(failing).state, gated(failing).state) == ("rejected", "not_ready")
    assert swept(failing)[0].verdict == "below"
    refusing = [probe(n, Outcome.REJECTED) if n % 4 == 0 else one for n, one in enumerate(failing)]
    assert {rowed(refusing).state, gated(refusing).state, swept(refusing)[0].verdict} == {"not_judged"}


@pytest.mark.parametrize("refused", [AT_MOST // 2, AT_MOST])
def test_few_refused_requests_are_shown_beside_the_verdict(refused: int) -> None:
    """With their number and the server's words."""
    sent, text = probes(refused), f"{refused} of {REQUESTS} requests refused: {REASON}"
    assert rowed(sent).why.endswith(text)
    assert "requests refused: HTTP 400" in gated(sent).why
    result = swept(sent)[1]
    assert result.capacity_words() == f"success holds at 2/s; no knee was reached; {text}"
    for document in (markdown([result]), html([result])):
        assert document.count("requests refused: HTTP 400") == 2, "in the verdict, and among the outcomes"


@pytest.mark.parametrize(
    ("name", "sent", "place"),
    [
        ("a turn", of_turns(6), ", from turn 6"),
        ("all turns", of_turns(1), ""),
        ("a series", [probe(n, workload="rag") for n in range(50)]
            + [probe(n, Outcome.REJECTED, workload="rag_cold") for n in range(9)], ", only in rag_cold"),
        ("some of a series", [probe(n, workload="rag_cold" if n % 2 else "rag") for n in range(50)]
            + [probe(n, Outcome.REJECTED, workload="rag_cold") for n in range(9)], ", only in rag_cold"),
        ("an adapter", [probe(n, adapter="sql") for n in range(50)]
            + [probe(n, Outcome.REJECTED, adapter="law") for n in range(9)], ", only for adapter law"),
        ("by chance", [probe(n, workload=f"chat_turn{n % 8 + 1}") for n in range(96)]
            + [probe(n, Outcome.REJECTED, workload="chat_turn3") for n in range(1)], ""),
    ],
)  # fmt: skip
def test_the_place_where_requests_are_refused_is_named(name: str, sent: list[ProbeResult], place: str) -> None:
    """A turn from which they are, a series or an adapter; nothing that chance explains, or where all are refused."""
    assert str(refused_requests(sent)).endswith(REASON + place), name


def test_words_that_differ_in_numbers_are_one_reason_and_statuses_are_not() -> None:
    """The most frequent one is quoted."""
    details = ["HTTP 400: 9001 tokens are too many.", "HTTP 400: 9002 tokens are too many.", "HTTP 401: no key"]
    sent = [replace(probe(n, Outcome.REJECTED), detail=detail) for n, detail in enumerate(details)]
    assert str(refused_requests(sent[:2])) == "2 of 2 requests refused: HTTP 400: 9001 tokens are too many"
    assert str(refused_requests(sent)) == "3 of 3 requests refused: most often HTTP 400: 9001 tokens are too many"


def test_rates_count_what_was_answered_of_what_was_offered() -> None:
    """Three eighths are refused: five eighths of the rate; of the tokens the mean is not known, as those refused are longer."""
    sent = of_turns(6)
    stage = stage_of(
        *("a", RATE_PER_S, sent), origin_ns=0, begin_ns=0, sending_s=len(sent) / RATE_PER_S, slos=(SUCCESS,)
    )
    assert (stage.at_rate.requests_per_s, stage.at_rate.good_per_s) == (RATE_PER_S * 5 / 8, RATE_PER_S * 5 / 8)
    assert (stage.answered, stage.good, stage.at_rate.output_tokens_per_s) == (60, 60, None)
    assert str(stage.refused) == f"36 of 96 requests refused: {REASON}, from turn 6"
    assert rowed(sent).why == str(stage.refused)


def test_a_load_that_is_refused_says_so_and_judges_nothing() -> None:
    """A load is not judged, whatever becomes of it; one row that is not judged leaves the matrix not judged."""
    load = matrix.judge(ROW.model_copy(update={"beside": "a"}), probes(REQUESTS), error=1.0, burst_s=0.0)
    assert (load.state, load.why) == ("load", f"load beside a; 200 of 200 requests refused: {REASON}")
    accepted, refused = rowed(probes(0)), rowed(probes(REQUESTS))
    assert matrix.overall([accepted, load]) == "accepted"
    assert matrix.overall([accepted, refused, load]) == "not_judged"
    assert matrix.decision([accepted, refused]) is None


def test_a_stage_that_is_refused_leaves_the_other_stages_of_a_sweep_judged() -> None:
    """Its rate is not said to hold, and with the requests of all stages fewer than 5% are refused."""
    for refused, holds_at in ((0, 2.0), (AT_MOST + 1, 1.0)):
        sent = [probe(n, one.outcome) for n, one in enumerate([*probes(0), *probes(refused)])]
        finished, result = swept(sent, (1.0, 2.0))
        assert (finished.verdict, result.capacities[0].lower, result.refused.is_too_many) == (
            "not_reached",
            holds_at,
            False,
        )
    assert [stage.refused.is_too_many for stage in result.stages] == [False, True]


def test_a_refused_sweep_ends_when_that_is_shown_and_gives_no_capacity() -> None:
    """No headroom is made of it: an earlier answer stays; a target that refuses everything gets two requests."""
    finished, result = swept(probes(REQUESTS))
    assert (finished.reason, finished.detail) == ("refused", f"rejected: {REASON}")
    assert (result.stages[0].sent, result.capacities, has_capacity(result)) == (2, (), False)
    assert result.capacity_words() == f"not judged: 2 of 2 requests refused: {REASON}"


def test_a_kept_result_says_how_many_were_refused_and_why(tmp_path: Path) -> None:
    """Also one without its requests, as the daemon keeps it; a plan and a comparison from it quote it."""
    stored = swept(probes(AT_MOST + 1))[1].without_requests()
    result = from_json(to_json(stored), "x")
    assert result == stored
    text = f"11 of 200 requests refused: {REASON}"
    assert (str(result.refused), str(result.stages[0].refused)) == (text, text)
    refused = size(result, Demand(1.0), 1)
    assert isinstance(refused, Refused)
    assert text in refused.reason
    a, b, saved = kept(tmp_path, "a", probes(0)), kept(tmp_path, "b", probes(AT_MOST + 1)), tmp_path / "c.json"
    done = prober("compare", a, b, "--json", "--output", saved)
    assert json.loads(done.stdout)["llm_slo_prober"]["comparison"]["refused"]["B, grid 2/s"]["refused"] == 11
    comparison = from_object(json.loads(saved.read_text()), "c")
    assert (comparison.compared, comparison.risks, comparison.not_judged) == ((), (), [f"B, grid 2/s: {text}"])
    assert f"Not judged: B, grid 2/s: {text}" in prober("report", saved).stdout
    few = prober("compare", a, kept(tmp_path, "b", probes(AT_MOST)), "--json")
    assert f"B, grid 2/s: 10 of 200 requests refused: {REASON}" in few.stdout


def test_a_refused_result_is_no_baseline(tmp_path: Path) -> None:
    """Its latencies are those of the requests that were accepted."""
    baseline = kept(tmp_path, "b", probes(AT_MOST + 1))
    done = prober("gate", "http://127.0.0.1:1", "--workload", "probe", "--baseline", baseline, "--rate", "2/s")
    assert done.returncode == ExitCode.WRONG_CALL
    assert f"11 of 200 requests refused: {REASON}" in done.stderr

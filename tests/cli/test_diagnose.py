"""`prober diagnose`: its rows, and the daemon's diagnosis of its probes without a usual window."""

import json
from dataclasses import replace

import pytest

from prober.cli.diagnose import PROBES, not_diagnosed, rows
from prober.features.diagnosis.clues import Symptoms
from prober.features.diagnosis.diagnosis import diagnose
from prober.features.diagnosis.window import Failure, Reading, failures_of, window_features
from prober.measure.chunk import Usage
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.mock.delays import constant
from prober.mock.service import Behaviour, Settings
from tests.commands import prober
from tests.virtual_commands import beside, mock

TOKENS = 64


def probe(prompt: int, ttft_s: float, itl_s: float, outcome: Outcome = Outcome.OK) -> ProbeResult:
    first = round(ttft_s * 1e9)
    stamps = tuple(first + round(i * itl_s * 1e9) for i in range(TOKENS))
    usage = Usage(prompt, TOKENS, None)
    timeline = Timeline(0, sent_ns=0, first_ns=first, content_ns=stamps, end_ns=stamps[-1], usage=usage)
    return ProbeResult("t", "varied", "id", 0.0, outcome, "", timeline, requested_prompt_tokens=prompt)


def probes(token_s: float, itl_s: float) -> list[ProbeResult]:
    """Prompts of 100 to 1,575 tokens, each of whose tokens takes so long."""
    return [probe(100 + 25 * n, 0.02 + (100 + 25 * n) * token_s, itl_s) for n in range(PROBES)]


def page(queue_s: float | None) -> list[Reading]:
    """Two readings, ten requests between them."""
    return [
        (
            count,
            EngineSignals(
                EngineInfo("vllm"),
                requests_running=1.0,
                requests_waiting=0.0,
                queue_seconds=None if queue_s is None else EngineHistogram((1.0,), (count, count), count * queue_s),
            ),
        )
        for count in (0.0, 10.0)
    ]


def test_all_probes_are_sent_and_answered() -> None:
    """A row for each third of the lengths; where nothing was slow, the document says so in place of a diagnosis."""
    with beside(mock(Settings(behaviour=Behaviour(ttft=constant(0.02), itl=constant(0.001))))) as (url,):
        done = prober("diagnose", url, "--json", "--tpot", "10s")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [(row["kind"], row["answered"], row["sent"]) for row in document["rows"]] == [("varied", 20, 20)] * 3
    assert document["diagnosis"] is None
    assert document["not_diagnosed"] == "Nothing was slow: no probe was above --tpot 10 s."


def test_rows_have_the_medians_of_similar_lengths() -> None:
    """Of the answered probes, with the number sent; probes of one length are one row."""
    short, _, long = rows([*probes(1e-4, 0.01), probe(5_000, 9.0, 0.01, Outcome.RESET)])
    assert (short.answered, short.sent, long.answered, long.sent) == (20, 20, 20, 21)
    assert (short.prompt_tokens, long.prompt_tokens) == (337.5, 1337.5)
    assert short.ttft_s == pytest.approx(0.05375)
    assert long.tpot_s == pytest.approx(0.01)
    assert [row.sent for row in rows([probe(100, 0.1, 0.01)] * 9)] == [9]


def test_a_missed_threshold_is_diagnosed_without_a_usual_window() -> None:
    """A prefill over the TTFT threshold, and steps over the TPOT threshold; without a missed threshold unknown."""

    def regimes(token_s: float, itl_s: float, queue_s: float | None, breached: dict[str, float]) -> tuple[str, ...]:
        features = window_features(probes(token_s, itl_s), page(queue_s))
        return diagnose(Symptoms(features, breached=breached, engine="vllm")).regimes

    assert regimes(2e-4, 0.01, 0.001, {"ttft": 0.25}) == ("slow_prefill",)
    assert regimes(2e-4, 0.01, None, {"ttft": 0.25}) == ("slow_prefill",), "nobody waits, by the page"
    assert regimes(1e-5, 0.01, 0.4, {"ttft": 0.3}) == ("queueing",)
    assert regimes(1e-5, 0.06, 0.001, {"tpot": 0.03}) == ("slow_decode",)
    assert regimes(2e-4, 0.06, 0.001, {}) == ("unknown",)


def test_failures_are_named_by_their_kind_and_the_words_of_the_server() -> None:
    """The most frequent first. Texts that differ in a number are one kind, but not those of another status."""
    failed = probe(100, 0.1, 0.01, Outcome.RESET)
    missing = replace(failed, outcome=Outcome.HTTP_404, detail="HTTP 404: no model 'x'")
    found = failures_of([failed, missing, missing])
    assert found[0] == Failure("http_404", "HTTP 404: no model 'x'", 2)
    assert found[0].text() == "2 × http_404: HTTP 404: no model 'x'"
    assert [failure.outcome for failure in found] == ["http_404", "reset"]
    details = [
        f"HTTP {status}: {tokens} tokens are too many" for status, tokens in ((400, 2059), (400, 2061), (422, 9))
    ]
    assert [failure.text() for failure in failures_of(replace(missing, detail=detail) for detail in details)] == [
        "2 × http_404: such as HTTP 400: 2059 tokens are too many",
        "1 × http_404: HTTP 422: 9 tokens are too many",
    ]


@pytest.mark.parametrize(
    ("outcome", "limits_s", "reason"),
    [
        (Outcome.OK, {"ttft": 0.15}, ""),
        (Outcome.OK, {"ttft": 0.5, "tpot": 0.009}, ""),
        (
            Outcome.OK,
            {"ttft": 0.5, "tpot": 0.03},
            "Nothing was slow: no probe was above --ttft 500 ms or --tpot 30 ms.",
        ),
        (Outcome.OK, {}, "No limit was given, so nothing is called slow: --ttft and --tpot say what is too slow."),
        (Outcome.RESET, {"ttft": 0.2}, "No probe was answered, so there is no latency to explain."),
    ],
)
def test_nothing_is_diagnosed_where_nothing_was_slow(outcome: Outcome, limits_s: dict[str, float], reason: str) -> None:
    """Nor where no limit says what is slow. The longest TTFT is 178 ms, the TPOT 10 ms."""
    results = [replace(result, outcome=outcome) for result in probes(1e-4, 0.01)]
    assert not_diagnosed(results, limits_s).startswith(reason)
    assert bool(not_diagnosed(results, limits_s)) == bool(reason)

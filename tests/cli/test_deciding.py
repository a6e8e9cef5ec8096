"""`prober gate` and `prober compare` as a pipeline runs them, beside mock engines in virtual time."""

import asyncio
import json
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prober.features.experiments.compare_run import gpu_text
from prober.features.experiments.report import comparison_report
from prober.features.experiments.result_reader import read_all
from prober.measure.gpu_reading import GpuReading
from prober.mock.delays import constant, lognormal
from prober.mock.faults import Fault
from prober.mock.service import Behaviour, Settings
from prober.results.comparison import Comparison
from prober.results.steadiness import LOOKS
from prober.workload.shapes import LengthDistribution
from tests.commands import prober as call
from tests.virtual_commands import beside, mock

RATE = ("--rate", "50/s", "--burst", "0s")  # no blocks of time
QUICK = Settings(behaviour=Behaviour(ttft=constant(0.02), itl=constant(0.001)))


def settings(ttft: LengthDistribution, itl: LengthDistribution, *, model: str = "mock") -> Settings:
    return Settings(model=model, behaviour=Behaviour(ttft=ttft, itl=itl), seed=3)


def prober(*arguments: object) -> tuple[int, Any, str]:
    """Exit code, the comparison or the result with its verdict in the JSON object printed, standard error."""
    done = call(*arguments, "--json")
    own = json.loads(done.stdout)["llm_slo_prober"] if done.stdout else {}
    (verdict,) = own.get("verdicts", [{}])
    return done.returncode, own.get("comparison", own.get("result", {}) | verdict), done.stderr


def test_a_good_target_is_ready() -> None:
    """Exit code 0 within the requests it takes, each question answered, the engine named."""
    with beside(mock(QUICK)) as (url,):
        code, answer, err = prober("gate", url, "--slo", "ttft<2s:90%", "--slo", "success:90%", *RATE)
    assert (code, answer["state"]) == (0, "ready"), (answer, err)
    assert 34 <= answer["requests"] <= 100
    assert [(finding["name"], finding["evidence"]) for finding in answer["findings"]] == [
        ("answers", "holds"),
        ("ttft", "holds"),
        ("success", "holds"),
    ]
    assert 0 < answer["error"] <= 0.05
    assert (answer["target"]["model"], answer["target"]["engine_version"]) == ("mock", "0.32.0")


def test_a_gate_lasts_until_bursts_would_have_shown() -> None:
    """34 blocks of 0.5 s for bursts of 1 s, however many requests they have, as it says before."""
    with beside(mock(QUICK)) as (url,):
        code, answer, err = prober("gate", url, "--slo", "ttft<2s:90%", "--rate", "50/s", "--burst", "1s")
    assert (code, answer["state"]) == (0, "ready"), (answer, err)
    assert min(finding["blocks"] for finding in answer["findings"]) == 34
    assert answer["requests"] == pytest.approx(851, rel=0.05)
    assert (
        "takes 34 blocks of 0.5 s (17 s, about 851 requests) at least; it ends after at most 2,553 requests (51 s)"
        in err
    )
    assert "\nJudged: that it answers, ttft<2s:90%.\n" in err


@pytest.mark.parametrize("options", [("--warm-up", "10"), ("--warm-up", "0", "--slo", "ttft<500ms:99%")])
def test_a_dead_port_is_not_ready_after_one_request(options: tuple[str, ...]) -> None:
    """The look-up of the model and one request find no server; no share is judged, so no error is stated, nor latency."""
    code, answer, err = prober("gate", "http://127.0.0.1:1", *options)
    assert (code, answer["state"], answer["requests"], answer["error"]) == (1, "not_ready", 1, None)
    assert answer["why"].startswith("nothing listens: connect_refused")
    assert "Judged: that it answers. Latency was not judged, as nothing listens." in err


def test_a_slow_target_is_degraded() -> None:
    """Exit code 3: it answers, but an SLO fails."""
    with beside(mock(QUICK)) as (url,):
        code, answer, _ = prober("gate", url, "--slo", "ttft<5ms:90%", *RATE)
    assert (code, answer["state"]) == (3, "degraded")
    assert answer["why"].startswith("fails: ttft")


@pytest.mark.parametrize(("fault", "seen"), [("http:500", "http_5xx"), ("truncated", "truncated")])
def test_a_failing_target_is_not_ready(fault: str, seen: str) -> None:
    """Exit code 1 after a few requests, with what failed."""
    with beside(mock(QUICK)) as (url,):
        code, answer, _ = prober("gate", url, *RATE, "--header", f"X-Mock-Fault: {fault}")
    assert (code, answer["state"]) == (1, "not_ready")
    assert answer["requests"] <= 6
    assert seen in answer["why"]


@pytest.mark.parametrize(("status", "verdict"), [(401, (4, "not_judged")), (429, (1, "not_ready"))])
def test_a_target_that_rejects_half_is_not_ready(status: int, verdict: tuple[int, str]) -> None:
    """It is not judged if the status counts in no SLO; it answers the other half well, and the warm-up."""
    half = tuple(Fault("http", status, start_s=0.08 * n, end_s=0.08 * n + 0.04) for n in range(600))
    with beside(mock(Settings(behaviour=QUICK.behaviour, faults=half))) as (url,):
        code, answer, err = prober("gate", url, "--slo", "ttft<2s:90%", *RATE)
    assert (code, answer["state"]) == verdict
    assert ("Judged: " in err) == (verdict[1] != "not_judged")


def test_what_cannot_be_told_is_not_enough_data(tmp_path: Path) -> None:
    """Exit code 4, and three sample prompts besides the most requests: a threshold at the median is missed by half, which may be.

    The delays of this seed are at no time mostly good or bad.
    """
    behaviour = Behaviour(ttft=lognormal(0.5, 0.5), itl=constant(0.001))
    truth = tmp_path / "truth.jsonl"
    with beside(mock(Settings(behaviour=behaviour, seed=7, truth=truth))) as (url,):
        code, answer, _ = prober("gate", url, "--slo", "ttft<510ms:50%", "--max-requests", "50", *RATE)
    assert (code, answer["state"], answer["requests"], answer["error"]) == (4, "not_enough_data", 50, None)
    assert len(truth.read_text().splitlines()) == 50 + 3


def test_a_wrong_call_is_none_of_the_verdicts(tmp_path: Path) -> None:
    """Exit code 2, with what to write: an expression, an impossible budget, a file that is no baseline."""
    nothing = tmp_path / "empty.json"
    nothing.write_text("{}")
    wrong = (
        (("--slo", "ttft<500:99%"), "is not a duration"),
        (("--slo", "ttft"), "write signal<threshold:objective"),
        (("--slo", "ttft<500ms:99.9%"), "takes 52,126 requests if all are good (3,475 blocks of 7.5 s at 2/s)"),
        (("--burst", "15"), "--burst: '15' is not a duration"),
        (("--margin", "0%"), "--margin: '0%' is nothing; use more than 0%"),
        (("--baseline", str(nothing)), "empty.json"),
        (("--unknown",), "No such option"),
    )
    for arguments, message in wrong:
        code, answer, err = prober("gate", "http://127.0.0.1:1", *arguments)
        assert (code, answer) == (2, {})
        assert message in err


def test_slower_than_its_baseline_is_degraded(tmp_path: Path) -> None:
    """A kept result is a baseline; as fast as it is ready, half as slow again is degraded; of another shape it is none."""
    saved = str(tmp_path / "baseline.json")
    fast, slow = (settings(lognormal(f * 0.3, 0.1), lognormal(f * 0.015, 0.1)) for f in (1.0, 1.5))
    with beside(mock(fast), mock(slow)) as (url, slower):
        code, _, err = prober("gate", url, "--slo", "success:95%", "--output", saved, *RATE)
        assert code == 0, err
        against = ("--baseline", saved, *RATE)
        again, answer, err = prober("gate", url, *against, "--margin", "25%")
        late, why, _ = prober("gate", slower, *against, "--margin", "10%")
        shape, _, other = prober("gate", url, *against, "--workload", "chat")
    assert again == 0, (answer, err)
    assert {finding["name"] for finding in answer["findings"][1:]} == {
        "ttft p50 of baseline",
        "ttft p90 of baseline",
        "tpot p50 of baseline",
    }
    assert (late, why["state"]) == (3, "degraded")
    assert "of baseline" in why["why"]
    assert shape == 2
    assert "of workload 'probe'" in other


def test_lengths_of_ones_own_and_workloads_of_a_file(tmp_path: Path) -> None:
    """The server receives the requested lengths; a baseline of the same name with other lengths is refused."""
    config, saved, truth = tmp_path / "prober.yaml", str(tmp_path / "kept.json"), tmp_path / "truth.jsonl"
    config.write_text("workloads: {mine: {prompt_tokens: 40, output_tokens: {uniform: {min: 3, max: 5}}}}")
    own, file = ("--prompt-tokens", "30", "--output-tokens", "6"), ("--config.file", str(config), "--workload", "mine")
    with beside(mock(replace(QUICK, truth=truth))) as (url,):
        code, answer, err = prober("gate", url, *own, "--slo", "success:97%", "--output", saved, *RATE)
        assert (code, answer["load"]["workload"]) == (0, "asked"), err
        records = [json.loads(line) for line in truth.read_text().splitlines()]
        same, _, _ = prober("gate", url, *own, "--baseline", saved, "--margin", "90%", *RATE)
        other, _, why = prober("gate", url, *own[:3], "7", "--baseline", saved, *RATE)
        mine, decision, _ = prober("gate", url, *file, *RATE)
    lengths = Counter(record["completion_tokens"] for record in records)
    assert max(lengths) == lengths.most_common(1)[0][0] == 6, "fewer: cut when the gate knew"
    assert (same, mine, decision["load"]["workload"]) == (0, 0, "mine")
    assert other == 2
    assert "other lengths" in why


def test_what_is_kept_and_is_no_baseline_is_said(tmp_path: Path) -> None:
    """34 requests decide a gate, and have no p90 to compare with; before it begins it says how many it takes."""
    saved = str(tmp_path / "kept.json")
    with beside(mock(QUICK)) as (url,):
        code, answer, err = prober("gate", url, "--output", saved, *RATE)
    assert (code, answer["state"]) == (0, "ready")
    assert "takes 34 requests (about 1 s) at least" in err
    assert "at most 1,000" in err
    assert "will not do as a baseline" in err


def test_a_warm_up_until_steady_ends_after_the_slow_answers_of_a_cold_engine() -> None:
    """Ten times as slow for 4 s; the slow answers are in the third that is left out."""
    engine = replace(
        settings(lognormal(0.02, 0.05), lognormal(0.001, 0.05)), faults=(Fault("latency", 10.0, 0.0, 4.0),)
    )
    with beside(mock(engine)) as (url,):
        _, answer, err = prober("gate", url, "--slo", "ttft<2s:90%", *RATE, "--warm-up", "steady")
    warm_up = answer["warm_up"]
    assert warm_up["is_steady"], err
    assert warm_up["requests"] in LOOKS
    assert warm_up["seconds"] > 6
    assert all(-0.2 < low <= 0.02 and -0.02 <= high < 0.2 for low, high in warm_up["changes"].values())


def test_a_comparison_says_which_warm_ups_were_steady() -> None:
    """Every turn has its own."""
    turns = ("--rate", "100/s", "--requests", "4", "--cool-down", "1ms", "--rounds", "9", "--warm-up", "steady")
    with beside(mock(QUICK)) as (url,):
        _, answer, _ = prober("compare", url, url, *turns)
    assert (
        "warm-up before each turn: 24 requests, which do not count; 18 of 18 warm-ups tested were shown to be steady"
        in answer["remarks"]
    )


TURNS = ("--rate", "100/s", "--requests", "10", "--cool-down", "1ms", "--warm-up", "1")


def test_a_comparison_is_kept_and_shown_again(tmp_path: Path) -> None:
    """The report equals the printed comparison, with load and settings."""
    saved = tmp_path / "versus.json"
    own = ("--prompt-tokens", "30", "--output-tokens", "6")
    with beside(mock(QUICK)) as (url,):
        code, answer, err = prober("compare", url, url, *TURNS, "--rounds", "9", *own, "--output", str(saved))
    assert code == 0, err
    (comparison,) = read_all(saved.read_text(), "versus.json")
    assert isinstance(comparison, Comparison)
    assert [axis.effect for axis in comparison.compared] == [axis["effect"] for axis in answer["compared"]]
    assert comparison.load is not None
    assert (comparison.load.workload, comparison.load.prompt_tokens) == ("asked", "fixed 30")
    assert json.loads(comparison.configuration or "")["rounds"] == 9
    assert (comparison.a.model, comparison.b.model) == ("mock", "mock")
    text = comparison_report.markdown([comparison])
    assert "| ttft_p50 |" in text
    assert all(f"{remark[0].upper()}{remark[1:]}." in text.replace("\\", "") for remark in comparison.remarks)


@asynccontextmanager
async def interrupted(number: signal.Signals, after_s: float) -> AsyncIterator[None]:
    """Send the command this signal after this time."""
    asyncio.get_running_loop().call_later(after_s, signal.raise_signal, number)
    yield


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("after_s", "code"), [(7.0, 0), (0.5, 4)])
def test_an_interrupted_comparison_keeps_its_whole_rounds(
    tmp_path: Path, number: signal.Signals, after_s: float, code: int
) -> None:
    """It says how many; before the end of the first one nothing can be compared."""
    saved = tmp_path / "comparison.json"
    engine = mock(settings(lognormal(0.03, 0.1), lognormal(0.002, 0.1)))
    with beside(engine, partial(interrupted, number, after_s)) as (url, _):
        done = call("compare", url, url, *TURNS, "--rounds", "40", "--output", saved, "--json")
    assert (done.returncode, saved.exists()) == (code, code == 0), done.stderr
    if code:
        assert "interrupted before the first round had ended" in done.stderr
        return
    [comparison] = read_all(saved.read_text(), "comparison.json")
    assert isinstance(comparison, Comparison)
    words = re.fullmatch("interrupted after ([0-9]+) of 40 rounds", comparison.remarks[0])
    assert words is not None
    assert 1 <= int(words[1]) < 40
    assert {axis.rounds for axis in comparison.compared} == {int(words[1])}


def test_equals_show_no_difference_and_30_percent_is_found() -> None:
    """Of itself nothing is claimed, on any axis; of the slower one TTFT, TPOT and E2E, and that it is another model."""
    a, b = (
        settings(lognormal(factor * 0.03, 0.1), lognormal(factor * 0.002, 0.1), model=model)
        for factor, model in ((1.0, "one"), (1.3, "two"))
    )
    with beside(mock(a), mock(b)) as (first, second):
        code, equal, err = prober("compare", first, first, *TURNS, "--rounds", "11")
        status, slower, why = prober("compare", first, second, *TURNS, "--rounds", "9")
    assert (code, status) == (0, 0), err + why
    axes = {axis["axis"]: axis for axis in equal["compared"]}
    assert [axis["better"] for axis in axes.values()] == [None] * 7, equal
    assert axes["ttft_p50"]["lower"] < axes["ttft_p50"]["effect"] < axes["ttft_p50"]["upper"]
    assert [axes["ttft_p50"][side]["count"] for side in "ab"] == [110, 110]
    assert equal["differs"] == []
    axes = {axis["axis"]: axis for axis in slower["compared"]}
    for axis in ("ttft_p50", "tpot_p50", "e2e_p50"):
        assert axes[axis]["better"] == "a", axes[axis]
        assert axes[axis]["effect"] == pytest.approx(0.3, abs=0.12)
    assert ["model", "one", "two"] in slower["differs"]
    assert any("models" in remark for remark in slower["remarks"])


@pytest.mark.parametrize(("factor", "tolerance"), [(4.0, 0.6), (1.3, 0.12)], ids=["large", "small"])
def test_the_cost_of_structured_output_is_found(factor: float, tolerance: float) -> None:
    """The same prompts to one engine with and without a JSON format: so much more TTFT and TPOT, and how many answers are valid."""
    engine = Settings(behaviour=Behaviour(lognormal(0.06, 0.1), lognormal(0.004, 0.1), json_factor=factor), seed=3)
    formatted = '{"response_format": {"type": "json_object"}}'
    own = ("--prompt-tokens", "30", "--output-tokens", "12", "--b-sampling", formatted)
    with beside(mock(engine)) as (url,):
        code, answer, err = prober("compare", url, url, *TURNS, "--rounds", "12", *own)
    assert code == 0, err
    axes = {axis["axis"]: axis for axis in answer["compared"]}
    for axis in ("ttft_p50", "tpot_p50"):
        assert axes[axis]["better"] == "a", json.dumps([axes[axis], answer["remarks"]])
        assert axes[axis]["effect"] == pytest.approx(factor - 1, abs=tolerance)
    fields = '{"temperature": 0, "response_format": {"type": "json_object"}}'
    assert ["request fields", '{"temperature": 0}', fields] in answer["differs"]
    assert "0 of 120 checked answers of B are wrong" in answer["remarks"]
    assert any(remark.startswith("A counts 12 output_tokens a request, B 7:") for remark in answer["remarks"])


def test_wrong_answers_to_the_same_requests_are_compared() -> None:
    """A side that breaks a third of its JSON is worse; two that break as much are not, though their latencies are compared too."""
    behaviour = Behaviour(ttft=constant(0.02), itl=constant(0.001))
    good = Settings(behaviour=behaviour, seed=3)
    bad = replace(good, faults=(Fault("broken_json", share=1 / 3),))
    own = (
        "--prompt-tokens",
        "30",
        "--output-tokens",
        "12",
        "--sampling",
        '{"response_format": {"type": "json_object"}}',
    )
    with beside(mock(good), mock(bad)) as (first, second):
        (code, answer, err), (status, equal, why) = (
            prober("compare", side, second, *TURNS, "--rounds", "9", *own) for side in (first, second)
        )
    assert (code, status) == (0, 0), err + why
    (found,) = answer["answers"]
    assert (found["check"], found["pairs"], found["only_a_wrong"], found["both_wrong"]) == ("json_schema", 90, 0, 0)
    assert 15 <= found["only_b_wrong"] <= 45
    assert (found["better"], found["p_adjusted"] < 1e-4) == ("a", True)
    (same,) = equal["answers"]
    assert same["better"] is None


def test_what_cannot_be_compared_says_why(tmp_path: Path) -> None:
    """A side that does not answer: 1. Too few rounds for any claim, or a file against an address: 2."""
    with beside(mock(QUICK)) as (url,):
        code, _, err = prober("compare", url, "http://127.0.0.1:1", *TURNS)
        assert code == 1
        assert "B (http://127.0.0.1:1/v1) answers nothing: connect_refused" in err
        code, _, err = prober("compare", url, url, "--rounds", "8")
        assert code == 2
        assert "fewer than 9" in err
        saved = tmp_path / "kept.json"
        saved.write_text("{}")
        code, _, err = prober("compare", url, str(saved))
        assert code == 2
        assert "two addresses, or two files" in err


def card(warmth_c: float, clock_hertz: float) -> list[GpuReading]:
    return [GpuReading(0, "u", "n", temperature_celsius=warmth_c, sm_clock_hertz=clock_hertz)]


def test_heat_and_clocks_are_told_beside_the_figures() -> None:
    """Alike, apart, and unknown where no GPU of this machine tells."""
    fast, slow = card(60.0, 1.9e9), card(60.0, 1.5e9)
    assert "unknown" in gpu_text({"a": [fast], "b": []})
    same = gpu_text({"a": [fast], "b": [fast]})
    assert same == "GPUs of this machine: A at 60 °C and 1900 MHz, B at 60 °C and 1900 MHz, alike"
    apart = gpu_text({"a": [fast], "b": [fast, slow]})
    assert "B at 60 °C and 1700 MHz, so the difference may be theirs" in apart


def test_two_kept_results_are_compared(tmp_path: Path) -> None:
    """Of the same shape and rate; that they were not taken in turn is said."""
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]

    def keep(factor: float, saved: str) -> int:
        with beside(mock(settings(lognormal(factor * 0.02, 0.1), lognormal(factor * 0.002, 0.1)))) as (url,):
            code, _, _ = prober("gate", url, "--slo", "success:97%", "--output", saved, *RATE)
            return code

    assert [keep(1.0, files[0]), keep(1.3, files[1])] == [0, 0]
    code, answer, err = prober("compare", *files, "--rounds", "10")
    assert code == 0, err
    axes = {axis["axis"]: axis["better"] for axis in answer["compared"]}
    assert axes["tpot_p50"] == "a"
    assert "not in turn" in answer["remarks"][0]

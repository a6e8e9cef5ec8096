"""What people send today, and what is said of it: `prober once` and the commands that judge, against a server that knows the truth."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.traffic.answers import Answer, Exchange
from tests.traffic.cases import BUDGETS, RUNS
from tests.traffic.play import once, run, spend
from tests.traffic.probe_cases import CASES
from tests.traffic.verdicts import ProbeCase, RunCase, Verdict

TOLERANCE = 0.1  # of the mean pause between two pieces, as the server measured it
RESERVED = 200  # tokens of at most two probes under way


def named(cases: Sequence[ProbeCase | RunCase]) -> list[ParameterSet]:
    return [pytest.param(case, id=case.name) for case in cases]


def is_near(value: float | None, truth: float | None, pause_s: float) -> bool:
    return value is not None and truth is not None and abs(value - truth) <= TOLERANCE * pause_s


def usage_faults(usage: dict[str, Any] | None, truth: Exchange) -> list[str]:
    answer = truth.reply
    if not isinstance(answer, Answer) or not answer.has_usage or answer.stop is None or answer.error:
        return [] if usage is None else [f"a usage that was not sent: {usage}"]
    if usage is None:
        return ["no usage"]
    # A server that counts the reasoning apart may be read either way: as it counts, or with the reasoning in the sum, as others count.
    sums = {answer.tokens, answer.tokens - answer.reasoning_tokens * answer.excludes_reasoning}
    due = {"prompt_tokens": {truth.prompt_tokens}, "completion_tokens": sums}
    return [f"{name} {usage[name]}, due {tokens}" for name, tokens in due.items() if usage[name] not in tokens]


def faults_of(verdict: Verdict, result: dict[str, Any], words: str, truth: Exchange) -> list[str]:
    """What the result says that is not so."""
    faults, pause_s = [], truth.mean_pause_s
    outcomes = verdict.outcome.removeprefix("!").split("|")
    if (result["outcome"] in outcomes) == verdict.outcome.startswith("!"):
        faults.append(f"outcome {result['outcome']}, due {verdict.outcome}: {result['detail']}")
    ttft, ttft_answer, tpot = result["ttft_s"], result["ttft_answer_s"], result["tpot_s"]
    if (ttft is not None) != verdict.ttft or (verdict.ttft and not is_near(ttft, truth.ttft_s, pause_s)):
        faults.append(f"ttft {ttft}, due {truth.ttft_s}")
    is_answer = is_near(ttft_answer, truth.ttft_answer_s, pause_s)
    right = {"answer": is_answer, "none": ttft_answer is None, "either": is_answer or ttft_answer is None, "any": True}
    if not right[verdict.ttft_answer]:
        faults.append(f"ttft_answer {ttft_answer}, due {verdict.ttft_answer} {truth.ttft_answer_s}")
    is_pace = is_near(tpot, truth.pace_s, pause_s)
    is_reason = tpot is None and bool(result["why_no_tpot"])
    if not {"pace": is_pace, "pace or reason": is_pace or is_reason, "none": tpot is None}[verdict.tpot]:
        faults.append(f"tpot {tpot} ({result['why_no_tpot']}), due {verdict.tpot} {truth.pace_s}")
    faults += usage_faults(result["usage"], truth)
    if verdict.calls is not None and result["calls"] != verdict.calls:
        faults.append(f"calls {result['calls']}, due {verdict.calls}")
    said = f"{result['outcome']}: {result['detail']}; {result['why_no_tpot']}\n{words}"
    if not re.search(verdict.says, said, re.IGNORECASE):
        faults.append(f"does not say {verdict.says}: {said}")
    if re.search(verdict.never, said):
        faults.append(f"says {verdict.never}: {said}")
    return faults


@pytest.mark.parametrize("case", named(CASES))
def test_one_answer_is_told_as_it_was(case: ProbeCase, tmp_path: Path) -> None:
    """Outcome, times, counts and words of a probe are those of the server, whatever is hidden, forced or refused."""
    result, words, truth = once(case, tmp_path)
    faults = faults_of(case.verdict, result, words, truth)
    faults += [f"request lacks {name}" for name in case.present if name not in truth.body]
    faults += [f"request has {name}" for name in case.absent if name in truth.body]
    faults += [f"request has another {name}" for name, value in case.sampling.items() if truth.body.get(name) != value]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("case", named(RUNS))
def test_many_requests_are_judged_as_they_were(case: RunCase, tmp_path: Path) -> None:
    """A command judges what was answered, says what was refused, and sends turns in their order."""
    done, after, exchanges = run(case, tmp_path)
    said = done.stdout + done.stderr
    assert done.returncode in case.exits, f"exit code {done.returncode}, due {case.exits}\n{said}"
    assert re.search(case.says, said, re.IGNORECASE), f"does not say {case.says}\n{said}"
    assert not re.search(case.never, said), f"says {case.never}\n{said}"
    if case.truth is not None:
        case.truth(exchanges)
    if case.then is not None:
        assert after is not None
        _, exits, says = case.then
        assert after.returncode in exits, after.stdout + after.stderr
        assert re.search(says, after.stdout + after.stderr, re.IGNORECASE), (
            f"does not say {says}\n{after.stdout}{after.stderr}"
        )


@pytest.mark.virtual_time
async def test_a_budget_is_charged_with_what_was_answered(tmp_path: Path, garbage_collector: None) -> None:
    """An answer without usage and content costs nothing; any other costs its usage, or what was asked for."""
    spent = await spend(BUDGETS, tmp_path)
    faults = []
    for case in BUDGETS:
        tokens, exchanges = spent[case.name]
        lowest, highest = case.spent(exchanges)
        if not lowest <= tokens <= highest + RESERVED:
            faults.append(f"{case.name}: {tokens} tokens spent, due {lowest} to {highest} and {RESERVED}")
        if case.truth is not None:
            try:
                case.truth(exchanges)
            except AssertionError as fault:
                faults.append(f"{case.name}: {fault}")
    assert not faults, "\n".join(faults)

"""Workload matrix: schedule, load and verdict of each row.

accepted: every objective holds, each with an error of at most `ERROR`; so "accepted" is wrong with at most that probability
rejected: an objective fails, with an error of `ERROR` shared among all objectives of all rows
not_enough_data: the requests prove neither, or the row was interrupted (cancelled requests would be the slow ones)
not_judged: too many requests were refused (`results.refused_requests`)

"All rows are accepted" and "a row is rejected" are each wrong with a probability of at most `ERROR`, for any number of rows.
The test and its observations, blocks of time, are those of the gate (`results.judgement`), with another test at the end of the row.

A closed loop keeps a fixed number of requests in flight, as other tools do, for comparison with them. Its requests are due
when they can be sent, because there is no other intended time.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from random import Random
from typing import Literal

from prober.config.rows import Row
from prober.config.units import counted
from prober.measure.outcome import BAD, Outcome
from prober.measure.result import ProbeResult
from prober.results.cost import CostFinding
from prober.results.judgement import SEQUENTIAL_SHARE, Finding, Judgement, Question, block_s, slo_question, together
from prober.results.refused_requests import NOT_COUNTED, refused_requests
from prober.results.result import Decision, Load, Stage
from prober.results.stage_parts import most_often
from prober.statistics.sequential_test import ERROR, Evidence
from prober.workload.arrivals import poisson
from prober.workload.workloads import Mix, Workload, unchecked_formats

State = Literal["accepted", "rejected", "not_enough_data", "not_judged"]
STATES: dict[Evidence, State] = {"holds": "accepted", "fails": "rejected", "undecided": "not_enough_data"}
CLOSED_LOOP = (
    "a closed loop asks a slow target less, so that its queue is not seen (coordinated omission): to compare with other tools, "
    "not what users feel"
)
USERS = (
    "each user waits for an answer, then thinks, so a slow target is asked less: users who come whatever the target does are another "
    "question (`prober sweep` over rates)"
)
THINK_TIME = (
    "sessions begin by the schedule, at the rate ÷ their turns, whatever the target does; a later turn is due its think time after "
    "the answer before it, so a slow target gets later turns later"
)
OWN_ANSWERS_DIFFER = (
    "later turns have the server's own answers, so their prompts differ from run to run (`sessions.answers: filler`)"
)
ADAPTERS_OF_SESSIONS = (
    "first uses of adapters and requests to loaded ones may be at other turns of their sessions: a part of their difference in TTFT "
    "is that of the prompts"
)


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """Verdict on a row. name: its stage; why: the observed figures; findings: one per objective

    state: "load" if the row is sent as load beside another row
    """

    name: str
    state: State | Literal["load"]
    why: str
    findings: tuple[Finding, ...]


def fails_error(rows: Sequence[Row]) -> float:
    """Error allowed for the claim that one objective of one row fails: ERROR shared among all objectives of all rows."""
    return ERROR / max(1, sum(len(_questions(row)) for row in rows))


def judge(
    row: Row,
    results: Sequence[ProbeResult],
    *,
    error: float,
    burst_s: float,
    loading: int = 0,
    interrupted: bool = False,
) -> RowVerdict:
    """Judge all results of a row, in order of their due times.

    error: see `fails_error`
    burst_s: longest expected burst of bad results; 0: bad results are independent
    loading: requests not sent because the engine reported that it loads or shuts down
    """
    refused = refused_requests(results)
    if row.beside is not None:
        return RowVerdict(stage_name(row), "load", _joined(f"load beside {row.beside}", str(refused)), ())
    questions = _questions(row)
    judgement = Judgement((question for _, question in questions), burst_s)
    for result in results:
        judgement.take(result, result.timeline.intended_ns / 1e9)
    judgement.close_block()  # judge what has ended completely
    findings = tuple(question.finding(ERROR, error, at_end=not interrupted) for _, question in questions)
    if refused.is_too_many:
        return RowVerdict(stage_name(row), "not_judged", str(refused), findings)
    if interrupted:
        why = _joined(f"interrupted after {counted(len(results), 'request')}", str(refused))
        return RowVerdict(stage_name(row), "not_enough_data", why, findings)
    shown = together(finding.evidence for finding in findings)
    whys = [
        finding.text(objective)
        for (objective, _), finding in zip(questions, findings, strict=True)
        if finding.evidence == shown
    ]
    if shown == "fails":
        whys.append(_most_often(results, BAD, "failed"))
    elif shown == "undecided":
        whys.append(_most_often(results, NOT_COUNTED, "not counted"))
        if loading:
            whys.append(f"{counted(loading, 'request')} not sent: the engine said that it is loading or shutting down")
    return RowVerdict(stage_name(row), STATES[shown], _joined(*whys, str(refused)), findings)


def with_cost(verdict: RowVerdict, cost: CostFinding) -> RowVerdict:
    """Apply a cost target's result to a row's verdict. It changes only if all objectives are accepted."""
    if verdict.state != "accepted":
        return verdict
    return replace(verdict, state=STATES[cost.evidence], why=cost.joined(verdict.why))


def not_begun(row: Row) -> RowVerdict:
    """Verdict on a row that was not started because of an interruption."""
    return RowVerdict(stage_name(row), "not_enough_data" if row.beside is None else "load", "not begun", ())


def overall(verdicts: Sequence[RowVerdict]) -> State:
    """State of all rows: rejected, not_judged or not_enough_data if any row is, in this order; else accepted."""
    states = {verdict.state for verdict in verdicts}
    order: tuple[State, ...] = ("rejected", "not_judged", "not_enough_data")
    return next((state for state in order if state in states), "accepted")


def sentences(verdicts: Sequence[RowVerdict]) -> str:
    """A sentence for each verdict."""
    return ". ".join(f"{verdict.name}: {verdict.state.replace('_', ' ')} ({verdict.why})" for verdict in verdicts)


def decision(verdicts: Sequence[RowVerdict]) -> Decision | None:
    """Decision to store with the result: accepted if all rows are, rejected if one is, else None."""
    state = overall(verdicts)
    return Decision(state == "accepted", sentences(verdicts)) if state in ("accepted", "rejected") else None


def needs(row: Row, error: float, burst_s: float) -> Iterator[tuple[str, bool]]:
    """For each objective, a sentence (without full stop) on what a decision needs, and True if the row sends too little for it.

    error, burst_s: see `judge`
    """
    length_s = block_s(burst_s)
    for objective, question in _questions(row):
        budget = question.budget
        blocks = [
            question.least(ERROR),
            question.least(ERROR, share=budget / 2),
            question.least(SEQUENTIAL_SHARE * error, "fails", min(1.0, 2 * budget)),
        ]
        # In a closed loop the rate is unknown, and every block has a request.
        requests = [question.requests_of(count, row.rate * length_s) if row.rate else count for count in blocks]
        seconds = [count / row.rate for count in requests] if row.rate else [count * length_s for count in blocks]
        least, half, twice = (
            f"{span_s:,.0f} s" if length_s else counted(round(count), "request")
            for span_s, count in zip(seconds, requests, strict=True)
        )
        in_blocks = f" ({blocks[0]:,} blocks of {length_s:g} s)" if length_s else ""
        is_too_little = requests[0] > row.requests if row.requests is not None else seconds[0] > (row.duration or 0.0)
        text = (
            f"{stage_name(row)}: {objective} takes {least}{in_blocks} to be accepted if nothing is bad, {half} if half of the "
            f"allowed {100 * budget:.3g}% is, and {twice} at most to be rejected if twice as much is; "
            f"planned: {amount(row)}"
        )
        text += f" in {row.requests / row.rate:,.0f} s" if row.requests and row.rate else ""
        yield text + (", too little to be accepted" if is_too_little else ""), is_too_little


def due_times(row: Row, rng: Random, start_ns: int) -> Iterator[int]:
    """Due times in ns of a row with a rate: Poisson arrivals up to its number of requests or duration.

    With think time, only the first turns of sessions have these due times.
    """
    assert row.rate is not None, "a closed loop has no schedule"
    turns = row.workload.turns if row.workload.think_time is not None else 1
    times = poisson(row.rate / turns, rng, start_ns)
    if row.requests is not None:
        return islice(times, row.requests)
    assert row.duration is not None
    end_ns = start_ns + round(row.duration * 1e9)
    return takewhile(lambda due_ns: due_ns < end_ns, times)


def limits_of(row: Row) -> Iterator[str]:
    """Sentences (without full stop) on latencies that the row's loop cannot show, and on unchecked answers."""
    yield from unchecked_formats(row.workload)
    if row.closed:
        yield CLOSED_LOOP if row.think_time_of_users is None else USERS
    elif row.workload.think_time is not None:
        yield THINK_TIME
    if Load.of(row.workload, arrivals="").has_own_answers:
        yield OWN_ANSWERS_DIFFER
    if any(part.turns > 1 and part.adapters and len(part.adapters.names) > 1 for part, _ in row.workload.parts):
        yield ADAPTERS_OF_SESSIONS


def other_models(results: Sequence[ProbeResult]) -> Iterator[str]:
    """Sentences (without full stop) on answers that name another model than the requested adapter."""
    adapters = {result.adapter for result in results}
    named = Counter((result.adapter, result.named_instead(adapters)) for result in results)
    for (adapter, other), count in named.items():
        if other:
            yield f"{count:,} answer{'s' * (count != 1)} to requests for {adapter!r} name{'s' * (count == 1)} the model {other!r}"


def wrong_answers(stage: Stage) -> Iterator[str]:
    """Sentence with the number of wrong among the checked answers, and the most frequent reason; none without checks."""
    if stage.quality is not None:
        checked, wrong = stage.quality
        reasons = Counter(row.error for row in stage.requests if row.outcome == Outcome.WRONG_ANSWER)
        often = "".join(f", most often ({count:,}): {reason}" for reason, count in reasons.most_common(1))
        yield f"{wrong:,} of {checked:,} checked answers wrong{often}"


def as_sent(result: ProbeResult, latest_ns: float) -> ProbeResult:
    """The result with latencies counted from sending on an open connection instead of the due time.

    latest_ns: latest start of the latencies
    """
    timeline = result.timeline
    due_ns = min(timeline.sent_ns or timeline.intended_ns, latest_ns)
    if due_ns <= timeline.intended_ns:
        return result
    return replace(result, timeline=replace(timeline, intended_ns=int(due_ns)))


def warming(workload: Workload | Mix) -> Workload | Mix:
    """Workload for a row's warm-up: the same shape, always with the shared prefix, and only with the last adapter.

    So the warm-up loads no other adapter.
    """

    def warm(part: Workload) -> Workload:
        prefix, adapters = part.prefix, part.adapters
        return replace(
            part,
            prefix=replace(prefix, reuse=1.0) if prefix is not None and prefix.reuse else prefix,
            adapters=replace(adapters, names=adapters.names[-1:]) if adapters is not None else None,
        )

    return workload.with_parts(warm)


def loop(row: Row) -> str:
    """Format rate or concurrency."""
    if row.rate is not None:
        return f"{row.rate:g}/s"
    if row.think_time_of_users is None:
        return f"closed loop of {row.concurrency}"
    return counted(row.concurrency or 0, "user")


def amount(row: Row) -> str:
    """Format the number of requests or the duration."""
    return counted(row.requests, "request") if row.requests is not None else f"{row.duration or 0:g} s"


def stage_name(row: Row) -> str:
    """Name of the row's stage, which marks a closed loop."""
    return f"{row.name} ({loop(row)})" if row.closed else row.name


def load_of(rows: Sequence[Row], in_flight: int) -> Load:
    """Load of all rows, for the stored result. in_flight: limit of requests in flight in rows with a rate"""
    closed, loads = [row for row in rows if row.closed], [shape_of(row, in_flight) for row in rows]
    samplings, datasets = [load.sampling or {} for load in loads], [load.dataset for load in loads]
    are_alike = all(sampling == samplings[0] for sampling in samplings)
    pairs = zip(rows, samplings, strict=True)
    by_row = {f"{row.name}: {key}": value for row, sampling in pairs for key, value in sampling.items()}
    sources = "; ".join(f"{row.name}: {dataset}" for row, dataset in zip(rows, datasets, strict=True))
    arrivals = "poisson" if not closed else "closed"
    if closed and len(closed) < len(rows):
        arrivals = f"poisson, and closed in {', '.join(row.name for row in closed)}"
    return Load(
        workload=", ".join(stage_name(row) for row in rows),
        prompt_tokens="; ".join(f"{row.name}: {load.prompt_tokens}" for row, load in zip(rows, loads, strict=True)),
        output_tokens="; ".join(f"{row.name}: {load.output_tokens}" for row, load in zip(rows, loads, strict=True)),
        varied=any(load.varied for load in loads),
        arrivals=arrivals,
        max_in_flight=max(row.concurrency or 0 for row in rows) if len(closed) == len(rows) else in_flight,
        sampling=samplings[0] if are_alike else by_row,
        dataset=datasets[0] if len(set(datasets)) == 1 else sources,
    )


def shape_of(row: Row, in_flight: int) -> Load:
    """Load of one row, for its stage. in_flight: limit of requests in flight if the row has a rate"""
    cap = row.concurrency if row.closed else in_flight
    load = Load.of(row.workload, arrivals="closed" if row.closed else "poisson", max_in_flight=cap)
    prefix = row.workload.prefix if isinstance(row.workload, Workload) and row.workload.turns == 1 else None
    shared = f", {prefix.tokens} of them shared by {prefix.reuse:.0%} of the requests" if prefix is not None else ""
    return replace(load, workload=stage_name(row), prompt_tokens=f"{load.prompt_tokens}{shared}")


def _questions(row: Row) -> list[tuple[str, Question]]:
    """(objective as text, question) per objective of a row, and per workload of a mix, because their latencies are never pooled."""
    workload = row.workload
    kinds = workload.shares() if isinstance(workload, Mix) else ((None, workload, 1.0),)
    return [
        (
            slo.text + (f" of {name}" if name is not None else ""),
            slo_question(slo, part.max_output_tokens, part.mean_tokens()[1], name, share),
        )
        for slo in row.accept
        for name, part, share in kinds
        if slo.signal != "quality" or part.checks
    ]


def _most_often(results: Sequence[ProbeResult], outcomes: Collection[Outcome], became: str) -> str:
    """Text with the number of results with these outcomes and the most frequent reason; "" for none."""
    count, reason = most_often(result for result in results if result.outcome in outcomes)
    return f"{count} of {counted(len(results), 'request')} {became}, most often {reason}" if count else ""


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))

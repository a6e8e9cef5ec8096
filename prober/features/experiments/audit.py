"""Checklist for a credible serving benchmark, answered from the data of a result."""

from collections.abc import Callable
from dataclasses import dataclass

from prober.measure.outcome import Outcome
from prober.results.conditions import lines
from prober.results.context import NO_GPU, disagreement_text, label
from prober.results.refused_requests import MAX_REFUSED_RATIO
from prober.results.result import OURS, Result
from prober.results.steadiness import ERROR, LOOKS, MAX_CHANGE, MINOR_CHANGE
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE

MIN_RATES = 3
MIN_WARM_UP_REQUESTS, MIN_WARM_UP_S = 10, 20.0  # one of them is enough
# Long enough to show queues. 20% above the knee of a sharp engine, 10 s show a quarter of the long-run breaches, 40 s two
# thirds, 160 s five sixths; an engine with long answers changes its batch as slowly.
MIN_STAGE_S = 60.0
MIN_MEDIAN_ANSWERS = 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """An item of the checklist. done: None without data in the result; why: the observed values"""

    name: str
    done: bool | None
    why: str


def audit(result: Result) -> list[Check]:
    """Answer the items of the checklist for a result."""
    return [Check(name, *check(result)) for name, check in _CHECKS]


Answer = tuple[bool | None, str]


def _warm_up(result: Result) -> Answer:
    left_out = sum(request.warm_up for request in result.requests)
    if (warm_up := result.warm_up) is not None and warm_up.requests:
        enough = (
            bool(warm_up.is_steady)
            or warm_up.requests >= MIN_WARM_UP_REQUESTS
            or (warm_up.seconds or 0.0) >= MIN_WARM_UP_S
        )
        wanted = "" if enough else f"; an engine is warm after {MIN_WARM_UP_REQUESTS} requests or {MIN_WARM_UP_S:g} s"
        return enough, f"{warm_up}, before what counts{wanted}"
    if left_out:
        return True, f"{left_out:,} requests of a cold engine are left out of the latencies"
    return (None, "the file does not tell") if result.warm_up is None else (False, "none was sent")


def _steady(result: Result) -> Answer:
    warm_up = result.warm_up
    if warm_up is None or warm_up.is_steady is None:
        return None, f"not tested: that takes {LOOKS[0]} answers before what counts, as `--warm-up steady` sends"
    changes = f": {warm_up.changes_text}" if warm_up.changes else ""
    if warm_up.is_steady:
        return (
            True,
            f"its last test shows latencies that change by less than {MAX_CHANGE:.0%}, wrong in {ERROR:.0%} at most{changes}",
        )
    if any(low > MINOR_CHANGE or high < -MINOR_CHANGE for low, high in warm_up.changes.values()):
        return False, f"its last test shows latencies that still change{changes}"
    return None, f"its last test does not show that latencies change by less than {MAX_CHANGE:.0%}{changes}"


def _open_loop(result: Result) -> Answer:
    arrivals = result.load.arrivals
    if arrivals is None:
        return None, "the file does not tell how requests arrived"
    if result.load.is_open_loop:
        return True, f"{arrivals} arrivals, whatever becomes of the requests"
    return False, f"{arrivals}: a slow target is asked less, which hides its queue"


def _tails(result: Result) -> Answer:
    most = max((p99.count for stage in result.stages if (p99 := stage.quantile("ttft", 0.99))), default=0)
    needed = int(MIN_SAMPLES_BY_QUANTILE[0.99])
    if most >= needed:
        return True, f"p99 of TTFT rests on up to {most:,} samples"
    return False, f"p99 of TTFT rests on {most:,} samples at most; under {needed:,} it is no more than a hint"


def _lengths(result: Result) -> Answer:
    if result.load.varied is None:
        return None, "the file does not tell how lengths were drawn"
    if result.load.varied:
        return True, "lengths are drawn from distributions"
    return False, "every prompt has one fixed length, which no user has"


def _rates(result: Result) -> Answer:
    """Answer on the number of rates under one set of conditions: rates of different request shapes make no curve."""
    rates = [
        {stage.rate_per_s if stage.rate_per_s is not None else stage.name for stage in line.stages}
        for line in lines([("", result)])
    ]
    most = max(map(len, rates), default=0)
    shape = " under one set of conditions" if len(rates) > 1 else ""
    return most >= MIN_RATES, f"{most} of at least {MIN_RATES} that make a curve{shape}"


def _duration(result: Result) -> Answer:
    """Answer on the length of every stage with latencies: a stage too short for a queue to build up looks faster than it is."""
    stages = [stage for stage in result.stages if stage.latencies]
    known = [  # the wait for the last answers, in `duration_s`, is no load
        (sent_s, stage.quantile("e2e", 0.5))
        for stage in stages
        if (sent_s := stage.duration_s if stage.sending_s is None else stage.sending_s) is not None
    ]
    if not known:
        return None, "the file does not tell how long was sent"
    span = f"{min(sent_s for sent_s, _ in known):,.3g} to {max(sent_s for sent_s, _ in known):,.3g} s"
    if len(known) < len(stages) or not all(answer and answer.estimate for _, answer in known):
        return None, f"stages were sent for {span}, but not of all is known how long, or how long an answer takes"
    long = sum(sent_s >= max(MIN_STAGE_S, MIN_MEDIAN_ANSWERS * answer.estimate) for sent_s, answer in known if answer)
    if long == len(known):
        return (
            True,
            f"each stage was sent for {MIN_STAGE_S:g} s and {MIN_MEDIAN_ANSWERS:g} median answers or more ({span})",
        )
    return False, (
        f"{long} of {len(known)} stages were sent for {MIN_STAGE_S:g} s and {MIN_MEDIAN_ANSWERS:g} median answers or more ({span}); "
        "a queue builds up more slowly than that, so the others look faster than they are"
    )


def _hardware(result: Result) -> Answer:
    if result.context.gpu == NO_GPU:
        return _known(result, ("cpu", "host_ram"), all_of=True)
    return _known(result, ("gpu", "gpu_count", "driver"), all_of=True)


def _batch(result: Result) -> Answer:
    means = [mean for stage in result.stages if (mean := stage.use.get("running_mean")) is not None]
    if not result.stages or len(means) < len(result.stages):
        return False, f"running requests were read in {len(means)} of {len(result.stages)} stages"
    return True, f"{min(means):.3g} to {max(means):.3g} running requests in the mean"


def _phases(result: Result) -> Answer:
    measured = {latency for stage in result.stages for latency in stage.latencies}
    missing = [
        name for name, latencies in (("prefill", {"ttft"}), ("decode", {"tpot", "itl"})) if not latencies & measured
    ]
    if missing:
        return False, f"not measured apart: {', '.join(missing)}"
    return True, "prefill by TTFT, decode by TPOT and ITL"


def _quality(result: Result) -> Answer:
    counts = [stage.quality for stage in result.stages if stage.quality is not None]
    checked, wrong = (sum(count) for count in zip(*counts, strict=True)) if counts else (0, 0)
    if not counts and not result.tool.startswith(OURS):
        return None, "the file does not tell if answers were checked"
    if not checked:
        return False, "no answer was checked, and a wrong one may be a fast one"
    return True, f"{checked:,} answers were checked, {wrong:,} of them are wrong"


def _rejects(result: Result) -> Answer:
    counted = [stage for stage in result.stages if stage.outcomes]
    sent = sum(stage.sent for stage in counted)
    if not sent or not result.tool.startswith(OURS):
        return None, "the file does not tell how requests ended"
    refused = sum(stage.outcomes.get(Outcome.REJECTED, 0) for stage in counted)
    shed = sum(
        stage.shedding.shed
        if stage.shedding is not None and not stage.shedding.beside  # which includes another stage's
        else stage.outcomes.get(Outcome.HTTP_429, 0)
        for stage in counted
    )
    few = refused + shed <= MAX_REFUSED_RATIO * sent
    figures = f"{refused:,} of {sent:,} requests were refused, {shed:,} shed"
    return few, figures if few else f"{figures}: latencies are those of what was let in"


def _single_tenant(result: Result) -> Answer:
    if result.interference is None:
        return None, "nobody tells what else the target served"
    return not result.interference, "; ".join(result.interference) or "no other load was seen"


def _known(result: Result, names: tuple[str, ...], *, all_of: bool) -> Answer:
    """Answer whether the result's context has all, or any, of the values `names`, with the values or the missing names."""
    for disagreement in result.disagreements:
        if disagreement.name in names:
            return False, f"sources disagree on {label(disagreement.name)}: {disagreement_text(disagreement)}"
    values = {label(name): getattr(result.context, name) for name in names}
    missing = [name for name, value in values.items() if value is None]
    known = ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
    done = not missing if all_of else bool(known)
    return done, known if done else f"not known: {', '.join(missing)}"


_CHECKS: tuple[tuple[str, Callable[[Result], Answer]], ...] = (
    ("warm-up", _warm_up),
    ("steady after warm-up", _steady),
    ("open loop", _open_loop),
    ("tails", _tails),
    ("realistic lengths", _lengths),
    ("several rates", _rates),
    ("duration", _duration),
    ("hardware", _hardware),
    ("precision", lambda result: _known(result, ("precision", "quantization"), all_of=False)),
    ("batch", _batch),
    ("both phases", _phases),
    ("quality", _quality),
    ("rejects", _rejects),
    ("single tenant", _single_tenant),
)

"""Evidence on the SLOs in the requests of a running sweep."""

import math
from itertools import islice

from prober.features.capacity.request_log import RequestLog
from prober.features.capacity.sweep_plan import Plan
from prober.features.capacity.sweep_record import SETTLED_SHARE, Phase, Stage, observed, settled
from prober.statistics.quantiles import probability_of_at_least
from prober.statistics.sequential_test import ERROR, evidence, min_observations

MAX_LOOK_BACK = 500  # requests among which the last judged ones are looked for
# A ramp ends at breaches that chance explains with less than this probability. It is asked at each stage, and each adds evidence.
MAX_CHANCE, MAX_CHANCE_WITHOUT_PAGE = 0.02, 0.05
MAX_CHANCE_GRID = 1e-3
# In-flight grows in any ramp while the first answers are written: it is judged over so long at least.
MIN_GROWTH_S = 20.0
MIN_COMPLETED_RATIO = 0.8  # of the arrivals
MIN_EXCESS_SIGMAS = 4  # of the arrivals over the completions, in standard deviations of a Poisson count
MAX_RATE_REPEATS = 3  # of the requests that show an objective at best: so long the highest rate is held for evidence
CLEAR_ANSWERED_RATIO, CLEAR_THRESHOLD_SHARE = 0.8, 0.25


def latest_breaches(log: RequestLog, phase: Phase, count: int) -> list[bool]:
    """The last `count` judged requests of this phase, latest first: True for a breach."""
    latest: list[bool] = []
    for request in islice(reversed(log.requests.values()), MAX_LOOK_BACK):
        if log.stages[request.stage].phase != phase or len(latest) == count:
            break
        if request.breached or request.counted:
            latest.append(request.breached)
    return latest


def exceeds_objective(plan: Plan, log: RequestLog, stage: Stage, breached: int) -> bool:
    """True if a stage has more breaches than chance explains where the strictest objective holds.

    An objective allows a few breaches in hundreds, and some targets breach a little at any rate
    (prompts of very different lengths). A gentle sweep stops at any breach.
    """
    if plan.mode == "gentle":
        return True
    max_chance = MAX_CHANCE if log.readings else MAX_CHANCE_WITHOUT_PAGE
    if stage.phase == "grid":
        max_chance = MAX_CHANCE_GRID
    budget_ratio = min(float(slo.error_budget_ratio) for slo in plan.slos)
    return probability_of_at_least(breached, stage.sent, budget_ratio) < max_chance


def is_clear(log: RequestLog, stage: Stage, max_threshold_share: float) -> bool:
    """True if nearly all requests of a stage are answered, far below every threshold.

    max_threshold_share: highest ratio of a latency to its threshold
    """
    signals = log.readings[-1][1] if log.readings else None
    if signals is not None and signals.requests_waiting:
        return False
    return stage.answered >= CLEAR_ANSWERED_RATIO * stage.sent and max_threshold_share < CLEAR_THRESHOLD_SHARE


def falls_behind(log: RequestLog, stage: Stage, at_s: float) -> bool:
    """True if arrivals exceed completions by more than chance in the second half of a long stage.

    Until the stage has lasted as long as 90% of its answers so far, its completions are those of a lower rate.
    """
    requests = log.requests.values()
    of_stage = (request for request in requests if request.stage == stage.number)
    durations_s = sorted((at_s if request.end_s is None else request.end_s) - request.at_s for request in of_stage)
    settled_s = durations_s[round(SETTLED_SHARE * (len(durations_s) - 1))] if durations_s else 0.0
    from_s = max((stage.began_s + at_s) / 2, stage.began_s + settled_s)
    if at_s - from_s < MIN_GROWTH_S:
        return False
    arrived = sum(request.at_s >= from_s for request in requests)
    completed = sum(request.end_s is not None and request.end_s >= from_s for request in requests)
    return completed < MIN_COMPLETED_RATIO * arrived and arrived - completed > MIN_EXCESS_SIGMAS * math.sqrt(arrived)


def needs_more_events(plan: Plan, log: RequestLog) -> bool:
    """True until the events at the highest rate show every SLO, or are several times as many as that needs at best."""
    stage, requests = log.stages[-1], list(log.requests.values())
    at_best = max(min_observations(float(slo.error_budget_ratio), ERROR) for slo in plan.slos)
    sent = settled(stage, requests, [request for request in requests if request.stage == stage.number])
    if len(sent) >= MAX_RATE_REPEATS * at_best:
        return False
    sent = [request for request in sent if request.valid]
    for slo in plan.slos:
        events = observed(slo, [(*request.events.get(slo.name, (0, 0)), request.output_tokens) for request in sent])
        if evidence(events, float(slo.error_budget_ratio)) != "holds":
            return True
    return False

"""Evidence in the requests of a running sweep: whether the engine is warm, and what a stage shows of the SLOs."""

import math
from itertools import islice
from statistics import median

from prober.features.capacity.request_log import RequestLog
from prober.features.capacity.sweep_plan import Plan
from prober.features.capacity.sweep_record import Phase, Stage, observed, settled
from prober.results.capacity import ERROR
from prober.statistics.binomial import probability_of_at_least
from prober.statistics.sequential_test import log_evidence_below, min_observations

MAX_LOOK_BACK = 500  # requests among which the last judged ones are looked for
# A ramp ends at breaches that chance explains with less than this probability. It is asked at each stage, and each adds evidence.
MAX_CHANCE, MAX_CHANCE_WITHOUT_PAGE = 0.02, 0.05
MAX_CHANCE_GRID = 1e-3
# In-flight grows in any ramp while the first answers are written: it is judged over so long at least.
MIN_GROWTH_S = 20.0
MIN_COMPLETED_RATIO = 0.8  # of the arrivals
MIN_EXCESS_SIGMAS = 4  # of the arrivals over the completions, in standard deviations of a Poisson count
MAX_RATE_REPEATS = 3  # of the requests that show an objective at best: so long the highest rate is held for evidence
# The warm-up ends early where the engine has finished so many requests a rank since its start, and so many answers agree.
WARM_REQUESTS, WARM_ANSWERS, WARM_FACTOR = 50, 5, 2.0
CLEAR_ANSWERED_RATIO, CLEAR_THRESHOLD_SHARE = 0.8, 0.25


def is_warm(log: RequestLog, at_s: float) -> bool:
    """Whether the engine had served enough before the sweep by its own count, and its first answers were no slower than the next.

    A first answer that takes more than twice the median of those after the first two shows an engine, or a path to it, that was
    cold whatever it counted: then the whole warm-up is sent.
    """
    before = log.readings[0][1] if log.readings else None
    if before is None or (before.requests_finished_total or 0.0) < WARM_REQUESTS * max(1, before.ranks or 1):
        return False
    sent = list(log.requests.values())
    later_s = [request.waited_s(at_s) for request in sent[2:] if request.first_s is not None]
    slowest_s = max((request.waited_s(at_s) for request in sent[:2]), default=0.0)
    return len(later_s) >= WARM_ANSWERS - 2 and slowest_s <= WARM_FACTOR * median(later_s)


def latest_breaches(log: RequestLog, phase: Phase, count: int) -> list[bool]:
    """Whether they breached, of the last `count` judged requests of this phase, latest first."""
    latest: list[bool] = []
    for request in islice(reversed(log.requests.values()), MAX_LOOK_BACK):
        if log.stages[request.stage].phase != phase or len(latest) == count:
            break
        if request.breached or request.counted:
            latest.append(request.breached)
    return latest


def exceeds_objective(plan: Plan, log: RequestLog, stage: Stage, breached: int) -> bool:
    """Whether a stage has more breaches than chance explains where the strictest objective holds.

    Two of hundreds are what an objective allows: to stop at them says nothing of a target that breaches a little at any rate
    (prompts of very different lengths). Gentle stops at any.
    """
    if plan.mode == "gentle":
        return True
    max_chance = MAX_CHANCE if log.readings else MAX_CHANCE_WITHOUT_PAGE
    if stage.phase == "grid":
        max_chance = MAX_CHANCE_GRID
    budget_ratio = min(float(slo.error_budget_ratio) for slo in plan.slos)
    return probability_of_at_least(breached, stage.sent, budget_ratio) < max_chance


def is_clear(log: RequestLog, stage: Stage, max_threshold_share: float) -> bool:
    """Whether nearly all requests of a stage are answered, far below every threshold.

    max_threshold_share: highest ratio of a latency to its threshold
    """
    signals = log.readings[-1][1] if log.readings else None
    if signals is not None and signals.requests_waiting:
        return False
    return stage.answered >= CLEAR_ANSWERED_RATIO * stage.sent and max_threshold_share < CLEAR_THRESHOLD_SHARE


def falls_behind(log: RequestLog, stage: Stage, at_s: float) -> bool:
    """Whether arrivals exceed completions by more than chance in the second half of a long stage."""
    middle_s = (stage.began_s + at_s) / 2
    if at_s - middle_s < MIN_GROWTH_S:
        return False
    requests = log.requests.values()
    arrived = sum(request.at_s >= middle_s for request in requests)
    completed = sum(request.end_s is not None and request.end_s >= middle_s for request in requests)
    return completed < MIN_COMPLETED_RATIO * arrived and arrived - completed > MIN_EXCESS_SIGMAS * math.sqrt(arrived)


def needs_more_events(plan: Plan, log: RequestLog) -> bool:
    """Whether the last stage, at the highest rate, may still show an SLO: until its events do, or are several times enough."""
    stage, requests = log.stages[-1], list(log.requests.values())
    at_best = max(min_observations(float(slo.error_budget_ratio), ERROR) for slo in plan.slos)
    sent = settled(stage, requests, [request for request in requests if request.stage == stage.number])
    if len(sent) >= MAX_RATE_REPEATS * at_best:
        return False
    sent = [request for request in sent if request.valid]
    for slo in plan.slos:
        events = observed(slo, [(*request.events.get(slo.name, (0, 0)), request.output_tokens) for request in sent])
        if log_evidence_below(events, float(slo.error_budget_ratio)) < -math.log(ERROR):
            return True
    return False

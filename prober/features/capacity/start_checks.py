"""Checks before a sweep starts, and while it runs. Each raises Refused with a `RefusalReason`."""

import logging
from collections.abc import Iterable

from prober.config.sweep import WARM_UP, SweepSpec
from prober.config.target import needs_of
from prober.features.capacity.actions import Refused
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState
from prober.net.prometheus import QueryFailed, firing
from prober.probing.target import Target
from prober.workload.budget import BudgetDemand

# Alerts that a sweep ends: while they fire a sweep may start.
CAPACITY_ALERTS = frozenset({"LLMHeadroomLow", "LLMCapacityExhaustionForecast", "LLMSweepStale"})
log = logging.getLogger(__name__)


def check_state(target: Target) -> None:
    """Check that the target is healthy and not paused."""
    if target.paused_unix_s is not None:
        raise Refused("not_ready", "the target is paused")
    if target.state is not TargetState.READY:
        raise Refused("not_ready", f"the target is {target.state}")


def check_budget(target: Target, spec: SweepSpec, needs: dict[str, BudgetDemand]) -> None:
    """Check that the daily budgets suffice for a warm-up and the scheduled probes. needs: of the probes, by budget."""
    prompt_tokens, output_tokens = spec.workload.mean_tokens()
    requests = WARM_UP.requests or 0
    amounts = target.amounts(round(requests * prompt_tokens), round(requests * output_tokens))
    for kind, need in needs.items():
        spare, amount = target.budgets[kind].available(target.clock.now_ns(), need), amounts[kind]
        if spare < amount:
            unit = "tokens" if kind == "tokens" else "dollars"
            raise Refused(
                "over_budget",
                f"its scheduled probes leave {max(0.0, spare):,.6g} {unit} of budget.{kind}_per_day in these 24 hours, and a "
                f"warm-up takes {amount:,.6g}; raise the budget, or lower the probes' rate",
            )


async def check_alerts(prometheus_url: str | None, target: str) -> None:
    """Check that no alert fires for the target (its name). A Prometheus that does not answer is logged and refuses nothing."""
    if prometheus_url is None:
        return
    try:
        names = await firing(prometheus_url, target, CAPACITY_ALERTS)
    except QueryFailed as problem:
        log.warning("prometheus.url: whether alerts fire is not known: %s", problem)
        return
    if names:
        raise Refused("alert_firing", f"an alert fires: {', '.join(names)}")


def probe_needs(target: Target, recent: Iterable[ProbeResult]) -> dict[str, BudgetDemand]:
    """Needs of the scheduled probes by daily budget: from their workloads, raised if the server counts more tokens.

    recent: results of scheduled probes
    """
    needs = {kind: need for kind, need in needs_of(target.spec).items() if kind in target.budgets}
    counted = [(probe, usage) for probe in recent if (usage := probe.timeline.usage) is not None]
    requested = [target.amounts(probe.requested_prompt_tokens, probe.requested_output_tokens) for probe, _ in counted]
    used = [target.amounts(usage.prompt_tokens or 0, usage.completion_tokens or 0) for _, usage in counted]
    for kind in needs:
        before, after = (sum(amounts[kind] for amounts in rows) for rows in (requested, used))
        if 0 < before < after:
            needs[kind] = needs[kind].scaled(after / before)
    return needs

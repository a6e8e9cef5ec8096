"""Every alert in `promtool test rules`: firing, not firing, without traffic, and with the prober down.

The rules under test are the committed ones for the example configuration.
"""

import json
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from prober.daemon.registry import ALL as ALL_SERIES
from prober.daemon.rules import example_rules, groups
from prober.exposition.alerting import RuleOptions

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/rules.yaml"
NAMES = sorted({rule["alert"] for rule in example_rules() if "alert" in rule})
JOB = 'job="llm-slo-prober",instance="a"'
PROBE = f'{JOB},target="llama",workload="probe"'
GOLDEN = f'{JOB},target="llama",workload="golden"'
ENGINE = f'{JOB},target="llama"'
DAY = 1440
Series = dict[str, str]
SHARDS: Series = {
    f"up{{{JOB}}}": "1+0x50",
    f'llmslo_build_info{{{JOB},version="1"}}': "1+0x50",
    f"llmslo_shards{{{JOB}}}": "2+0x50",
    f'llmslo_shard_info{{{JOB},shard="0",shards="2"}}': "1+0x50",
}


def slo(name: str, events: str, bad: str, workload: str = PROBE) -> Series:
    """The counters of one SLO and its declaration, a sample a minute."""
    count = sum(int(part.rsplit("x", 1)[1]) + 1 if "x" in part else 1 for part in events.split())
    return {
        f'llmslo_slo_events_total{{{workload},slo="{name}"}}': events,
        f'llmslo_slo_bad_events_total{{{workload},slo="{name}"}}': bad,
        f'llmslo_slo_objective_ratio{{{workload},slo="{name}"}}': f"0.99+0x{count - 1}",
    }


def drift(signal: str, minutes: str) -> Series:
    at = f'{PROBE},signal="{signal}"'
    shift = {"estimate": "1.31", "lower": "1.2", "upper": "1.42"}
    return {
        f'llmslo_drift_active{{{at},cause="unknown"}}': minutes,
        f"llmslo_drift_since_timestamp_seconds{{{at}}}": "60+0x60",
        **{
            f'llmslo_drift_shift_ratio{{{at},quantile="0.5",bound="{bound}"}}': f"{value}+0x60"
            for bound, value in shift.items()
        },
    }


@dataclass(frozen=True)
class Case:
    """One case: `alert` fires at `minute` with labels `fires`; if `fires` is None, no alert with labels `of` fires."""

    why: str
    alert: str
    minute: int
    series: Series
    fires: dict[str, str] | None = None
    of: dict[str, str] = field(default_factory=dict)


def headroom(values: str, bound: str = "estimate", unit: str = "requests") -> Series:
    return {f'llmslo_headroom_ratio{{{ENGINE},unit="{unit}",bound="{bound}"}}': values}


def sweeping(values: str) -> Series:
    return {f"llmslo_sweep_rate_per_second{{{ENGINE}}}": values}


def exhausted(values: str, bound: str = "estimate") -> Series:
    return {f'llmslo_capacity_exhaustion_timestamp_seconds{{{ENGINE},bound="{bound}"}}': values}


def swept(success: str = "", period: str = "21600+0x2000") -> Series:
    """Series of a target with a sweep every six hours; success: Unix seconds of the last capacity."""
    found = {f"llmslo_sweep_last_success_timestamp_seconds{{{ENGINE}}}": success} if success else {}
    return found | ({f"llmslo_sweep_period_seconds{{{ENGINE}}}": period} if period else {})


BURN = "LLMErrorBudgetBurn"


def burn(long: str, short: str, severity: str, name: str = "ttft") -> dict[str, str]:
    return {"long": long, "short": short, "severity": severity, "slo": name}


UP = {f"up{{{JOB}}}": "1+0x60", f'llmslo_build_info{{{JOB},version="1"}}': "1+0x60"}
QUIET = {
    f'llmslo_target_state{{{JOB},target="llama",state="failing"}}': "0+0x60",
    f'llmslo_probes_neutral_total{{{PROBE},reason="rejected"}}': "0+0x60",
    f'llmslo_probes_neutral_total{{{PROBE},reason="over_budget"}}': "0+0x60",
    f'llmslo_quality_checks_total{{{GOLDEN},check="regex"}}': "0+2x60",
    f'llmslo_quality_failures_total{{{GOLDEN},check="regex"}}': "0+0x60",
    f"llmslo_trusted{{{JOB}}}": "1+0x60",
    f"llmslo_engine_kv_cache_usage_ratio{{{ENGINE}}}": "0.95+0x60",
    f"llmslo_engine_preemptions_total{{{ENGINE}}}": "7+0x60",
    f"llmslo_engine_requests_waiting{{{ENGINE}}}": "0 4 0 3 0 2 0+0x54",
    f'llmslo_engine_changes_total{{{ENGINE},what="version"}}': "0+0x60",
    f'llmslo_gpu_throttle_active{{{ENGINE},gpu="0",reason="thermal"}}': "0+0x60",
    f"llmslo_config_last_reload_successful{{{JOB}}}": "1+0x60",
    **slo("ttft", "0+12x60", "0+0x60"),
    **drift("ttft", "0+0x60"),
    **drift("itl", "0+0x60"),
    **headroom("0.5+0x60"),
    **sweeping("0+0x60"),
    **exhausted("1728000+0x60"),
    **swept("60+0x60", "21600+0x60"),
    **UP,
}
# A target that refuses connections from the prober's start on; each probe after the 20th minute fails.
STARTING = {
    f'llmslo_target_starting_until_timestamp_seconds{{{JOB},target="llama"}}': "1200+0x19 _x60",
    f'llmslo_target_state{{{JOB},target="llama",state="starting"}}': "1+0x19 0+0x60",
}
REFUSED = (
    STARTING
    | {f'llmslo_target_state{{{JOB},target="llama",state="failing"}}': "0+0x20 1+0x60"}
    | slo("ttft", "0+0x19 0+12x60", "0+0x19 0+12x60")
)
NO_TRAFFIC = {name: "0+0x60" for name in QUIET if "events" in name or "_total" in name} | {
    name: values for name, values in QUIET.items() if not ("events" in name or "_total" in name)
}

CASES = [
    # 3 of 12 probes a minute are bad: 25%, above every pair's share. Each pair fires once its long window exceeds it.
    Case(
        "all bad for the last quarter of an hour",
        BURN,
        60,
        slo("ttft", "0+12x120", "0+0x44 0+12x75"),
        burn("1h", "5m", "critical"),
    ),
    Case("all bad for its last three minutes", BURN, 48, slo("ttft", "0+12x120", "0+0x44 0+12x75"), of={"long": "1h"}),
    Case("8% bad for six hours", BURN, 400, slo("ttft", "0+12x500", "0+0.96x500"), burn("6h", "30m", "critical")),
    Case("4% bad for a day", BURN, DAY + 60, slo("ttft", "0+12x2000", "0+0.48x2000"), burn("1d", "2h", "warning")),
    Case(
        "1.2% bad for three days",
        BURN,
        3 * DAY + 60,
        slo("ttft", "0+12x5000", "0+0.144x5000"),
        burn("3d", "6h", "warning"),
    ),
    Case("0.96% bad permanently, within a budget of 1%", BURN, 3 * DAY + 60, slo("ttft", "0+12x5000", "0+0.115x5000")),
    Case(
        "good again for ten minutes: the short window ends the alert",
        BURN,
        75,
        slo("ttft", "0+12x120", "0+6x60 360+0x58"),
        of={"long": "1h"},
    ),
    Case(
        "all of eight events bad, the minimum",
        BURN,
        10,
        slo("ttft", "0+1x8 8+0x30", "0+1x8 8+0x30"),
        burn("1h", "5m", "critical"),
    ),
    Case("all of seven events bad, one below the minimum", BURN, 10, slo("ttft", "0+1x7 7+0x30", "0+1x7 7+0x30")),
    *(
        Case(
            f"the first probe of a slow schedule is bad, {minute} minutes in",
            BURN,
            minute,
            slo("ttft", "0+0.5x120", "0 1+0x119"),
        )
        for minute in (1, 2, 5, 9, 13, 15, 16, 17, 18, 20, 30, 60)
    ),
    Case("all 47 gaps of one probe of two a minute", BURN, 30, slo("itl", "0+60x120", "0+0x14 47+0x104")),
    Case("half of all gaps", BURN, 30, slo("itl", "0+60x120", "0+30x120"), burn("1h", "5m", "critical", "itl")),
    Case("no traffic", BURN, 30, slo("ttft", "0+0x60", "0+0x60")),
    Case(
        "budget burnt, then the prober down for an hour",
        BURN,
        130,
        slo("ttft", "0+12x60", "0+6x60"),
        of={"severity": "critical"},
    ),
    Case(
        "2% bad in two hours of 1,440",
        "LLMPercentileSLOBreach",
        125,
        slo("ttft", "0+12x200", "0+0.24x200"),
        {"slo": "ttft"},
    ),
    Case("0.9% bad", "LLMPercentileSLOBreach", 125, slo("ttft", "0+12x200", "0+0.1x200")),
    Case(
        "1,000 events, the minimum",
        "LLMPercentileSLOBreach",
        110,
        slo("ttft", "0+10x100 1000+0x40", "0+1x100 100+0x40"),
        {"slo": "ttft"},
    ),
    Case("990 events", "LLMPercentileSLOBreach", 110, slo("ttft", "0+10x99 990+0x40", "0+1x99 99+0x40")),
    Case("no traffic", "LLMPercentileSLOBreach", 125, slo("ttft", "0+0x200", "0+0x200")),
    Case("prober down", "LLMPercentileSLOBreach", 250, slo("ttft", "0+12x60", "0+6x60")),
    Case(
        "declared, no events for over ten minutes",
        "LLMSLONoData",
        30,
        slo("ttft", "0+12x10 120+0x60", "0+0x70"),
        {"slo": "ttft"},
    ),
    Case("no events for five minutes", "LLMSLONoData", 15, slo("ttft", "0+12x10 120+0x60", "0+0x70")),
    Case("declared, never an event", "LLMSLONoData", 20, slo("ttft", "0+0x60", "0+0x60"), {"slo": "ttft"}),
    Case("events", "LLMSLONoData", 60, QUIET),
    # An SLO without events on a target that has refused connections since the start: no alert for 20 minutes.
    *(Case(f"refused for {minute} minutes since the start", "LLMSLONoData", minute, REFUSED) for minute in (6, 12, 19)),
    *(
        Case(f"refused for {minute} minutes since the start", "LLMTargetFailing", minute, REFUSED)
        for minute in (12, 19)
    ),
    *(
        Case("refused since the start, limit passed", "LLMTargetFailing", minute, REFUSED, {"target": "llama"})
        for minute in (24, 40)
    ),
    Case(
        "refused since the start and paused: no events after the limit either",
        "LLMSLONoData",
        27,
        STARTING | slo("ttft", "0+0x60", "0+0x60"),
        {"slo": "ttft"},
    ),
    Case(
        "loading, as its health page says, beside another target that refuses",
        "LLMSLONoData",
        12,
        {name.replace("llama", "other"): values for name, values in STARTING.items()} | slo("ttft", "0+0x60", "0+0x60"),
        {"slo": "ttft"},
    ),
    Case("prober gone: another alert's subject", "LLMSLONoData", 120, QUIET),
    Case(
        "failing for three minutes",
        "LLMTargetFailing",
        13,
        {f'llmslo_target_state{{{JOB},target="llama",state="failing"}}': "0+0x9 1+0x20"},
        {"target": "llama"},
    ),
    Case(
        "failing for a minute",
        "LLMTargetFailing",
        11,
        {f'llmslo_target_state{{{JOB},target="llama",state="failing"}}': "0+0x9 1+0x20"},
    ),
    Case(
        "rejected all the time",
        "LLMProbeRejected",
        30,
        {f'llmslo_probes_neutral_total{{{PROBE},reason="rejected"}}': "0+12x60"},
        {"workload": "probe"},
    ),
    Case(
        "two rejected",
        "LLMProbeRejected",
        30,
        {f'llmslo_probes_neutral_total{{{PROBE},reason="rejected"}}': "0+0x19 2+0x40"},
    ),
    Case(
        "three rejected, the minimum",
        "LLMProbeRejected",
        10,
        {f'llmslo_probes_neutral_total{{{PROBE},reason="rejected"}}': "0 1 2 3+0x40"},
        {"workload": "probe"},
    ),
    Case(
        "a tenth wrong",
        "LLMQualityDegraded",
        55,
        {
            f'llmslo_quality_checks_total{{{GOLDEN},check="regex"}}': "0+2x60",
            f'llmslo_quality_failures_total{{{GOLDEN},check="regex"}}': "0+0.2x60",
        },
        {"workload": "golden"},
    ),
    Case(
        "two wrong of 110",
        "LLMQualityDegraded",
        55,
        {
            f'llmslo_quality_checks_total{{{GOLDEN},check="regex"}}': "0+2x60",
            f'llmslo_quality_failures_total{{{GOLDEN},check="regex"}}': "0+0x20 2+0x40",
        },
    ),
    Case(
        "three wrong of 20, the minimum",
        "LLMQualityDegraded",
        20,
        {
            f'llmslo_quality_checks_total{{{GOLDEN},check="regex"}}': "0+2x10 20+0x50",
            f'llmslo_quality_failures_total{{{GOLDEN},check="regex"}}': "0 1 2 3+0x50",
        },
        {"workload": "golden"},
    ),
    Case(
        "one not sent",
        "LLMProbeBudgetExhausted",
        18,
        {f'llmslo_probes_neutral_total{{{PROBE},reason="over_budget"}}': "0+0x9 1+0x40"},
        {"workload": "probe"},
    ),
    Case(
        "an hour ago",
        "LLMProbeBudgetExhausted",
        60,
        {f'llmslo_probes_neutral_total{{{PROBE},reason="over_budget"}}': "0+0x9 1+0x60"},
    ),
    Case(
        "scrape fails",
        "LLMProberDown",
        16,
        {f"up{{{JOB}}}": "1+0x9 0+0x20", f'llmslo_build_info{{{JOB},version="1"}}': "1+0x9 stale"},
        {"instance": "a"},
    ),
    Case("unknown to Prometheus", "LLMProberDown", 8, {"other": "0+0x20"}, {"severity": "critical"}),
    Case(
        "the pod of one shard is gone, with its up series",
        "LLMProberDown",
        16,
        SHARDS | {'llmslo_shard_info{job="llm-slo-prober",instance="b",shard="1",shards="2"}': "1+0x9 stale"},
        {"severity": "critical"},
    ),
    Case(
        "both shards exist",
        "LLMProberDown",
        40,
        SHARDS | {'llmslo_shard_info{job="llm-slo-prober",instance="b",shard="1",shards="2"}': "1+0x50"},
    ),
    Case(
        "down for four minutes",
        "LLMProberDown",
        14,
        {f"up{{{JOB}}}": "1+0x9 0+0x20", f'llmslo_build_info{{{JOB},version="1"}}': "1+0x40"},
    ),
    Case("untrusted", "LLMProberUntrusted", 21, {f"llmslo_trusted{{{JOB}}}": "1+0x9 0+0x40"}, {"instance": "a"}),
    Case("untrusted for nine minutes", "LLMProberUntrusted", 19, {f"llmslo_trusted{{{JOB}}}": "1+0x9 0+0x40"}),
    Case(
        "a bad file",
        "LLMProberConfigReloadFailed",
        16,
        {f"llmslo_config_last_reload_successful{{{JOB}}}": "1+0x9 0+0x40"},
        {"instance": "a"},
    ),
    Case(
        "fixed in time",
        "LLMProberConfigReloadFailed",
        30,
        {f"llmslo_config_last_reload_successful{{{JOB}}}": "1+0x9 0+0x2 1+0x40"},
    ),
    Case(
        "two of three probers cannot read the source",
        "LLMDiscoveryDown",
        21,
        {
            f'llmslo_discovery_up{{{JOB},discovery="pods"}}': "1+0x9 0+0x40",
            'llmslo_discovery_up{job="llm-slo-prober",instance="b",discovery="pods"}': "1+0x9 0+0x40",
            'llmslo_discovery_up{job="llm-slo-prober",instance="c",discovery="pods"}': "1+0x50",
        },
        {"discovery": "pods"},
    ),
    Case(
        "source readable again in time",
        "LLMDiscoveryDown",
        30,
        {f'llmslo_discovery_up{{{JOB},discovery="pods"}}': "1+0x9 0+0x8 1+0x40"},
    ),
    Case(
        "over the limit",
        "LLMDiscoveryTargetsRefused",
        26,
        {f'llmslo_discovery_refused_targets{{{JOB},discovery="pods",reason="limit"}}': "0+0x9 3+0x40"},
        {"discovery": "pods", "reason": "limit"},
    ),
    Case(
        "duplicate target",
        "LLMDiscoveryTargetsRefused",
        40,
        {f'llmslo_discovery_refused_targets{{{JOB},discovery="pods",reason="duplicate"}}': "0+0x9 3+0x40"},
    ),
    Case("TTFT drifts", "LLMTTFTP99Drift", 20, drift("ttft", "0+0x9 1+0x40"), {"cause": "unknown", "signal": "ttft"}),
    Case("drift has ended", "LLMTTFTP99Drift", 30, drift("ttft", "0+0x9 1+0x10 0+0x40")),
    Case("ITL drifts", "LLMITLP99Drift", 20, drift("itl", "0+0x9 1+0x40"), {"cause": "unknown", "signal": "itl"}),
    Case("TTFT drifts, ITL does not", "LLMITLP99Drift", 20, drift("ttft", "0+0x9 1+0x40")),
    Case(
        "full, with preemptions",
        "LLMKVCachePressure",
        20,
        {
            f"llmslo_engine_kv_cache_usage_ratio{{{ENGINE}}}": "0.95+0x60",
            f"llmslo_engine_preemptions_total{{{ENGINE}}}": "0+1x60",
        },
        {"target": "llama"},
    ),
    Case(
        "full, without preemptions",
        "LLMKVCachePressure",
        40,
        {
            f"llmslo_engine_kv_cache_usage_ratio{{{ENGINE}}}": "0.95+0x60",
            f"llmslo_engine_preemptions_total{{{ENGINE}}}": "9+0x60",
        },
    ),
    Case(
        "at the threshold",
        "LLMKVCachePressure",
        40,
        {
            f"llmslo_engine_kv_cache_usage_ratio{{{ENGINE}}}": "0.9+0x60",
            f"llmslo_engine_preemptions_total{{{ENGINE}}}": "0+1x60",
        },
    ),
    Case(
        "queue never empty",
        "LLMRequestsQueueing",
        20,
        {f"llmslo_engine_requests_waiting{{{ENGINE}}}": "3+0x60"},
        {"target": "llama"},
    ),
    Case(
        "queue empty once in ten minutes",
        "LLMRequestsQueueing",
        40,
        {f"llmslo_engine_requests_waiting{{{ENGINE}}}": " ".join(["3"] * 8 + ["0"]) + " 3 3 3 3 3 3 3 0" * 4},
    ),
    Case(
        "version changed",
        "LLMEngineChanged",
        15,
        {f'llmslo_engine_changes_total{{{ENGINE},what="version"}}': "0+0x9 1+0x40"},
        {"what": "version", "severity": "info"},
    ),
    Case(
        "half an hour ago",
        "LLMEngineChanged",
        45,
        {f'llmslo_engine_changes_total{{{ENGINE},what="version"}}': "0+0x9 1+0x40"},
    ),
    Case(
        "restart only",
        "LLMEngineChanged",
        15,
        {f'llmslo_engine_changes_total{{{ENGINE},what="restart"}}': "0+0x9 1+0x40"},
    ),
    Case(
        "thermal throttling for 15 minutes",
        "LLMGPUThrottling",
        20,
        {f'llmslo_gpu_throttle_active{{{ENGINE},gpu="0",reason="thermal"}}': "1+0x60"},
        {"gpu": "0", "reason": "thermal"},
    ),
    Case(
        "at its power cap",
        "LLMGPUThrottling",
        20,
        {f'llmslo_gpu_throttle_active{{{ENGINE},gpu="0",reason="power_cap"}}': "1+0x60"},
    ),
    Case(
        "half of the time, at the threshold",
        "LLMGPUThrottling",
        41,
        {f'llmslo_gpu_throttle_active{{{ENGINE},gpu="0",reason="thermal"}}': "0 1" + " 0 1" * 20},
    ),
    *(
        Case(f"low headroom, in {unit}", "LLMHeadroomLow", 17, headroom("0.15+0x60", unit=unit), {"target": "llama"})
        for unit in ("requests", "tokens")
    ),
    Case("load above capacity", "LLMHeadroomLow", 17, headroom("-0.3+0x60"), {"target": "llama"}),
    Case("low headroom, no sweep running", "LLMHeadroomLow", 17, headroom("0.15+0x60") | sweeping("0+0x60"), {}),
    Case("at the threshold", "LLMHeadroomLow", 40, headroom("0.2+0x60")),
    Case("low by the lower bound only", "LLMHeadroomLow", 40, headroom("0.1+0x60", "lower") | headroom("0.3+0x60")),
    Case("low for 14 minutes", "LLMHeadroomLow", 25, headroom("0.5+0x9 0.15+0x13 0.5+0x40")),
    *(
        Case(
            "low only during a sweep of 25 minutes and the 5 minutes after it",
            "LLMHeadroomLow",
            minute,
            headroom("0.5+0x9 0.05+0x29 0.5+0x60") | sweeping("0+0x9 20+0x24 0+0x60"),
        )
        for minute in (26, 34, 38, 42, 56)
    ),
    *(
        Case(
            "a sweep does not end the alert",
            "LLMHeadroomLow",
            minute,
            headroom("0.15+0x100") | sweeping("0+0x29 20+0x9 0+0x60"),
            {"target": "llama"},
        )
        for minute in (29, 35, 45, 50, 70, 80)
    ),
    Case("headroom back for 20 minutes", "LLMHeadroomLow", 50, headroom("0.15+0x29 0.5+0x60"), {"target": "llama"}),
    Case("headroom back for over 30 minutes", "LLMHeadroomLow", 62, headroom("0.15+0x29 0.5+0x60")),
    Case(
        "in 11 days",
        "LLMCapacityExhaustionForecast",
        65,
        exhausted("950400+0x100") | exhausted("1728000+0x100", "latest"),
        {"target": "llama"},
    ),
    Case("forecast date passed", "LLMCapacityExhaustionForecast", DAY + 90, exhausted("0+0x2000"), {}),
    Case("in 16 days", "LLMCapacityExhaustionForecast", 80, exhausted("1382400+0x100")),
    Case(
        "at the threshold",
        "LLMCapacityExhaustionForecast",
        80,
        exhausted(" ".join(str(14 * 86_400 + 60 * i) for i in range(100))),
    ),
    Case(
        "only the earliest date in 11 days",
        "LLMCapacityExhaustionForecast",
        80,
        exhausted("950400+0x100", "earliest") | exhausted("1728000+0x100"),
    ),
    *(
        Case(
            "later forecast or none: the alert continues for a day",
            "LLMCapacityExhaustionForecast",
            990,
            exhausted(after),
            {"target": "llama"},
        )
        for after in ("950400+0x99 1728000+0x2000", "950400+0x99 stale")
    ),
    *(
        Case("later forecast or none for over a day", "LLMCapacityExhaustionForecast", 1710, exhausted(after))
        for after in ("950400+0x99 1728000+0x2000", "950400+0x99 stale")
    ),
    Case("the last capacity is 18.5 hours old", "LLMSweepStale", 1110, swept("0+0x2000"), {"target": "llama"}),
    Case("the last capacity is 17.5 hours old", "LLMSweepStale", 1050, swept("0+0x2000")),
    Case("capacity found again", "LLMSweepStale", 1230, swept("0+0x1199 72000+0x200")),
    Case("capacity old, schedule removed", "LLMSweepStale", 1200, swept("0+0x2000", "")),
    Case(
        "capacity of ten hours ago lost by a restart",
        "LLMSweepStale",
        1200,
        swept("0+0x599 36000+0x9 stale"),
    ),
    Case(
        "capacity of 19 hours ago lost by a restart", "LLMSweepStale", 1170, swept("0+0x599 stale"), {"target": "llama"}
    ),
    Case("scheduled for 19.5 hours, and never found", "LLMSweepStale", 1170, swept(), {"target": "llama"}),
    Case("scheduled for 18 hours", "LLMSweepStale", 1110, swept()),
    Case("scheduled for 19.5 hours, once a week", "LLMSweepStale", 1170, swept(period="604800+0x2000")),
    Case("first capacity found just now", "LLMSweepStale", 1230, swept("_x1199 72000+0x200")),
    *(Case("normal operation", name, 55, QUIET) for name in NAMES),
    *(Case("no traffic", name, 25, NO_TRAFFIC) for name in NAMES if name not in ("LLMSLONoData",)),
    *(Case("the prober is down", name, 120, QUIET) for name in NAMES if name != "LLMProberDown"),
]
STATELESS = [
    Case(
        "p99 up by half for hours",
        "LLMTTFTP99DriftStateless",
        3 * DAY + 260,
        {
            f'llmslo_ttft_seconds_bucket{{{PROBE},le="0.2"}}': "0+12x4440 53280+6x600",
            f'llmslo_ttft_seconds_bucket{{{PROBE},le="0.4"}}': "0+12x5000",
            f'llmslo_ttft_seconds_bucket{{{PROBE},le="+Inf"}}': "0+12x5000",
            f"llmslo_ttft_seconds_count{{{PROBE}}}": "0+12x5000",
        },
        {"target": "llama"},
    ),
    Case(
        "p99 unchanged",
        "LLMTTFTP99DriftStateless",
        3 * DAY + 260,
        {
            f'llmslo_ttft_seconds_bucket{{{PROBE},le="0.2"}}': "0+12x5000",
            f'llmslo_ttft_seconds_bucket{{{PROBE},le="+Inf"}}': "0+12x5000",
            f"llmslo_ttft_seconds_count{{{PROBE}}}": "0+12x5000",
        },
    ),
]


def expression(case: Case) -> dict[str, Any]:
    """Query for the number of firing alerts with this name and these labels."""
    labels = "".join(f',{name}="{value}"' for name, value in (case.fires or case.of).items())
    samples = [{"labels": "{}", "value": 1}] if case.fires is not None else []
    query = f'count(ALERTS{{alertname="{case.alert}",alertstate="firing"{labels}}} == 1)'
    if case.fires is not None:
        query = f"{query} > bool 0"
    return {"expr": query, "eval_time": f"{case.minute}m", "exp_samples": samples}


def promtool_test(promtool: Path, rules: Path, cases: list[Case], folder: Path) -> None:
    """Run all cases, one promtool run per rule group; a failure names expression and minute.

    Cases of days are evaluated every 15 minutes, since promtool recomputes their windows at each step.
    """
    groups = yaml.safe_load(rules.read_text())["groups"]
    runs: dict[tuple[str, bool], list[Case]] = {}
    for case in cases:
        named = next(
            (part.split('"')[1] for name in case.series for part in name.split(",") if part.startswith("slo=")), ""
        )
        ours = named and any(rule.get("alert") == case.alert for rule in _rules(groups, f"llm-slo-{named}"))
        group = f"llm-slo-{named}" if ours else "llm-slo-prober"
        runs.setdefault((group, case.minute > 500), []).append(case)
    for number, ((group, is_long), group_cases) in enumerate(runs.items()):
        part = folder / f"{number}.rules.yaml"
        part.write_text(json.dumps({"groups": [candidate for candidate in groups if candidate["name"] == group]}))
        step = "15m" if is_long else "1m"
        document = {
            "rule_files": [str(part)],
            "evaluation_interval": step,
            "tests": [
                {
                    "name": f"{case.alert}: {case.why}",
                    "interval": "1m",
                    "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
                    "promql_expr_test": [expression(case)],
                }
                for case in group_cases
            ],
        }
        path = folder / f"{number}.test.yaml"
        path.write_text(json.dumps(document))
        done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def _rules(groups: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return next((group["rules"] for group in groups if group["name"] == name), [])


@pytest.mark.parametrize("which", ["promtool", "newer_promtool"])
def test_every_alert_fires_when_it_should_and_only_then(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each alert: firing, not firing, no traffic, prober down, exactly at its threshold; in Prometheus 2 and 3."""
    promtool_test(request.getfixturevalue(which), RULES, CASES, tmp_path)


def test_stateless_drift(promtool: Path, tmp_path: Path) -> None:
    """The PromQL-only rule fires for a p99 that rises by half and stays there, and not for an unchanged p99."""
    from prober.cli.rules import as_yaml

    rules = tmp_path / "rules.yaml"
    rules.write_text(as_yaml({"groups": groups({}, RuleOptions(stateless_drift=True))}))
    promtool_test(promtool, rules, STATELESS, tmp_path)


def test_the_harness_reports_wrong_expectations(promtool: Path, tmp_path: Path) -> None:
    """A missing alert and an unexpected alert both fail."""
    for wrong in (
        Case("expected, does not fire", BURN, 30, QUIET, burn("1h", "5m", "critical")),
        Case("fires, not expected", "LLMProberDown", 8, {"other": "0+0x20"}),
    ):
        with pytest.raises(AssertionError, match="FAILED"):
            promtool_test(promtool, RULES, [wrong], tmp_path)


def test_every_alert_has_cases() -> None:
    """At least one case in which it fires and one in which it does not."""
    for name in NAMES:
        cases = [case for case in (*CASES, *STATELESS) if case.alert == name]
        assert any(case.fires is not None for case in cases), name
        assert any(case.fires is None for case in cases), name


def alerts() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text())
    return [rule for group in document["groups"] for rule in group["rules"] if "alert" in rule]


def test_every_alert_has_its_annotations_and_runbook() -> None:
    """Summary, description, runbook, dashboard and severity; one runbook page per alert and no others."""
    for rule in alerts():
        notes = rule["annotations"]
        assert {"summary", "description", "runbook_url", "dashboard_url"} == set(notes)
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert notes["runbook_url"].endswith(f"/runbooks/{rule['alert']}")
    assert {rule["alert"] for rule in alerts()} == set(NAMES) - {"LLMTTFTP99DriftStateless"}
    pages = {path.stem for path in (ROOT / "deploy/runbooks").glob("*.md")} - {"README"}
    assert pages == set(NAMES)
    for name in NAMES:
        text = (ROOT / f"deploy/runbooks/{name}.md").read_text()
        for heading in (f"# {name}\n", "## What it means\n", "## Look first\n", "## Do\n"):
            assert heading in text


CAPACITY_DESCRIPTIONS = [
    (
        "LLMHeadroomLow",
        20,
        headroom("0.15+0x30") | headroom("0.1+0x30", "lower") | headroom("0.15+0x30", unit="tokens"),
        "15% of the capacity that the last successful sweep found is free (below 0%: the load is higher than that capacity), "
        "by the lower bound of the capacity 10%, in tokens 15%.",
    ),
    (
        "LLMHeadroomLow",
        20,
        headroom("0.15+0x30"),
        "15% of the capacity that the last successful sweep found is free (below 0%: the load is higher than that capacity).",
    ),
    (
        "LLMCapacityExhaustionForecast",
        70,
        exhausted("950400+0x99") | exhausted("777600+0x99", "earliest"),
        "The daily peaks of demand grow towards the capacity that the last successful sweep found. They are expected to reach it on "
        "1970-01-12 00:00:00 +0000 UTC, earliest 1970-01-10 00:00:00 +0000 UTC. Method: a straight line through at most 35 days.",
    ),
    (
        "LLMSweepStale",
        1110,
        swept("0+0x2000")
        | {
            f'llmslo_sweeps_total{{{ENGINE},verdict="not_reached"}}': "3+0x2000",
            f'llmslo_sweeps_total{{{ENGINE},verdict="found"}}': "0+0x2000",
            f'llmslo_sweeps_refused_total{{{ENGINE},reason="blackout"}}': "0+0x2000",
        },
        "No capacity has been found for 18h 30m 0s, over three times the period of the schedule. Headroom is computed from an old "
        "capacity, or unknown. Since the prober's start, sweeps ended: not_reached 3; refused: none.",
    ),
]


@pytest.mark.parametrize(("alert", "minute", "series", "description"), CAPACITY_DESCRIPTIONS)
@pytest.mark.parametrize("which", ["promtool", "newer_promtool"])
def test_descriptions_of_capacity_alerts(
    which: str,
    alert: str,
    minute: int,
    series: Series,
    description: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """A description contains the figures that exist and omits the others."""
    rule = next(candidate for candidate in alerts() if candidate["alert"] == alert)
    rules = tmp_path / "rules.yaml"
    rules.write_text(json.dumps({"groups": [{"name": "one", "rules": [rule]}]}))
    notes = {name: text.replace("{{ $labels.target }}", "llama") for name, text in rule["annotations"].items()}
    notes["dashboard_url"] = notes["dashboard_url"].replace("{{ $labels.target | urlquery }}", "llama")
    expected = {
        "exp_labels": {"severity": "warning", "target": "llama"},
        "exp_annotations": notes | {"description": description},
    }
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": each, "values": values} for each, values in series.items()],
                "alert_rule_test": [{"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": [expected]}],
            }
        ],
    }
    path = tmp_path / "descriptions.yaml"
    path.write_text(json.dumps(document))
    command = [request.getfixturevalue(which), "test", "rules", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# Bad events a minute of 12 over 15 minutes, their share, and per long window the recorded events and how long the budget lasts.
BURN_DESCRIPTIONS = [
    ("10.8", "90%", dict.fromkeys(("1h", "6h", "1d", "3d"), ("about 180", "8h 0m 0s"))),
    ("0.96", "8%", dict.fromkeys(("6h", "1d", "3d"), ("about 180", "3d 18h 0m 0s"))),
]


@pytest.mark.parametrize(("bad", "ratio", "pairs"), BURN_DESCRIPTIONS)
@pytest.mark.parametrize("which", ["promtool", "newer_promtool"])
def test_descriptions_of_burn_alerts(
    which: str,
    bad: str,
    ratio: str,
    pairs: dict[str, tuple[str, str]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """The lifetime of the budget follows from the current bad share; the event count shows how much data the window has."""
    rules = {
        rule["labels"]["long"]: rule for rule in alerts() if rule["alert"] == BURN and rule["labels"]["slo"] == "ttft"
    }
    expected = []
    for pair, (events, lasts) in pairs.items():
        labels, notes = rules[pair]["labels"], rules[pair]["annotations"]
        faster = {"1h": "over 14.4 times as fast", "6h": "over 6 times as fast", "1d": "over 3 times as fast"}
        over = {"1h": "14.4%", "6h": "6%", "1d": "3%", "3d": "1%"}[pair]
        annotations = {
            "summary": f"llama burns the error budget of SLO ttft {faster.get(pair, 'faster')} {'as' if pair in faster else 'than'} "
            "it allows",
            "description": f"{ratio} of {events} recorded events of workload probe in the last {pair} were bad, and over {over} of "
            f"those in the last {labels['short']} (TTFT up to 500ms; budget 1%). At this rate the whole budget for 30d lasts "
            f"{lasts}.",
            "runbook_url": notes["runbook_url"],
            "dashboard_url": notes["dashboard_url"].replace("{{ $labels.target | urlquery }}", "llama"),
        }
        own = {"target": "llama", "workload": "probe"}
        expected.append({"exp_labels": labels | own, "exp_annotations": annotations})
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": each, "values": values} for each, values in slo("ttft", "0+12x15", f"0+{bad}x15").items()
                ],
                "alert_rule_test": [{"eval_time": "15m", "alertname": BURN, "exp_alerts": expected}],
            }
        ],
    }
    path = tmp_path / "descriptions.yaml"
    path.write_text(json.dumps(document))
    command = [request.getfixturevalue(which), "test", "rules", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


STATES = [
    ("met", 60, slo("ttft", "0+12x60", "0+0x60"), "1+0x60"),
    ("missed", 60, slo("ttft", "0+12x60", "0+1x60"), "1+0x60"),
    ("no_data", 60, slo("ttft", "0+12x10 120+0x60", "0+0x70"), "1+0x70"),
    ("no_data", 60, slo("ttft", "0+12x60", "0+0x60"), "1+0x30 0+0x30"),
]


@pytest.mark.parametrize(("state", "minute", "series", "trusted"), STATES)
def test_an_slo_is_met_missed_or_has_no_data(
    promtool: Path, tmp_path: Path, state: str, minute: int, series: Series, trusted: str
) -> None:
    """Exactly one state is 1. A silent target and an unreliable prober give no_data, never met."""
    path = tmp_path / "states.yaml"
    name = "target_workload_slo:llmslo_slo_state:window"
    labels = f'{{__name__="{name}",slo="ttft",state="{state}",target="llama",workload="probe"}}'
    inputs = {**series, f"llmslo_trusted{{{JOB}}}": trusted}
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "5m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": each, "values": values} for each, values in inputs.items()],
                "promql_expr_test": [
                    {"expr": name, "eval_time": f"{minute}m", "exp_samples": [{"labels": labels, "value": 1}]}
                ],
            }
        ],
    }
    path.write_text(json.dumps(document))
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_met_when_the_prober_is_down(promtool: Path, tmp_path: Path) -> None:
    """Without its series there is no state, although the budget over 30 days can still be computed."""
    path = tmp_path / "down.yaml"
    inputs = {**slo("ttft", "0+12x60", "0+0x60"), f"llmslo_trusted{{{JOB}}}": "1+0x60"}
    query = 'target_workload_slo:llmslo_slo_state:window{state="met"}'
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "5m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": each, "values": values} for each, values in inputs.items()],
                "promql_expr_test": [{"expr": query, "eval_time": "120m", "exp_samples": []}],
            }
        ],
    }
    path.write_text(json.dumps(document))
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_runbook_queries_are_valid_promql(promtool: Path, tmp_path: Path) -> None:
    """promtool accepts every backquoted query of a runbook, and its series exist."""
    queries = sorted(
        query
        for path in (ROOT / "deploy/runbooks").glob("*.md")
        for query in re.findall(r"`([^`]+)`", path.read_text())
        if re.search(r"\[\w+\]|llmslo_\w+\{|== \d", query) and not query.startswith("[")
    )
    assert len(queries) > 20
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "queries.yaml"
    path.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {name for query in queries for name in re.findall(r"\bllmslo_\w+", query) if ":" not in name}
    known = {declared.name for declared in ALL_SERIES}
    for name in names:
        assert re.sub(r"_(bucket|count|sum)$", "", name) in known or name.startswith("llmslo_slo_"), name

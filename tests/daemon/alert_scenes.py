"""Scenes of every alert: in which it fires, and in which it does not. `SCENES` has those of the committed rules."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from prober.daemon.rules import example_rules
from tests.daemon.promtool import GOLDEN, JOB, PROBE, TARGET, Series, exhausted, headroom, slo, sweeping, swept, traffic

DAY = 1440  # minutes
BURN = "LLMErrorBudgetBurn"
BURN_OF_TRAFFIC = "LLMErrorBudgetBurnOfTraffic"
NAMES = sorted({rule["alert"] for rule in example_rules() if "alert" in rule})


@dataclass(frozen=True)
class Scene:
    """Series, and whether an alert with these labels fires at `minute`."""

    text: str
    minute: int
    series: Series
    labels: dict[str, str]
    is_firing: bool


def fires(text: str, minute: int, series: Series, **labels: str) -> Scene:
    return Scene(text, minute, series, labels, is_firing=True)


def silent(text: str, minute: int, series: Series, **labels: str) -> Scene:
    return Scene(text, minute, series, labels, is_firing=False)


def burn(severity: str, slo_name: str = "ttft") -> dict[str, str]:
    """Labels of a burn alert."""
    return {"severity": severity, "slo": slo_name}


def series_of(name: str, values: str, labels: str = TARGET, **more: str) -> Series:
    """One series with the labels of the target and more."""
    text = "".join(f',{label}="{value}"' for label, value in more.items())
    return {f"llmslo_{name}{{{labels}{text}}}": values}


def up(values: str, build_info: str) -> Series:
    return {f"up{{{JOB}}}": values} | series_of("build_info", build_info, JOB, version="1")


def failing(values: str) -> Series:
    return series_of("target_state", values, state="failing")


def in_namespaces(*namespaces: str, values: str = "1+0x60") -> Series:
    """A target of one prober in each namespace."""
    found: Series = {}
    for name in namespaces:
        found |= series_of("target_state", values, state="ready", namespace=name)
    return found


def neutral(reason: str, values: str) -> Series:
    return series_of("probes_neutral_total", values, PROBE, reason=reason)


def no_data(reason: str, values: str) -> Series:
    return neutral(reason, "0+0x60") | series_of("no_data", values, PROBE, reason=reason)


def quality(checks: str, failures: str) -> Series:
    totals = {"checks": checks, "failures": failures}.items()
    return {f'llmslo_quality_{kind}_total{{{GOLDEN},check="regex"}}': values for kind, values in totals}


def kv_cache(usage: str, preemptions: str) -> Series:
    return series_of("engine_kv_cache_usage_ratio", usage) | series_of("engine_preemptions_total", preemptions)


def page(up_values: str, ready: str) -> Series:
    """Of the engine's metrics."""
    return series_of("engine_up", up_values) | series_of("target_state", ready, state="ready")


def certificate(*days_left: float) -> Series:
    """Certificates that end so many days after the begin; the last stays."""
    ends = [f"{86_400 * days:.0f}" for days in days_left]
    return series_of("tls_cert_expiry_timestamp_seconds", " ".join([*ends[:-1], f"{ends[-1]}+0x60"]))


def throttled(reason: str, values: str) -> Series:
    return series_of("gpu_throttle_active", values, gpu="0", reason=reason)


def trusted(values: str, name: str = "llama") -> Series:
    return series_of("trusted", values, JOB, target=name)


def task_failures(values: str) -> Series:
    return series_of("task_failures_total", values, JOB, task="diagnosis")


def reloaded(values: str) -> Series:
    return series_of("config_last_reload_successful", values, JOB)


def discovery(instance: str, values: str) -> Series:
    return series_of("discovery_up", values, f'job="llm-slo-prober",instance="{instance}"', discovery="pods")


def refused(reason: str, values: str) -> Series:
    return series_of("discovery_refused_targets", values, JOB, discovery="pods", reason=reason)


def shards(second: str) -> Series:
    """Two shards; second: values of the second one's series."""
    other = 'job="llm-slo-prober",instance="b"'
    return (
        up("1+0x50", "1+0x50")
        | series_of("shards", "2+0x50", JOB)
        | series_of("shard_info", "1+0x50", JOB, shard="0", shards="2")
        | series_of("shard_info", second, other, shard="1", shards="2")
    )


def drift(signal: str, values: str, load: str = "unknown", cause: str = "unknown") -> Series:
    """A drift of `signal` with its start and size. load: where it is against the loads of the baseline."""
    found = series_of("drift_active", values, PROBE, signal=signal, cause=cause)
    found |= series_of("drift_since_timestamp_seconds", "60+0x60", PROBE, signal=signal)
    for state in ("within", "outside", "missing", "unlearnt", "unknown"):
        found |= series_of("drift_load", f"{int(state == load)}+0x60", PROBE, signal=signal, load=state)
    for bound, shift in {"estimate": "1.31", "lower": "1.2", "upper": "1.42"}.items():
        found |= series_of("drift_shift_ratio", f"{shift}+0x60", PROBE, signal=signal, percentile="p50", bound=bound)
    return found


def answers(changed: str, check: str = "text", cause: str = "engine_change") -> Series:
    """Answers to golden prompts that one check judges. changed: 1 while they are wrong more often than in their baseline"""
    found = series_of("answers_changed", changed, GOLDEN, check=check, cause=cause)
    found |= series_of("answers_changed_since_timestamp_seconds", "28860+0x60", GOLDEN, check=check)
    for period, ratio in (("baseline", "0.02"), ("since", "0.25")):
        found |= series_of("answers_wrong_ratio", f"{ratio}+0x60", GOLDEN, check=check, period=period)
    if cause == "engine_change":
        found |= series_of("answers_engine_change_timestamp_seconds", "27660+0x60", GOLDEN, check=check)
    return found


def efficiency(dropped: str, measure: str = "prefix_hit_ratio", cause: str = "engine_change") -> Series:
    """A measure of the engine's efficiency. dropped: 1 while it is worse than usual"""
    found = series_of("efficiency_dropped", dropped, measure=measure, cause=cause)
    found |= series_of("efficiency_since_timestamp_seconds", "60+0x60", measure=measure)
    for period, value in (("usual", "0.62"), ("present", "0.0301")):
        found |= series_of("efficiency", f"{value}+0x60", measure=measure, period=period)
    return found


def at(vantage: str, series: Series) -> Series:
    """The series as the prober of a vantage, itself an instance, exports them."""
    place = f'instance="{vantage}",vantage="{vantage}"'
    return {name.replace('instance="a"', place): values for name, values in series.items()}


def other_instance(series: Series) -> Series:
    """The series as another replica of the prober, in the same place if it has one, exports them."""
    return {re.sub(r'instance="\w+"', 'instance="z"', name): values for name, values in series.items()}


def beside(series: Series) -> Series:
    """The series of another target, by the same probers."""
    return {name.replace('target="llama"', 'target="other"'): values for name, values in series.items()}


QUIET = {
    **failing("0+0x60"),
    **neutral("rejected", "0+0x60"),
    **neutral("over_budget", "0+0x60"),
    **quality("0+2x60", "0+0x60"),
    **trusted("1+0x60"),
    **kv_cache("0.95+0x60", "7+0x60"),
    **throttled("thermal", "0+0x60"),
    **reloaded("1+0x60"),
    **slo("ttft", "0+12x60", "0+0x60"),
    **drift("ttft", "0+0x60"),
    **drift("itl", "0+0x60"),
    **headroom("0.5+0x60"),
    **sweeping("0+0x60"),
    **exhausted("1728000+0x60"),
    **swept("60+0x60", "21600+0x60"),
    **up("1+0x60", "1+0x60"),
}
NO_TRAFFIC = {name: "0+0x60" if "_total" in name else values for name, values in QUIET.items()}
# A target that refuses connections from the prober's start on; each probe after the 20th minute fails.
STARTING = series_of("target_starting_until_timestamp_seconds", "1200+0x19 _x60") | series_of(
    "target_state", "1+0x19 0+0x60", state="starting"
)
REFUSED = STARTING | failing("0+0x20 1+0x60") | slo("ttft", "0+0x19 0+12x60", "0+0x19 0+12x60")
QUARTER_BAD = slo("ttft", "0+12x120", "0+0x44 0+12x75")
# A second prober, `b`, takes the sweep of the first for demand; the first states the demand of before it.
SWEEP_SEEN_BY_ANOTHER = {
    name.replace('instance="a"', 'instance="b"'): values
    for name, values in headroom("0.5+0x9 0.05+0x29 0.5+0x60").items()
}
SWEEP_LOAD = headroom("0.5+0x99") | SWEEP_SEEN_BY_ANOTHER | sweeping("0+0x9 20+0x24 0+0x60")
EVERY_15_MINUTES = sweeping("0+0x4" + " 20+0x4 0+0x9" * 6)
LOW_AND_SWEEP = headroom("0.1+0x100") | sweeping("0+0x29 20+0x9 0+0x60")
NO_LATER_FORECAST = (exhausted("950400+0x99 1728000+0x2000"), exhausted("950400+0x99 stale"))
HEADROOM_GONE = headroom("0.1+0x29 stale") | failing("0+0x29 stale")
HEADROOM_BACK = headroom("0.1+0x29 0.5+0x60") | failing("0+0x100")
FORECAST_GONE = (
    exhausted("950400+0x119 stale")
    | failing("0+0x999")
    | series_of("headroom_unknown", "_x119 1+0x600", reason="engine_changed")
)
NO_FIGURE = headroom("0.1+0x29 stale") | failing("0+0x100")
ENGINE_GONE, SWEPT_LONG = (
    NO_FIGURE | series_of("headroom_unknown", "_x29 1+0x60", reason=reason)
    for reason in ("engine_changed", "sweep_runs")
)
SWEPT_SINCE = NO_FIGURE | series_of("headroom_unknown", "_x29 1+0x2 stale", reason="engine_changed")
OTHER_ENGINE_LOW = ENGINE_GONE | {
    name.replace('instance="a"', 'instance="b"'): values for name, values in headroom("0.1+0x99").items()
}
DISCOVERY_LOST = "1+0x9 0+0x40"
# By places from which a target is probed.
FAILS, LOST = failing("0+0x9 1+0x40"), failing("0+0x9 stale")
READY = failing("0+0x50") | series_of("target_state", "1+0x50", state="ready")
ANSWERS, PAUSED = (READY | series_of("probes_total", probes, PROBE) for probes in ("0+12x50", "0+12x5 60+0x45"))
PENDING = failing("0+0x50") | series_of("target_state", "1+0x50", state="pending")
HALF_BAD_AN_HOUR = slo("ttft", "0+12x180", "0+6x60 360+0x120")
BAD, GOOD = QUARTER_BAD, slo("ttft", "0+12x120", "0+0x120")
# A probe a minute; half of them are bad for four hours.
SELDOM_BAD = slo("ttft", "0+1x400", "0+0.5x240 120+0x160")
OUTAGE = slo("ttft", "0+12x120", "0+0x44 0+12x75")  # every event is bad from the 45th minute on
RECOVERED = slo("ttft", "0+12x200", "0+12x60 720+0x140")  # an hour of outage, then none
NEW_OUTAGE = slo("ttft", "0+12x200", "0+12x60 720+0x90 720+12x48")  # and another one from the 151st minute on
IN_PLACES = at("paris", in_namespaces("a")) | at("tokyo", in_namespaces("b"))
FAIL_FROM_1_OF_2 = at("paris", FAILS) | at("tokyo", ANSWERS)
FAIL_FROM_1_OF_3 = FAIL_FROM_1_OF_2 | at("lima", ANSWERS)
FAIL_FROM_2_OF_3 = at("paris", FAILS) | at("tokyo", FAILS) | at("lima", ANSWERS)
BESIDE_AN_OUTAGE = FAIL_FROM_1_OF_2 | at("paris", beside(FAILS)) | at("tokyo", beside(FAILS))
BAD_FROM_1_OF_2 = at("paris", OUTAGE) | at("tokyo", GOOD)
BAD_FROM_1_OF_3 = BAD_FROM_1_OF_2 | at("lima", GOOD)
BAD_FROM_2_OF_3 = BAD_FROM_1_OF_3 | at("tokyo", OUTAGE)
BAD_FROM_ALL = BAD_FROM_2_OF_3 | at("lima", OUTAGE)
QUARTER_BAD_FROM_1_OF_2 = at("paris", BAD) | at("tokyo", GOOD)
QUARTER_BAD_FROM_2_OF_3 = at("paris", BAD) | at("tokyo", BAD) | at("lima", GOOD)
SEVEN_BAD_FROM_1_OF_2 = at("paris", slo("ttft", "0+1x7 7+0x30", "0+1x7 7+0x30")) | at("tokyo", GOOD)
BAD_FROM_A_LARGE_PLACE = at("paris", slo("ttft", "0+120x120", "0+0x44 0+120x75")) | at("tokyo", GOOD)
SMALL = slo("ttft", "0+1x120", "0+0x44 0+1x75")
BAD_FROM_2_SMALL_PLACES = at("paris", SMALL) | at("tokyo", SMALL) | at("lima", slo("ttft", "0+100x120", "0+0x120"))
BAD_AND_THE_OTHER_GONE = at("paris", OUTAGE) | at("tokyo", slo("ttft", "0+12x30 stale", "0+0x30 stale"))
BAD_AND_THE_OTHER_PAUSED = at("paris", OUTAGE) | at("tokyo", slo("ttft", "0+12x30 360+0x90", "0+0x120"))
BAD_AGAIN_FROM_1_OF_3 = at("paris", NEW_OUTAGE) | at("tokyo", RECOVERED) | at("lima", RECOVERED)
SILENT_FROM_2 = at("paris", slo("ttft", "0+0x60", "0+0x60")) | at("tokyo", slo("ttft", "0+0x60", "0+0x60"))

ALWAYS_BAD = slo("ttft", "0+12x120", "0+12x120")
EIGHT = "0+0.5x15 7.7+0.1x3 8+0x30"  # as many in the 20th minute, the last ones within five minutes
REMOVED = slo("ttft", "0+12x60 stale", "0+12x60 stale")
RESTARTED = slo("ttft", "0+12x60 stale", "0+12x60 stale") | up("1+0x60 0+0x5", "1+0x60 stale")
# SLO `success` of 99.5%: every probe fails from minute 5 to minute 25.
OUTAGE_OF_OK = slo("success", "0+12x60", "0+0x5 12+12x19 240+0x40") | failing("0+0x5 1+0x19 0+0x40")
OUTAGE_OF_OK |= series_of("target_state", "1+0x5 0+0x19 1+0x40", state="ready")


# 600 requests a minute by the engine's own page, half of them slow from minute 45 on, while all probes are fast.
USERS_GOOD, USERS_SLOW = traffic("ttft", "0+600x200", "0+1x200"), traffic("ttft", "0+600x200", "0+0x44 0+300x155")
ONLY_USERS = GOOD | USERS_SLOW
# The prober restarts in the 60th minute, so that its counters begin at 0 again.
RESET_GOOD = traffic("ttft", "0+600x59 0+600x90", "0+1x59 0+1x90")
RESET_SLOW = traffic("ttft", "0+600x59 0+600x90", "0+0x44 0+300x14 0+300x90")
# Two engines, each read by its own sidecar.
FEW_SLOW = traffic("ttft", "0+30x200", "0+30x200") | other_instance(traffic("ttft", "0+600x200", "0+0x200"))
MOST_SLOW = traffic("ttft", "0+30x200", "0+0x200") | other_instance(USERS_SLOW)
SLOW_GONE = traffic("ttft", "0+600x59 stale", "0+300x59 stale") | other_instance(USERS_GOOD)
GOOD_GONE = traffic("ttft", "0+600x59 stale", "0+0x59 stale") | other_instance(USERS_SLOW)
# Two probers that read the same page count every request twice.
THREE, TWELVE = (traffic("ttft", f"0+1x{count} {count}+0x30", f"0+1x{count} {count}+0x30") for count in (3, 12))


def _flapping_bad(times: int) -> Iterator[str]:
    """Bad events of three minutes out of four, a minute each."""
    for period in range(times):
        yield "".join(f" {36 * period + bad}" for bad in (12, 24, 36, 36))


# SLO `success`: fails every probe for three of four minutes, from minute 5 on, so that LLMTargetFailing comes and goes. Its neighbour
# has two outages of ten minutes, half an hour apart.
FLAPPING = failing("0+0x4" + " 1 1 1 0" * 20) | slo("success", "0+12x84", "0+0x4" + "".join(_flapping_bad(20)))
TWO_OUTAGES = failing("0+0x4 1+0x9 0+0x29 1+0x9 0+0x40") | slo(
    "success", "0+12x94", "0+0x5 12+12x9 120+0x29 132+12x9 240+0x40"
)
# One of two replicas fails every probe for a quarter of an hour. Its neighbour answers.
FAILS_A_WHILE = slo("ttft", "0+12x120", "0+0x45 0+12x15 180+0x59") | failing("0+0x45 1+0x14 0+0x60")
FAILS_A_WHILE |= series_of("target_state", "1+0x45 0+0x14 1+0x60", state="ready")
FAILS_A_WHILE |= series_of("probes_total", "0+12x120", PROBE)
REPLICA = (
    failing("0+0x120")
    | series_of("target_state", "1+0x120", state="ready")
    | series_of("probes_total", "0+12x120", PROBE)
)
ONE_REPLICA_FAILS = FAILS_A_WHILE | other_instance(REPLICA | slo("ttft", "0+12x120", "0+0x120"))
ONE_REPLICA_FAILS_THE_OTHER_BURNS = FAILS_A_WHILE | other_instance(REPLICA | slo("ttft", "0+12x120", "0+0x45 0+4x75"))
BOTH_REPLICAS_BURN = REPLICA | BAD | other_instance(REPLICA | BAD)


def FEW_EVENTS(bad: int) -> Series:  # noqa: N802 - a scene with a figure in it
    """419 events in a day, and as many bad ones, evenly."""
    return slo("ttft", f"0+0.291x{DAY} 419.1+0x120", f"0+{bad / DAY:.5f}x{DAY} {bad + 0.1}+0x120")


def started(values: str) -> Series:
    """Times at which the process of the prober was started."""
    return {f"process_start_time_seconds{{{JOB}}}": values} | up("1+0x60", "1+0x60")


def as_job(name: str, series: Series) -> Series:
    """The series as a scrape job of another name has them."""
    return {key.replace('job="llm-slo-prober"', f'job="{name}"'): values for key, values in series.items()}


def silence(values: str) -> Series:
    """Whether the SLO has had no event for long."""
    return series_of("slo_silent", values, PROBE, slo="ttft")


def failure(reason: str, values: str = "_x9 1+0x40") -> Series:
    """The latest failures of a target."""
    return series_of("failure_info", values, reason=reason, text="packets are dropped")


OTHER_PROGRAM = as_job("x", started("0 0 0 240 240 480 480 660 660+0x60"))
del OTHER_PROGRAM[next(name for name in OTHER_PROGRAM if "build_info" in name)]
WIDE = headroom("-0.1+0x60", "lower") | headroom("0.1+0x60", "estimate") | headroom("0.3+0x60", "upper")
NARROW = headroom("0.1+0x60", "lower") | headroom("0.14+0x60", "estimate") | headroom("0.29+0x60", "upper")
BY_USERS = "users_headroom_ratio"
# Every probe of both targets of a prober fails, until minute 50.
ALL_ALIKE = failing("0+0x9 1+0x40 0+0x60") | failure("connect_timeout")
ALL_ALIKE |= beside(ALL_ALIKE)

SCENES: dict[str, list[Scene]] = {
    BURN: [
        # 3 of 12 probes a minute are bad: 25%, above every pair's share. Each pair fires once its long window exceeds it.
        fires("all bad for the last quarter of an hour", 60, QUARTER_BAD, **burn("critical")),
        silent("all bad for its last three minutes", 48, QUARTER_BAD, severity="critical"),
        fires("8% bad for six hours", 400, slo("ttft", "0+12x500", "0+0.96x500"), **burn("critical")),
        fires("4% bad for a day", DAY + 60, slo("ttft", "0+12x2000", "0+0.48x2000"), **burn("warning")),
        fires("1.2% bad for three days", 3 * DAY + 60, slo("ttft", "0+12x5000", "0+0.144x5000"), **burn("warning")),
        silent("0.96% bad permanently, within a budget of 1%", 3 * DAY + 60, slo("ttft", "0+12x5000", "0+0.115x5000")),
        fires("good again for three minutes", 63, HALF_BAD_AN_HOUR, **burn("critical")),
        *(silent(f"good again, minute {minute}", minute, HALF_BAD_AN_HOUR, severity="critical") for minute in (66, 75, 95)),
        fires("the ticket that remains: a day's budget is spent", 100, HALF_BAD_AN_HOUR, **burn("warning")),
        silent("and it ends with its short window", 190, HALF_BAD_AN_HOUR, severity="warning"),
        # At a low rate five minutes without a bad event prove nothing: the window of half an hour ends the page.
        fires("a probe a minute, half bad for hours, none for five minutes", 246, SELDOM_BAD, **burn("critical")),
        silent("none for half an hour", 272, SELDOM_BAD, severity="critical"),
        fires("all of eight events bad, the minimum", 20, slo("ttft", EIGHT, EIGHT), **burn("critical")),
        silent("all of seven events bad, one below the minimum", 20, slo("ttft", "0+0.5x14 7+0x30", "0+0.5x14 7+0x30")),
        *(
            silent(f"the first probe of a slow schedule is bad, {minute} minutes in", minute, slo("ttft", "0+0.5x120", "0 1+0x119"))
            for minute in (1, 2, 5, 9, 13, 15, 16, 17, 18, 20, 30, 60)
        ),
        silent("all 47 gaps of one probe of two a minute", 30, slo("itl", "0+60x120", "0+0x14 47+0x104")),
        fires("half of all gaps", 30, slo("itl", "0+60x120", "0+30x120"), **burn("critical", "itl")),
        silent("no traffic", 30, slo("ttft", "0+0x60", "0+0x60")),
        silent("one place of three: no page", 60, BAD_FROM_1_OF_3, severity="critical"),
        silent("one place of two: no page", 60, BAD_FROM_1_OF_2, severity="critical"),
        fires("which spends budget all the same", 70, BAD_FROM_1_OF_2, **burn("warning")),
        silent("one place that sends ten times as much", 60, BAD_FROM_A_LARGE_PLACE, severity="critical"),
        fires("a quarter of two places of three", 63, QUARTER_BAD_FROM_2_OF_3, **burn("critical")),
        fires("one place of one", 60, at("paris", OUTAGE), **burn("critical")),
        fires("the prober of the other place is gone", 68, BAD_AND_THE_OTHER_GONE, **burn("critical")),
        fires("the other place is paused", 68, BAD_AND_THE_OTHER_PAUSED, **burn("critical")),
        silent("an outage everywhere is over, and one place fails again", 190, BAD_AGAIN_FROM_1_OF_3, severity="critical"),
        # A target that is removed while its prober lives, and one whose prober is away for three minutes.
        silent("removed a minute ago", 62, REMOVED | up("1+0x120", "1+0x120"), severity="critical"),
        silent("removed, the slow ones too", 80, REMOVED | up("1+0x120", "1+0x120")),
        fires("before that", 60, REMOVED | up("1+0x120", "1+0x120"), **burn("critical")),
        fires("the prober restarts", 63, RESTARTED, **burn("critical")),
        fires("the neighbour of a removed target", 80, REMOVED | beside(ALWAYS_BAD), target="other", severity="critical"),
        # A budget of 0.5%, of a target that fails every probe: LLMTargetFailing is the page, before and after its end.
        *(
            silent(f"answers nothing, {minute} minutes in", minute - 5, OUTAGE_OF_OK, slo="success", severity="critical")
            for minute in (12, 14, 16, 20, 30, 33, 36)
        ),
        # A target that answers now and then is paged for all the time.
        *(
            fires(f"answers a quarter of the time, minute {minute}", minute, FLAPPING, slo="success", severity="critical")
            for minute in (20, 21, 22, 23, 24, 40, 60)
        ),
        *(
            silent(f"two outages, minute {minute}", minute, TWO_OUTAGES, slo="success", severity="critical")
            for minute in (8, 14, 16, 20, 48, 54, 58, 60)
        ),
        # One of two probers of a target fails every probe, from minute 45 to 60, and the other one does not.
        *(
            silent(f"one of two replicas, {minute} minutes in", minute, ONE_REPLICA_FAILS, severity="critical")
            for minute in (50, 55, 62, 65, 70)
        ),
        fires("one of two, and a third of the other's events", 60, ONE_REPLICA_FAILS_THE_OTHER_BURNS, severity="critical"),
        fires("both", 60, BOTH_REPLICAS_BURN, severity="critical"),
        fires("two of three probes fail", 20, slo("success", "0+12x60", "0+8x60"), slo="success", severity="critical"),
        # Near the budget, chance is not enough.
        silent("5 bad of 419", DAY + 60, FEW_EVENTS(5)),
        silent("8 bad of 419", DAY + 60, FEW_EVENTS(8)),
        fires("20 bad of 419", DAY + 60, FEW_EVENTS(20), **burn("warning")),
        silent("budget burnt, then the prober down for an hour", 130, slo("ttft", "0+12x60", "0+6x60"), severity="critical"),
    ],
    BURN_OF_TRAFFIC: [
        fires("half of users' requests are slow, no probe is", 60, ONLY_USERS, source="traffic", **burn("critical")),
        silent("which is no page by the probes", 65, ONLY_USERS, workload="probe"),
        silent("for three minutes", 55, ONLY_USERS),
        silent("nor another target's", 65, ONLY_USERS | beside(GOOD | USERS_GOOD), target="other"),
        silent("all requests within the budget, a quarter of the probes not", 70, BAD | USERS_GOOD),
        silent("the target fails every probe: that is the page", 70, ONLY_USERS | failing("0+0x44 1+0x155"), severity="critical"),
        fires("4% slow for a day", DAY + 120, traffic("ttft", "0+600x2000", "0+24x2000"), source="traffic", **burn("warning")),
        silent("0.9% slow for three days", 3 * DAY + 60, traffic("ttft", "0+600x5000", "0+5.4x5000")),
        silent("no requests", 60, traffic("ttft", "0+0x120", "0+0x120")),
        silent(
            "the page cannot be read since minute 10",
            60,
            traffic("ttft", "0+600x10 6000+0x90", "0+300x10 3000+0x90"),
            severity="critical",
        ),
        silent("its prober restarts", 75, RESET_GOOD),
        fires("and half are slow before and after", 75, RESET_SLOW, **burn("critical")),
        silent("all slow on one engine with few requests", 70, FEW_SLOW, severity="critical"),
        fires("half slow on one with most of them", 70, MOST_SLOW, **burn("critical")),
        silent("the slow engine is gone for longer than the short windows", 100, SLOW_GONE, severity="critical"),
        fires("the fast engine is gone", 70, GOOD_GONE, **burn("critical")),
        silent("three slow requests, one below the minimum, counted by two probers", 12, THREE | other_instance(THREE)),
        fires("twelve", 14, TWELVE | other_instance(TWELVE), **burn("critical")),
    ],
    "LLMSLONoData": [
        fires("silent for ten due times", 16, silence("0+0x9 1+0x60"), slo="ttft"),
        silent("for four minutes", 14, silence("0+0x9 1+0x60")),
        silent("events again", 30, silence("0+0x9 1+0x9 0+0x60")),
        silent("another replica has events", 30, silence("1+0x60") | other_instance(silence("0+0x60"))),
        # An SLO without events on a target that has refused connections since the start: no alert for 20 minutes.
        *(silent(f"refused for {minute} minutes since the start", minute, REFUSED | silence("1+0x60")) for minute in (6, 12, 19)),
        fires("refused since the start, then paused: no events", 27, STARTING | silence("1+0x60"), slo="ttft"),
        fires("loading, beside another target that refuses", 12, beside(STARTING) | silence("1+0x60"), slo="ttft"),
        silent("prober gone: another alert's subject", 120, QUIET),
    ],
    "LLMTargetFailing": [
        fires("failing for three minutes", 13, failing("0+0x9 1+0x20"), target="llama"),
        silent("failing for a minute", 11, failing("0+0x9 1+0x20")),
        *(silent(f"refused for {minute} minutes since the start", minute, REFUSED) for minute in (12, 19)),
        *(fires("refused since the start, limit passed", minute, REFUSED, target="llama") for minute in (24, 40)),
        silent("one of two replicas without a place", 20, FAILS | other_instance(ANSWERS)),
        fires("both replicas", 20, FAILS | other_instance(FAILS), target="llama"),
        silent("one place of two", 20, FAIL_FROM_1_OF_2),
        silent("one place of three", 20, FAIL_FROM_1_OF_3),
        fires("one place of one", 20, at("paris", FAILS), target="llama"),
        silent("one place, whose other prober answers", 20, at("paris", FAILS) | other_instance(at("paris", ANSWERS))),
        fires("two places of three", 20, FAIL_FROM_2_OF_3, target="llama"),
        fires("nothing is known from the other place yet", 20, at("paris", FAILS) | at("tokyo", PENDING), target="llama"),
        fires("the prober of the other place is gone", 30, at("paris", FAILS) | at("tokyo", LOST), target="llama"),
        fires("the other place has not probed it for over ten minutes", 30, at("paris", FAILS) | at("tokyo", PAUSED), target="llama"),
        silent("one place of two, beside a target that fails everywhere", 20, BESIDE_AN_OUTAGE, target="llama"),
        fires("which is paged", 20, BESIDE_AN_OUTAGE, target="other"),
    ],
    "LLMTargetFailingFromVantage": [
        fires("one place of two", 20, FAIL_FROM_1_OF_2, vantage="paris", severity="warning"),
        fires("one place of three", 20, FAIL_FROM_1_OF_3, vantage="paris", severity="warning"),
        silent("the other place is not named", 20, FAIL_FROM_1_OF_2, vantage="tokyo"),
        silent("for four minutes", 13, FAIL_FROM_1_OF_2),
        silent("both: a page", 20, at("paris", FAILS) | at("tokyo", FAILS)),
        silent("two of three: a page", 20, FAIL_FROM_2_OF_3),
        silent("one place, no other", 20, at("paris", FAILS)),
        silent("no place has a name", 20, FAILS),
        silent("a second prober without a place answers: replicas, as always", 20, FAILS | other_instance(ANSWERS)),
        silent("nothing is known from the other place yet", 20, at("paris", FAILS) | at("tokyo", PENDING)),
        silent("the prober of the other place is gone", 30, at("paris", FAILS) | at("tokyo", LOST)),
        silent("the other place has not probed it for over ten minutes", 30, at("paris", FAILS) | at("tokyo", PAUSED)),
        fires("beside a target that fails everywhere", 20, BESIDE_AN_OUTAGE, target="llama"),
        silent("which is a page", 20, BESIDE_AN_OUTAGE, target="other"),
        fires("a prober without a place beside those with one", 20, at("paris", ANSWERS) | at("tokyo", ANSWERS) | FAILS, vantage=""),
    ],
    "LLMErrorBudgetBurnFromVantage": [
        fires("one place of three", 60, BAD_FROM_1_OF_3, vantage="paris", **burn("warning")),
        fires("a quarter from one place", 60, QUARTER_BAD_FROM_1_OF_2, vantage="paris", **burn("warning")),
        silent("the others are not named", 60, BAD_FROM_1_OF_3, vantage="lima"),
        silent("all three: a page", 60, BAD_FROM_ALL),
        silent("two of three: a page", 60, BAD_FROM_2_OF_3),
        silent("one place, no other", 60, at("paris", OUTAGE)),
        silent("no place has a name", 60, OUTAGE),
        silent("all of seven events bad, one below the minimum", 11, SEVEN_BAD_FROM_1_OF_2),
        fires("most, with too few events for a page", 60, BAD_FROM_2_SMALL_PLACES, vantage="tokyo", **burn("warning")),
        silent("no events from anywhere", 30, SILENT_FROM_2),
    ],
    "LLMAllTargetsFailing": [
        fires("both targets, for one reason", 20, ALL_ALIKE, instance="a", reason="connect_timeout"),
        silent("for a minute", 11, ALL_ALIKE),
        silent("for two reasons", 20, FAILS | failure("dns") | beside(FAILS | failure("connect_timeout"))),
        silent("one of them answers", 20, FAILS | failure("dns") | beside(READY)),
        silent("one of them fails now and then", 20, FAILS | failure("dns") | beside(READY | failure("dns"))),
        silent("the only target", 20, FAILS | failure("dns")),
        silent("the targets of another prober", 20, ALL_ALIKE | other_instance(beside(READY)), instance="z"),
        silent("over", 60, ALL_ALIKE),
    ],
    "LLMTargetFailsWithAll": [
        *(fires("of both targets, for one reason", 20, ALL_ALIKE, target=name, severity="none") for name in ("llama", "other")),
        silent("for two reasons", 20, FAILS | failure("dns") | beside(FAILS | failure("connect_timeout"))),
        silent("the only target", 20, FAILS | failure("dns")),
    ],
    "LLMProbeRejected": [
        fires("rejected all the time", 30, neutral("rejected", "0+12x60"), workload="probe"),
        silent("removed a minute ago", 22, neutral("rejected", "0+12x20 stale")),
        silent("two rejected", 30, neutral("rejected", "0+0x19 2+0x40")),
        fires("every one is, once in ten minutes", 30, no_data("rejected", "0+0x9 1+0x40"), workload="probe"),
        silent("an answer has ended that", 30, no_data("rejected", "0+0x9 1+0x9 0+0x40")),
        fires("three rejected, the minimum", 22, neutral("rejected", "0+0x9 1 2 3+0x40"), workload="probe"),
        silent("for nine minutes", 19, no_data("rejected", "0+0x9 1+0x40"), workload="probe"),
        silent("a single one in between", 40, neutral("rejected", "0+0x19 1+0x40")),
    ],
    "LLMQualityDegraded": [
        fires("a tenth wrong", 55, quality("0+2x60", "0+0.2x60"), workload="golden"),
        silent("two wrong of 110", 55, quality("0+2x60", "0+0x20 2+0x40")),
        fires("three wrong of 20, the minimum", 20, quality("0+2x10 20+0x50", "0 1 2 3+0x50"), workload="golden"),
    ],
    "LLMProbeBudgetExhausted": [
        fires("one not sent", 18, neutral("over_budget", "0+0x9 1+0x40"), workload="probe"),
        silent("an hour ago", 60, neutral("over_budget", "0+0x9 1+0x60")),
        fires("none is sent, once an hour", 60, no_data("over_budget", "0+0x9 1+0x60"), workload="probe"),
    ],
    "LLMProberDown": [
        fires("scrape fails", 16, up("1+0x9 0+0x20", "1+0x9 stale"), instance="a"),
        silent("nor is another one missing then", 16, up("1+0x9 0+0x20", "1+0x9 stale"), instance=""),
        fires("unknown to Prometheus", 8, {"other": "0+0x20"}, severity="critical"),
        fires("the pod of one shard is gone, with its up series", 16, shards("1+0x9 stale"), severity="critical"),
        silent("both shards exist", 40, shards("1+0x50")),
        fires("whatever its scrape job is called", 16, as_job("llm", up("1+0x9 0+0x20", "1+0x9 stale")), instance="a", job="llm"),
        silent("another program is down", 40, {'up{job="x",instance="x"}': "0+0x60"} | up("1+0x60", "1+0x60")),
        silent("down for four minutes", 14, up("1+0x9 0+0x20", "1+0x40")),
        silent("no longer scraped soon after it ended", 15, up("1+0x9 0 0 _x30", "1+0x40"), instance="a"),
    ],
    "LLMProberUntrusted": [
        fires("untrusted", 16, trusted("1+0x9 0+0x40"), instance="a", target="llama"),
        silent("its other target is not named", 16, trusted("1+0x9 0+0x40") | trusted("1+0x50", "other"), target="other"),
        silent("untrusted for four minutes", 14, trusted("1+0x9 0+0x40")),
        silent("trusted again", 40, trusted("1+0x9 0+0x20 1+0x20")),
    ],
    "LLMProberRestarting": [
        fires("started three times in ten minutes", 14, started("0 0 0 240 240 480 480 660 660+0x60"), instance="a"),
        fires("under another name of the scrape job", 14, as_job("llm", started("0 0 0 240 240 480 480 660 660+0x60")), job="llm"),
        silent("another program", 14, OTHER_PROGRAM),
        silent("started twice", 14, started("0 0 0 240 240 480+0x60")),
        silent("an hour ago", 60, started("0 0 0 240 240 480 480 660 660+0x60")),
        silent("scraped only now and then, twice", 20, up("1 0 1 0 1+0x20", "1+0x40")),
        fires("lives shorter than a scrape", 20, up("1 0 1 0 0 1 0 1 0 1 0+0x20", "1+0x40"), instance="a"),
    ],
    "LLMProbersDisagree": [
        fires("one of two replicas", 20, FAILS | other_instance(ANSWERS), target="llama", instance="a"),
        silent("the other one is not named", 20, FAILS | other_instance(ANSWERS), instance="z"),
        silent("for four minutes", 13, FAILS | other_instance(ANSWERS)),
        silent("both", 20, FAILS | other_instance(FAILS)),
        silent("two places are no replicas", 20, FAIL_FROM_1_OF_2),
        fires("replicas in one place", 20, at("paris", FAILS) | other_instance(at("paris", ANSWERS)), instance="paris"),
        silent("the other one does not know yet", 20, FAILS | other_instance(PENDING)),
    ],
    "LLMTargetNameShared": [
        fires("two engines of one name", 20, in_namespaces("a", "b"), target="llama", severity="warning"),
        fires("of two places in one namespace each, and one more", 20, IN_PLACES | in_namespaces("c", "d"), target="llama"),
        silent("two places: vantages of one engine, by URLs inside and outside", 20, IN_PLACES),
        silent("sidecars of one Deployment, or replicas", 20, in_namespaces("a") | other_instance(in_namespaces("a"))),
        silent(
            "a prober that moves to another namespace",
            24,
            in_namespaces("a", values="1+0x20 stale") | in_namespaces("b", values="_x14 1+0x40"),
        ),
        silent("outside of Kubernetes", 20, in_namespaces("") | other_instance(in_namespaces(""))),
    ],
    "LLMProberTaskFailed": [
        fires("a task failed once", 12, task_failures("0+0x9 1+0x80"), instance="a", task="diagnosis"),
        silent("more than an hour ago", 75, task_failures("0+0x9 1+0x80")),
        silent("never", 12, task_failures("0+0x90")),
    ],
    "LLMProberConfigReloadFailed": [
        fires("a bad file", 16, reloaded("1+0x9 0+0x40"), instance="a"),
        silent("fixed in time", 30, reloaded("1+0x9 0+0x2 1+0x40")),
    ],
    "LLMDiscoveryDown": [
        fires(
            "two of three probers cannot read the source",
            21,
            discovery("a", DISCOVERY_LOST) | discovery("b", DISCOVERY_LOST) | discovery("c", "1+0x50"),
            discovery="pods",
        ),
        silent("source readable again in time", 30, discovery("a", "1+0x9 0+0x8 1+0x40")),
    ],
    "LLMDiscoveryTargetsRefused": [
        fires("over the limit", 26, refused("limit", "0+0x9 3+0x40"), discovery="pods", reason="limit"),
        silent("duplicate target", 40, refused("duplicate", "0+0x9 3+0x40")),
    ],
    "LLMTTFTP99Drift": [
        fires("TTFT drifts", 20, drift("ttft", "0+0x9 1+0x40"), signal="ttft"),
        silent("drift has ended", 30, drift("ttft", "0+0x9 1+0x10 0+0x40")),
        silent("unusual in the first days", 30, drift("ttft", "0+0x9 1+0x40", cause="unusual")),
    ],
    "LLMITLP99Drift": [
        fires("ITL drifts", 20, drift("itl", "0+0x9 1+0x40"), signal="itl"),
        silent("TTFT drifts, ITL does not", 20, drift("ttft", "0+0x9 1+0x40")),
    ],
    "LLMEfficiencyDropped": [
        fires("hits fell", 20, efficiency("0+0x9 1+0x40"), measure="prefix_hit_ratio"),
        fires("for no known cause", 20, efficiency("0+0x9 1+0x40", cause="unknown"), measure="prefix_hit_ratio"),
        silent("usual again", 30, efficiency("0+0x9 1+0x10 0+0x40")),
        silent("another measure fell", 20, efficiency("1+0x60") | efficiency("0+0x60", "step_seconds"), measure="step_seconds"),
    ],
    "LLMAnswersChanged": [
        fires("answers changed", 20, answers("0+0x9 1+0x40"), workload="golden", check="text"),
        fires("for no known cause", 20, answers("0+0x9 1+0x40", cause="unknown"), workload="golden", check="text"),
        silent("those of another check have not", 20, answers("1+0x60") | answers("0+0x60", "tool_call"), check="tool_call"),
        silent("right again", 30, answers("0+0x9 1+0x10 0+0x40")),
        silent("many are wrong, as ever", 55, answers("0+0x60") | quality("0+2x60", "0+0.2x60")),
    ],
    "LLMKVCachePressure": [
        fires("full for two of ten minutes", 20, kv_cache(" ".join(["0.4 0.4 0.4 0.97 0.97"] * 12), "0+1x60"), target="llama"),
        silent("removed", 24, kv_cache("0.95+0x20 stale", "0+1x20 stale")),
        fires("full, with preemptions", 20, kv_cache("0.95+0x60", "0+1x60"), target="llama"),
        silent("full, without preemptions", 40, kv_cache("0.95+0x60", "9+0x60")),
        silent("at the threshold", 40, kv_cache("0.9+0x60", "0+1x60")),
    ],
    "LLMEnginePageUnreadable": [
        fires("unreadable, and the target answers", 17, page("1 0+0x60", ready="1+0x60"), target="llama"),
        silent("for 14 minutes", 24, page("1+0x9 0+0x13 1+0x40", ready="1+0x60")),
        silent("the target fails, and that is another alert", 40, page("0+0x60", ready="0+0x60")),
        silent("another prober reads it", 40, page("0+0x60", ready="1+0x60") | other_instance(page("1+0x60", ready="1+0x60"))),
        silent("it never had one", 40, series_of("target_state", "1+0x60", state="ready")),
        silent("removed", 24, page("0+0x20 stale", ready="1+0x20 stale")),
    ],
    "LLMCertificateExpiring": [
        fires("13 days are left", 5, certificate(13), target="llama", severity="warning"),
        fires("3 days and an hour are left", 5, certificate(3 + 1 / 24), severity="warning"),
        fires("2 days are left", 5, certificate(2), target="llama", severity="critical"),
        silent("2 days are left, and that is the page", 5, certificate(2), severity="warning"),
        fires("it has ended", 5, certificate(-1), severity="critical"),
        silent("15 days are left", 5, certificate(15)),
        fires("a replica of two has the old one", 12, certificate(2, 90, 2, 90), severity="critical"),
        silent("renewed 16 minutes ago", 18, certificate(2, 90)),
        silent("removed", 14, series_of("tls_cert_expiry_timestamp_seconds", "172800+0x9 stale")),
    ],
    "LLMGPUThrottling": [
        fires("thermal throttling for 15 minutes", 20, throttled("thermal", "1+0x60"), gpu="0", reason="thermal"),
        silent("at its power cap", 20, throttled("power_cap", "1+0x60")),
        silent("half of the time, at the threshold", 41, throttled("thermal", "0 1" + " 0 1" * 20)),
    ],
    "LLMHeadroomLow": [
        fires("low headroom", 17, headroom("0.1+0x60"), target="llama"),
        fires("load above capacity", 17, headroom("-0.3+0x60"), target="llama"),
        fires("low headroom, no sweep running", 17, headroom("0.1+0x60") | sweeping("0+0x60")),
        silent("at the threshold", 40, headroom("0.15+0x60")),
        fires("low, and the interval says so", 17, NARROW, target="llama"),
        silent("low, and the interval is too wide to say so", 40, WIDE),
        silent("an estimate that its error may make low", 40, headroom("0.16+0x60", "estimate") | headroom("0.2+0x60", "upper")),
        fires("only an upper bound, and it is low", 17, headroom("0.1+0x60", "upper"), target="llama"),
        fires("low by the users' own latencies", 17, headroom("0.5+0x60") | headroom("0.1+0x60", by=BY_USERS), target="llama"),
        fires("low by the sweeps alone", 17, headroom("0.1+0x60") | headroom("0.5+0x60", by=BY_USERS), target="llama"),
        silent("enough by both", 40, headroom("0.5+0x60") | headroom("0.5+0x60", by=BY_USERS)),
        silent("low for 14 minutes", 25, headroom("0.5+0x9 0.1+0x13 0.5+0x40")),
        *(
            silent("low only for another prober, by a sweep of 25 minutes and the 5 minutes after it", minute, SWEEP_LOAD)
            for minute in (26, 34, 38, 42, 56)
        ),
        *(
            fires("a sweep does not end the alert", minute, LOW_AND_SWEEP, target="llama")
            for minute in (29, 35, 45, 50, 70, 80)
        ),
        *(
            fires("low, with a sweep every 15 minutes", minute, headroom("0.1+0x99") | EVERY_15_MINUTES, target="llama")
            for minute in (16, 29, 44, 70)
        ),
        silent("enough, with a sweep every 15 minutes", 60, headroom("0.5+0x99") | EVERY_15_MINUTES | SWEEP_SEEN_BY_ANOTHER),
        fires("a minute before it is back", 29, HEADROOM_BACK, target="llama"),
        silent("headroom back", 32, HEADROOM_BACK),
        silent("low for 13 minutes, 25 minutes ago", 48, headroom("0.5+0x9 0.1+0x13 0.5+0x40") | failing("0+0x100")),
        fires("a sweep has taken the figure for a while", 45, SWEPT_LONG, target="llama"),
        fires("just before the engine changes", 29, ENGINE_GONE, target="llama"),
        *(silent("the figure is of an engine that is gone", minute, ENGINE_GONE) for minute in (31, 45)),
        silent("the new engine is swept, and the demand not known yet", 58, SWEPT_SINCE),
        fires("gone for one prober, and low for another that has swept the new engine", 45, OTHER_ENGINE_LOW, target="llama"),
        silent("removed a minute ago", 31, HEADROOM_GONE | up("1+0x60", "1+0x60")),
        fires("the prober restarts", 32, HEADROOM_GONE | up("1+0x29 0+0x30", "1+0x29 stale"), target="llama"),
        silent("and does not know it any more", 36, HEADROOM_GONE | up("1+0x29 0+0x2 1+0x30", "1+0x60")),
        fires("the neighbour of a removed target", 31, headroom("0.1+0x29 stale") | beside(headroom("0.1+0x60")), target="other"),
    ],
    "LLMCapacityExhaustionForecast": [
        fires("in 11 days", 65, exhausted("950400+0x100") | exhausted("1728000+0x100", "latest"), target="llama"),
        fires("forecast date passed", DAY + 90, exhausted("0+0x2000")),
        silent("in 16 days", 80, exhausted("1382400+0x100")),
        silent("at the threshold", 80, exhausted(" ".join(str(14 * 86_400 + 60 * i) for i in range(100)))),
        *(
            expected(f"{minute} minutes after the engine changed at the 120th", 120 + minute, FORECAST_GONE)
            for expected, minute in ((fires, -1), (silent, 2), (silent, 300))
        ),
        silent("only the earliest date in 11 days", 80, exhausted("950400+0x100", "earliest") | exhausted("1728000+0x100")),
        *(
            fires("later forecast or none: the alert continues for a day", 990, values | failing("0+0x2000"), target="llama")
            for values in NO_LATER_FORECAST
        ),
        *(silent("later forecast or none for over a day", 1710, values | failing("0+0x2000")) for values in NO_LATER_FORECAST),
        silent("removed ten minutes ago", 120, exhausted("950400+0x109 stale") | failing("0+0x109 stale")),
    ],
    "LLMSweepStale": [
        fires("the last capacity is 18.5 hours old", 1110, swept("0+0x2000"), target="llama"),
        silent("the last capacity is 17.5 hours old", 1050, swept("0+0x2000")),
        silent("capacity found again", 1230, swept("0+0x1199 72000+0x200")),
        silent("capacity old, schedule removed", 1200, swept("0+0x2000", "")),
        silent("capacity of ten hours ago lost by a restart", 1200, swept("0+0x599 36000+0x9 stale")),
        fires("capacity of 19 hours ago lost by a restart", 1170, swept("0+0x599 stale"), target="llama"),
        fires("scheduled for 19.5 hours, and never found", 1170, swept(), target="llama"),
        silent("scheduled for 18 hours", 1110, swept()),
        silent("scheduled for 19.5 hours, once a week", 1170, swept(period="604800+0x2000")),
        silent("first capacity found just now", 1230, swept("_x1199 72000+0x200")),
    ],
}  # fmt: skip
OWN_SCENES = {name: tuple(scenes) for name, scenes in SCENES.items()}
for name in NAMES:
    scenes = SCENES.setdefault(name, [])
    scenes.append(silent("normal operation", 55, QUIET))
    if name != "LLMSLONoData":
        scenes.append(silent("no traffic", 25, NO_TRAFFIC))
    if name != "LLMProberDown":
        scenes.append(silent("the prober is down", 120, QUIET))

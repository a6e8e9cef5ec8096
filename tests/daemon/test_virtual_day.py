"""The whole daemon in virtual time, against simulated engines over a network in memory: an hour, and a day, which has drift too.

The scene: `slows` and `swept` have engines of one kind. The engine of `slows` becomes slower by half, in the day at 18:00. `swept` is
swept, in the day at 03:00. Expectations follow from the scene: from the lengths of the prompts and from an engine that is simulated
without the prober. The day takes about 45 s of one core, which is 1,900 times as fast.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from uuid import UUID

import pytest

from prober.cli.rules import rules as write_rules
from prober.mock.faults import parse_fault
from prober.mock.server import create_app
from prober.mock.service import Settings
from prober.simulation.engine import Engine
from prober.simulation.parameters import Parameters
from prober.simulation.request import Request
from tests.daemon.promtool import expects, groups_of, run_cases
from tests.serving import serving
from tests.virtual_daemon import MIDNIGHT, Daemon, virtual_clock

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.usefixtures("garbage_collector"),
]
MINUTE_S, HOUR_S = 60, 3600
PROBES_PER_S = 0.08  # a baseline takes 5,000 samples, which are 17.4 hours
SHORTEST, LONGEST = 100, 300  # tokens of the prompt of a probe
SLOWDOWN = 1.5
TTFT_S, QUICK_S = 0.040, 0.6  # thresholds of the probes and of the sweep
SWEPT_TOKENS = (1000, 8)  # of a request of the sweep
PARAMETERS = Parameters(max_sequences=8, max_batched_tokens=512, prefix_block_tokens=16)
CONFIG = f"""
defaults: {{rate: PROBES/s, warmup: 0}}
slos:
  ttft: {{signal: ttft, threshold: {TTFT_S * 1e3:g}ms, objective: 99%}}
  quick: {{signal: ttft, threshold: {QUICK_S * 1e3:g}ms, objective: 95%}}
workloads:
  short: {{prompt_tokens: {{uniform: {{min: {SHORTEST}, max: {LONGEST}}}}}, output_tokens: 2}}
  long: {{prompt_tokens: {SWEPT_TOKENS[0]}, output_tokens: {SWEPT_TOKENS[1]}}}
targets:
  - {{name: slows, url: 'http://192.0.2.1:8000', metrics: {{interval: 60s}}, probes: [{{workload: short, slos: [ttft]}}]}}
  - {{name: swept, url: 'http://192.0.2.2:8000', metrics: {{interval: 60s}}, probes: [{{workload: short, slos: [ttft]}}],
      sweep: {{schedule: SWEEP * * *, workload: long, mode: adaptive, min_rate: 0.5/s, max_rate: 20/s, slos: [quick]}}}}
"""
SHORT = 'workload="short"'
ALERTS = {"LLMErrorBudgetBurn"}  # a drift is only unusual on the first day


def configuration(probes_per_s: float, sweep: str) -> str:
    """sweep: its minute and hour"""
    return CONFIG.replace("PROBES", str(probes_per_s)).replace("SWEEP", sweep)


@asynccontextmanager
async def engine(host: str, *faults: str) -> AsyncIterator[None]:
    settings = Settings(faults=tuple(map(parse_fault, faults)), seed=1, simulation=PARAMETERS)
    async with serving(create_app(settings, virtual_clock), 8000, host):
        yield


def share_of_slow_probes(slowdown: float) -> float:
    """Share of probes alone in their engine whose TTFT is over the threshold, as the cost of a prompt says."""
    slow = [
        tokens
        for tokens in range(SHORTEST, LONGEST + 1)
        if slowdown * (PARAMETERS.step_s + PARAMETERS.prefill_token_s * tokens) > TTFT_S
    ]
    return len(slow) / (LONGEST - SHORTEST + 1)


def share_of_slow_requests(rate_per_s: float, requests: int = 4000) -> float:
    """Share of the sweep's requests with a TTFT over its threshold at a steady Poisson rate."""
    rng, at_s = Random(1), 0.0
    simulated, truths = Engine(PARAMETERS, Random(2)), []
    for _ in range(requests):
        at_s += rng.expovariate(rate_per_s)
        simulated.advance(at_s)
        truths.append(simulated.submit(Request(at_s, *SWEPT_TOKENS)))
    simulated.advance(at_s + 1000.0)
    return sum((truth.ttft_s or 1e9) > QUICK_S for truth in truths) / requests


@cache
def knee_per_s(bad_ratio: float) -> float:
    """The rate at which this share of the sweep's requests is over the threshold."""
    low, high = 1.0, 12.0
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if share_of_slow_requests(middle) < bad_ratio else (low, middle)
    return low


@pytest.fixture(autouse=True)
def same_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedules of the probes follow from the name of the pod, those of a sweep from its id."""
    monkeypatch.setenv("POD_NAME", "virtual")
    monkeypatch.setattr("prober.features.capacity.monitor.uuid", SimpleNamespace(uuid4=lambda: UUID(int=1)))


async def test_one_hour(tmp_path: Path, promtool: Path) -> None:
    """SLO, capacity, headroom and alerts of each target follow its engine, and not that of its neighbour."""
    day = Daemon(tmp_path, configuration(0.2, "5 0"))
    async with AsyncExitStack() as running:
        await running.enter_async_context(engine("192.0.2.1", f"latency:{SLOWDOWN}@40m-"))
        await running.enter_async_context(engine("192.0.2.2"))
        await running.enter_async_context(day.running())
        await day.scrape_at(range(MINUTE_S, HOUR_S + 1, MINUTE_S))
    before, at_end = day.scrapes[40 * MINUTE_S], day.scrapes[HOUR_S]
    check_probes(before, at_end, 0.2 * HOUR_S, 0.1)
    active = {
        (name, time_s > 40 * MINUTE_S)
        for time_s, samples in day.scrapes.items()
        for name in samples
        if "drift_active" in name and samples[name]
    }
    assert active
    assert all('target="slows"' in name and 'cause="unusual"' in name and is_late for name, is_late in active)
    check_capacity(at_end)
    rules = tmp_path / "rules.yaml"
    write_rules(str(day.config), output=rules)
    times_s = range(MINUTE_S, HOUR_S + 1, MINUTE_S)
    check_alerts(promtool, rules, day, times_s, {40 * MINUTE_S: set(), HOUR_S: {("LLMErrorBudgetBurn", "slows")}})


@pytest.mark.slow
async def test_one_day(tmp_path: Path, promtool: Path) -> None:
    """SLO, capacity, headroom, alerts, and what is unusual, follow the engine of each target, and not that of its neighbour."""
    day = Daemon(tmp_path, configuration(PROBES_PER_S, "0 3"))
    times_s = range(17 * HOUR_S, 20 * HOUR_S + 1, MINUTE_S)
    async with AsyncExitStack() as running:
        await running.enter_async_context(engine("192.0.2.1", f"latency:{SLOWDOWN}@18h-"))
        await running.enter_async_context(engine("192.0.2.2"))
        await running.enter_async_context(day.running())
        await day.until(4 * HOUR_S)
        after_sweep = await day.scrape()
        await day.scrape_at(times_s)
        await day.until(24 * HOUR_S)
        at_end = await day.scrape()
    before, two_hours_later = day.scrapes[18 * HOUR_S], day.scrapes[20 * HOUR_S]
    check_probes(before, at_end, 24 * HOUR_S * PROBES_PER_S, 0.06)

    for time_s, samples in day.scrapes.items():
        drifting = {
            target
            for target in ("slows", "swept")
            if samples[f'llmslo_drift_active{{target="{target}",{SHORT},signal="ttft",cause="unusual"}}']
        }
        assert drifting <= ({"slows"} if time_s > 18 * HOUR_S else set()), time_s
        if time_s >= 20 * HOUR_S:
            assert drifting == {"slows"}, time_s
    shift = {
        bound: two_hours_later[
            f'llmslo_drift_shift_ratio{{target="slows",{SHORT},signal="ttft",percentile="p50",bound="{bound}"}}'
        ]
        for bound in ("lower", "upper")
    }
    assert shift["lower"] <= SLOWDOWN <= shift["upper"]

    for samples in (after_sweep, at_end):
        check_capacity(samples)
    swept_s = at_end['llmslo_sweep_last_success_timestamp_seconds{target="swept"}'] - MIDNIGHT
    assert 3 * HOUR_S < swept_s < 3.5 * HOUR_S

    rules = tmp_path / "rules.yaml"
    write_rules(str(day.config), output=rules)
    check_alerts(
        promtool, rules, day, times_s, {18 * HOUR_S: set(), 20 * HOUR_S: {(alert, "slows") for alert in ALERTS}}
    )


def check_probes(before: dict[str, float], at_end: dict[str, float], expected: float, tolerance: float) -> None:
    """Check number and results of the probes: as many as were to be sent, and slow only where the engine is, as often as it must be."""
    for name in ("slows", "swept"):
        assert at_end[f'llmslo_trusted{{target="{name}"}}'] == 1
        count = at_end[f'llmslo_probes_total{{target="{name}",{SHORT}}}']
        assert count == pytest.approx(expected, abs=4 * expected**0.5), name
        assert before[f'llmslo_slo_bad_events_total{{target="{name}",{SHORT},slo="ttft"}}'] <= 0.02 * count

    def increase(name: str, target: str) -> float:
        series = f'{name}{{target="{target}",{SHORT},slo="ttft"}}'
        return at_end[series] - before[series]

    assert increase("llmslo_slo_bad_events_total", "swept") <= 0.01 * increase("llmslo_slo_events_total", "swept")
    bad_ratio = increase("llmslo_slo_bad_events_total", "slows") / increase("llmslo_slo_events_total", "slows")
    assert bad_ratio == pytest.approx(share_of_slow_probes(SLOWDOWN), abs=tolerance)


def check_capacity(samples: dict[str, float]) -> None:
    """Check that the sweep estimates the knee of the engine, and that nearly all of it is free."""
    capacity = {
        bound: samples[f'llmslo_capacity_requests_per_second{{target="swept",slo="quick",bound="{bound}"}}']
        for bound in ("lower", "estimate", "upper")
    }
    assert capacity["estimate"] == pytest.approx(knee_per_s(0.05), rel=0.15)
    assert capacity["lower"] < capacity["estimate"] < capacity["upper"]
    assert 0.9 < samples['llmslo_headroom_ratio{target="swept",bound="estimate"}'] <= 1


def check_alerts(
    promtool: Path,
    rules: Path,
    day: Daemon,
    times_s: range,
    expected: dict[int, set[tuple[str, str]]],
) -> None:
    """Check the alerts (name, target) that the product's own rules fire at a time on the scrapes until then."""
    queries = [
        expects(
            'count by (alertname, target) (ALERTS{alertstate="firing"}) > bool 0',
            f"{time_s - times_s[0]}s",
            {f'alertname="{name}",target="{target}"': 1 for name, target in sorted(alerts)},
        )
        for time_s, alerts in expected.items()
    ]
    case = {"interval": "1m", "input_series": day.series(rules, times_s), "promql_expr_test": queries}
    run_cases(promtool, rules.parent, groups_of(rules), [case])

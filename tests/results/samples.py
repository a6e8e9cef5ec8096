"""A sweep with known figures, for tests of what is made of it."""

from dataclasses import replace
from decimal import Decimal
from itertools import accumulate
from random import Random
from typing import Any

from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.capacity import Capacity, Mix
from prober.results.facts import Context
from prober.results.result import Decision, Load, MeasuredTarget, Prices, RequestRow, Result, Stage, WarmUp
from prober.results.stage import USES, stage_of_requests

TTFT = Slo("ttft", "ttft", 0.5, Decimal("0.99"), 2_592_000.0)
TPOT = Slo("tpot", "tpot", 0.03, Decimal("0.95"), 2_592_000.0)
MIX = Mix(300, 60)  # nobody else was there
RATES = (1.0, 4.0, 16.0)


def answered(
    due_s: float = 0.0, ttft_s: float = 0.1, e2e_s: float | None = None, outcome: Outcome = Outcome.OK, **fields: Any
) -> ProbeResult:
    """A request due then, whose content begins and ends so many seconds later; without content if it failed."""
    due_ns = round(due_s * 1e9)
    first_ns = due_ns + round(ttft_s * 1e9) if outcome is Outcome.OK else None
    timeline = Timeline(due_ns, first_ns=first_ns, end_ns=None if e2e_s is None else due_ns + round(e2e_s * 1e9))
    values: dict[str, Any] = {"workload": "w", "detail": ""} | fields
    return ProbeResult("t", request_id="id", unix_s=0.0, outcome=outcome, timeline=timeline, **values)


def result(ttft_s: float = 0.1, outcome: Outcome = Outcome.OK, *, slow: int = 0, **fields: Any) -> ProbeResult:
    """Ten tokens, `slow` of the nine gaps of 100 ms and the others of 10 ms; nothing of a failed request."""
    timeline = Timeline(0)
    if outcome is Outcome.OK:
        gaps_ns = [100_000_000] * slow + [10_000_000] * (9 - slow)
        stamps = tuple(accumulate([round(ttft_s * 1e9), *gaps_ns]))
        timeline = Timeline(0, first_ns=stamps[0], end_ns=stamps[-1], content_ns=stamps)
    values: dict[str, Any] = {"detail": "", "requested_output_tokens": 10} | fields
    return ProbeResult("t", "probe", "id", 0.0, outcome, timeline=timeline, **values)


def requests(rate_per_s: float, begin_s: float, count: int, rng: Random) -> tuple[RequestRow, ...]:
    """Slower at a higher rate; of 16/s a tenth fails."""
    found = []
    for i in range(count):
        start_s = begin_s + i / rate_per_s
        if rate_per_s > 10 and i % 10 == 0:
            found.append(RequestRow(start_s, "http_5xx", "HTTP 503: busy", e2e_s=0.01))
            continue
        ttft_s = rng.uniform(0.05, 0.1) * (1 + rate_per_s / 4)
        itls_s = tuple(rng.uniform(0.008, 0.012) for _ in range(7))
        found.append(
            RequestRow(
                start_s,
                ttft_s=ttft_s,
                itls_s=itls_s,
                tpot_s=sum(itls_s) / 7,
                e2e_s=ttft_s + sum(itls_s),
                send_lag_s=0.0004,
                prompt_tokens=100 + i % 50,
                output_tokens=8,
            )
        )
    return tuple(found)


def sweep(name: str = "sweep-1", seed: int = 1, count: int = 120) -> Result:
    """Three stages, with everything a sweep can know."""
    rng, stages, begin_s = Random(seed), list[Stage](), 0.0
    for rate in RATES:
        part = requests(rate, begin_s, count, rng)
        failed = sum(each.outcome != "ok" for each in part)
        stage = stage_of_requests(f"{rate:g}/s", rate, part, begin_s=begin_s, sending_s=count / rate)
        stages.append(
            replace(
                stage,
                slos={"ttft": (count, failed), "tpot": (count - failed, 0)},
                good=count - failed,
                use=dict.fromkeys(USES) | {"running_mean": rate * 2, "waiting_mean": 0.0, "kv_usage_peak_ratio": 0.4},
                demand_per_s=0.5,
                gpus=2,
                ended="decided",
            )
        )
        begin_s += count / rate + 1
    return Result(
        id=name,
        kind="sweep",
        started_unix_s=1_760_000_000.0,
        ended_unix_s=1_760_000_000.0 + begin_s,
        tool="llm-slo-prober 9.9.9",
        target=MeasuredTarget(
            "http://llm.example:8000", "org/model-7b", "vllm", "0.32.0", "chat", {"tensor_parallel_size": "2"}
        ),
        load=Load("chat", "lognormal", "lognormal", True, "poisson", 2000, 7, {"temperature": 0}, "generated"),
        stages=tuple(stages),
        configuration='{"mode": "adaptive"}',
        slos=(TTFT, TPOT),
        warm_up=WarmUp(20, 8.2),
        capacities=(
            Capacity("ttft", "found", 10.0, 12.0, 13.0, 0.9, 2000, "model", mix=MIX, alone_per_s=12.0),
            Capacity("tpot", "not_reached", lower=16.5, samples=2000, mix=MIX, alone_per_s=16.5),
        ),
        stop="decided",
        prices=Prices(gpu_per_hour=2.0),
        context=Context(gpu="NVIDIA L4", gpu_count="2", driver="570.86", precision="bf16"),
        interference=(),
        decision=Decision(True, "it is faster.", "low"),
    )

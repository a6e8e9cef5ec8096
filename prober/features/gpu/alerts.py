"""Alert on throttled GPUs, and recording rules of tokens, energy and cost per GPU."""

from prober.exposition.alerting import Alert, Link, Rule, of_present


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alert on throttling."""
    reasons = "thermal|thermal_hardware|hardware|power_brake"  # a busy GPU at its power cap is normal
    throttled = f'llmslo_gpu_throttle_active{{{selector},reason=~"{reasons}"}}'
    return (
        Alert(
            "LLMGPUThrottling",
            "warning",
            of_present(f"max by (target, gpu, reason) (avg_over_time({throttled}[10m])) > 0.5", throttled),
            "5m",
            "GPU {{ $labels.gpu }} of {{ $labels.target }} is throttled ({{ $labels.reason }})",
            "Its clock was limited for {{ $value | humanizePercentage }} of the last 10 minutes. Requests may be slower at the same "
            "load.",
            link=Link("engine", ("target",)),
        ),
    )


def records(selector: str) -> list[Rule]:
    """Tokens, energy and cost per GPU. Replicas of the prober see the same engine, so max, not sum. A configured number of GPUs has
    precedence over that of the visible ones."""
    tokens = f"max by (target) (rate(llmslo_engine_generation_tokens_total{{{selector}}}[5m]))"
    no_partitions = ',gpu!~".+:.+"'  # a partition is listed in addition to its GPU
    visible = (
        f"count by (target) (group by (target, gpu) (llmslo_gpu_info{{{selector}{more}}}))"
        for more in (no_partitions, "")
    )
    gpus = " or ".join([f"max by (target) (llmslo_gpus{{{selector}}})", *visible])
    price = f"max by (target) (llmslo_gpu_price_dollars_per_hour{{{selector}}})"
    power = f"max by (target, gpu) (rate(llmslo_gpu_energy_joules_total{{{selector}}}[5m]))"
    return [
        {"record": "target:llmslo_engine_generation_tokens_per_gpu:rate5m", "expr": f"{tokens}\n/\n({gpus})\n"},
        {
            "record": "target:llmslo_gpu_energy_joules_per_1k_tokens:rate5m",
            "expr": f"1000 * sum by (target) ({power})\n/\n({tokens} > 0)\n",
        },
        {
            "record": "target:llmslo_gpu_cost_dollars_per_1k_tokens:rate5m",
            "expr": f"1000 / 3600 * {price} * ({gpus})\n/\n({tokens} > 0)\n",
        },
    ]

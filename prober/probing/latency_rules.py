"""Recorded quantiles of the probes' latencies: dashboards of many targets would have to read all buckets over hours at each refresh."""

from collections.abc import Iterator

from prober.exposition.alerting import Rule
from prober.exposition.dashboards.queries import (
    LEVEL,
    RECORDED_QUANTILES,
    RECORDED_SIGNALS,
    quantile,
    recorded_quantile,
    recorded_samples,
    samples,
)
from prober.exposition.dashboards.queries import RECORDED_WINDOW as WINDOW


def records(selector: str) -> Iterator[Rule]:
    """Quantiles and samples of each workload of a target, of targets that are still probed."""
    probed = f"and on ({LEVEL})\ngroup by ({LEVEL}) (llmslo_probes_total{{{selector}}})\n"
    for signal in RECORDED_SIGNALS:
        histogram = f"llmslo_{signal}_seconds"
        for q in RECORDED_QUANTILES:
            expr = quantile(q, histogram, select=selector, window=WINDOW)
            yield {"record": recorded_quantile(q, signal), "expr": f"{expr}\n{probed}"}
        count = samples(histogram, select=selector, window=WINDOW)
        yield {"record": recorded_samples(signal), "expr": f"({count} > 0)\n{probed}"}

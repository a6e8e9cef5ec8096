"""All dashboards: boards of single features, and boards composed of panels of several features."""

import json

from prober.daemon.dashboards import overview, prober
from prober.exposition.dashboards.board import Board, Rows, tagged_annotation
from prober.exposition.dashboards.style import Json
from prober.features.answers import series as answers
from prober.features.budget import series as budget
from prober.features.capacity import dashboard as capacity
from prober.features.diagnosis import series as diagnosis
from prober.features.discovery import series as discovery
from prober.features.drift import dashboard as drift
from prober.features.engines import dashboard as engines
from prober.features.gpu import dashboard as gpu
from prober.features.grafana import series as grafana
from prober.features.health import series as health
from prober.features.replicas import series as replicas
from prober.features.slo import dashboard as slo
from prober.probing import dashboard as probes

ANNOTATIONS = (
    engines.ANNOTATION,
    drift.ANNOTATION,
    answers.ANNOTATION,
    capacity.ANNOTATION,
    tagged_annotation("Deployment", "green", "deployment"),
)


def boards() -> tuple[Board, ...]:
    """Every dashboard, in the order of the links between dashboards."""
    return overview.board(), _target(), slo.board(), capacity.board(), _engine(), _drift()


def documents() -> dict[str, Json]:
    """{file name: JSON of the dashboard}."""
    return {f"{board.name}.json": board.as_json(ANNOTATIONS) for board in boards()}


def files() -> dict[str, str]:
    """{file name: text}; the same code yields the same text."""
    return {name: json.dumps(document, indent=1, ensure_ascii=False) + "\n" for name, document in documents().items()}


def _target() -> Board:
    budgets = budget.remaining(
        "Budgets and rate limits left",
        "Remaining share of the 24-hour budgets. Bad: near 0; at 0 probes are not sent.",
        ("budget",),
    )
    rows = {
        "": [probes.state(), *slo.stats(), *probes.outcomes(), *probes.failures(), health.over_time()],
        "Latency: every probe": probes.heatmaps(),
        "Latency: quantiles": [*probes.latency(), *prober.timestamps()],
        "On the way": probes.network(),
        "By vantage": probes.vantages(),
        "Not counted": probes.not_counted(),
        "Tokens and cost": [*probes.cost(), budgets],
    }
    text = "One target: latencies with the samples behind them, the way there, failures by reason, tokens and cost."
    return Board("target", text, rows, one_target=True)


def _engine() -> Board:
    rows: Rows = {
        "": [*engines.identity(), diagnosis.decode_speed(), engines.context_length(), gpu.count()],
        "Latency of the probes": [probes.latency_of_slowest(), diagnosis.causes()],
        "Engine": engines.panels(),
        "Finish reasons": engines.finish_reasons(),
        "Failures, phases, offload, router": engines.of_some_engines(),
        "Speculative decoding": engines.speculation(),
        "KV transfer": engines.kv_transfer(),
        "Engine pages": engines.by_prober(),
        "GPUs": gpu.row(),
    }
    text = (
        "One target: queue, KV cache, preemptions and prefix cache hits below the latency of the probes. Closed rows say in their "
        "title whether the target has their data: finish reasons, speculative decoding, KV transfer, each engine's page, GPUs."
    )
    return Board("engine", text, rows, one_target=True, variables=("target", "workload"))


def _drift() -> Board:
    budgets = budget.remaining(
        "Probing budgets left",
        "Remaining share of the 24-hour budgets of tokens and dollars. Bad: near 0; at 0 probes are not sent.",
        ("target", "budget"),
        width=8,
    )
    rows = {
        "": [drift.baselines()],
        "Evidence": drift.evidence(),
        "Efficiency": [drift.efficiency()],
        "Answers": [answers.right_answers()],
        "The prober": [*prober.health(), *grafana.panels()],
        "Its probes": [*probes.schedule(), budgets, probes.rate_limits(), prober.storage()],
        "Discovery, shards and lease": [*discovery.panels(), *replicas.panels()],
    }
    text = "Latencies and efficiency against their own baselines, and the health of the prober itself."
    return Board("drift", text, rows, variables=("target", "workload", "window", "instance"))

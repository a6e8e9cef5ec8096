"""The status page: targets, what their quantiles are worth, the last probes drawn, what failed and why."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

from markdown_it import MarkdownIt

from prober.analysis.diagnosis import Diagnosis
from prober.analysis.quantiles import Quantile
from prober.generate.drawing import in_svg, ms
from prober.measure.event import Event
from prober.measure.outcome import NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.slo.firing import percent
from prober.slo.standing import Standing

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1b1f24 }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .25rem .6rem; vertical-align: top }
th { border-bottom: 1px solid #8b949e; font-weight: 600 } tr + tr td { border-top: 1px solid #e1e4e8 }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.ok, .ready, .met { color: #116329 } .bad, .failing, .missed { color: #a40e26; font-weight: 600 }
.neutral, .pending, .starting, .draining, .few, .no_data { color: #6e5400 }
.few::after { content: " (too few)"; font-size: .85em } small { color: #57606a }
pre { white-space: pre-wrap; font-size: 13px }
svg .wait { fill: #d0d7de } svg .content { stroke: #0969da } svg .first { fill: #116329 }
"""


@dataclass(frozen=True, slots=True)
class TargetView:
    """What the page shows of a target; quantiles by (workload, signal), in seconds."""

    name: str
    url: str
    model: str
    engine: str
    state: str
    outcomes: Mapping[str, int]
    standings: Sequence[Standing]
    quantiles: Mapping[tuple[str, str], Sequence[Quantile]]
    diagnosis: Diagnosis | None
    capacity: str

    def as_json(self) -> dict[str, Any]:
        """The same for machines."""
        shown = [
            {"workload": workload, "signal": signal, **asdict(quantile), "enough": quantile.enough}
            for (workload, signal), found in self.quantiles.items()
            for quantile in found
        ]
        return {
            "name": self.name,
            "url": self.url,
            "model": self.model,
            "engine": self.engine,
            "state": self.state,
            "outcomes": dict(self.outcomes),
            "slos": [
                {
                    "slo": each.slo.name,
                    "workload": each.workload,
                    "state": each.state,
                    "events": each.events,
                    "bad_events": each.bad,
                    "objective": float(each.slo.objective),
                    "why": each.why,
                }
                for each in self.standings
            ],
            "quantiles": shown,
            "diagnosis": asdict(self.diagnosis) if self.diagnosis else None,
            "capacity": self.capacity or None,
        }


def status_page(
    targets: Sequence[TargetView], events: Sequence[Event], probes: Sequence[ProbeResult], base: str
) -> str:
    """The whole page; `base` is the address links begin with."""
    paths = ("/metrics", "/api/v1/targets", "/api/v1/probes", "/api/v1/events", "/api/v1/sweeps")
    links = "".join(f'<a href="{escape(base)}{p}">{p}</a> ' for p in paths)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>llm-slo-prober</title>'
        f"<style>{_STYLE}</style></head><body><h1>llm-slo-prober</h1><p>{links}</p>"
        f"<h2>Targets</h2>{_targets(targets)}{_diagnoses(targets)}<h2>SLOs</h2>{_standings(targets)}"
        f"<h2>Quantiles of the last successful probes</h2>{_quantiles(targets)}"
        f"<h2>Events</h2>{_events(events)}<h2>Last probes</h2>{_probes(probes)}</body></html>"
    )


def _targets(targets: Sequence[TargetView]) -> str:
    names = ("target", "state", "model", "engine", "probes since start", "capacity")
    rows = [f"<tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>"]
    for view in targets:
        outcomes = ", ".join(f"{count} {name}" for name, count in view.outcomes.items()) or "none yet"
        rows.append(
            f"<tr><td>{escape(view.name)}<br><small>{escape(view.url)}</small></td><td class={view.state}>{view.state}</td>"
            f"<td>{escape(view.model)}</td><td>{escape(view.engine)}</td><td>{escape(outcomes)}</td>"
            f"<td>{escape(view.capacity) or 'not known'}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def _diagnoses(targets: Sequence[TargetView]) -> str:
    """Of targets in trouble only."""
    return "".join(
        f"<h2>Why {escape(view.name)} is slow</h2><pre>{escape(view.diagnosis.text())}</pre>"
        for view in targets
        if view.diagnosis
    )


def _standings(targets: Sequence[TargetView]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("target", "workload", "SLO", "state"))
    head += "".join(f"<th class=n>{name}</th>" for name in ("bad events", "of", "objective"))
    rows = [
        f"<tr><td>{escape(view.name)}</td><td>{escape(each.workload)}</td><td>{escape(each.slo.name)}</td>"
        f"<td class={each.state}>{each.state.replace('_', ' ')}{f' <small>{escape(each.why)}</small>' if each.why else ''}</td>"
        f"<td class=n>{each.bad:,}</td><td class=n>{each.events:,}</td><td class=n>{percent(each.slo.objective)}</td></tr>"
        for view in targets
        for each in view.standings
    ]
    if not rows:
        return "<p>None is configured.</p>"
    note = (
        "<small>Since the prober's start; over the SLO's own window in Prometheus, by the rules that <code>prober rules</code> "
        "writes.</small>"
    )
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>{note}"


def runbook_page(alert: str, markdown: str) -> str:
    """A runbook as a page."""
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(alert)}</title><style>{_STYLE}</style></head>'
        f"<body>{MarkdownIt('commonmark').enable('table').render(markdown)}</body></html>"
    )


def _quantiles(targets: Sequence[TargetView]) -> str:
    head = "".join(
        f"<th>{name}</th>" for name in ("target", "workload", "signal", "samples", "p50", "p90", "p95", "p99")
    )
    rows = []
    for view in targets:
        for (workload, signal), found in view.quantiles.items():
            by_q = {quantile.q: quantile for quantile in found}
            cells = "".join(_quantile(by_q[q]) for q in (0.5, 0.9, 0.95, 0.99))
            rows.append(
                f"<tr><td>{escape(view.name)}</td><td>{escape(workload)}</td><td>{signal}</td>"
                f"<td class=n>{found[0].count}</td>{cells}</tr>"
            )
    if not rows:
        return "<p>No successful probe yet: no data, which is neither good nor bad.</p>"
    return (
        f"<table><tr>{head}</tr>{''.join(rows)}</table><small>In brackets the distribution-free 95% interval.</small>"
    )


def _quantile(quantile: Quantile) -> str:
    low, high = (ms(bound) if bound is not None else "?" for bound in (quantile.lower, quantile.upper))
    kind = "" if quantile.enough else " class=few"
    return f"<td><span{kind}>{ms(quantile.estimate)}</span> <small>[{low}, {high}]</small></td>"


def _events(events: Sequence[Event]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("time (UTC)", "target", "kind", "what"))
    rows = [
        f"<tr><td>{_clock(event.unix_s)}</td><td>{escape(event.target)}</td><td>{escape(event.kind)}</td>"
        f"<td>{escape(event.text)}</td></tr>"
        for event in events
    ]
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>" if rows else "<p>None yet.</p>"


def _clock(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%H:%M:%S") if unix_s else "–"


def _probes(probes: Sequence[ProbeResult]) -> str:
    ends = [p.timeline.end_ns - p.timeline.intended_ns for p in probes if p.timeline.end_ns]
    scale = max(sorted(ends)[int(0.9 * (len(ends) - 1))], 1) if ends else 1_000_000_000
    head = "".join(
        f"<th>{n}</th>" for n in ("time (UTC)", "target", "workload", "outcome", "TTFT", "TPOT", "E2E", "timeline")
    )
    rows = []
    for probe in probes:
        kind = "ok" if probe.outcome is Outcome.OK else "neutral" if probe.outcome in NEUTRAL else "bad"
        notes = "".join(
            f" <small>{note}</small>" for note, on in (("warm-up", probe.warm_up), ("cached", probe.cached)) if on
        )
        t = probe.timeline
        rows.append(
            f"<tr><td title='{escape(probe.request_id)}'>{_clock(probe.unix_s)}</td><td>{escape(probe.target)}</td>"
            f"<td>{escape(probe.workload)}</td><td class={kind}>{probe.outcome.value}{notes}"
            f"{f'<br><small>{escape(probe.detail)}</small>' if probe.detail else ''}</td>"
            f"<td class=n>{ms(t.ttft_s)}</td><td class=n>{ms(t.tpot_s)}</td><td class=n>{ms(t.e2e_s)}</td>"
            f"<td>{in_svg(t, scale)}</td></tr>"
        )
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>" if rows else "<p>None yet.</p>"

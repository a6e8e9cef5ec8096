"""A target in little: its state, its SLOs, its percentiles, its last probes."""

from collections.abc import Mapping, Sequence
from html import escape

from prober.features.slo.status import SloStatus
from prober.measure.timeline_text import ms
from prober.statistics.quantiles import Quantile
from prober.web.page.marks import SIGNS, anchor, link, mark, standing, state, told
from prober.web.page.probes import spark
from prober.web.page.view import RECENT, SIGNALS, WELL, Concern, TargetView, concern

QS = (0.5, 0.9, 0.99)
SHOWN = ("ttft", "tpot", "itl", "e2e")


def card(view: TargetView) -> str:
    """One of many."""
    found, at = concern(view), anchor(view.key)
    said = (
        told(view.model, 120) + (f" · {told(view.engine, 60)}" if view.engine else "")
        if view.model
        else "not found out yet"
    )
    return (
        f'<li class="card {found.kind}" id="t-{at}"><article aria-labelledby="n-{at}"><div class="top">'
        f'<h3 id="n-{at}"><a href="{link(view.key)}">{told(view.name, 120)}</a></h3>{state(view)}</div>'
        f'<p class="model">{said}</p>{_concern(found)}{chips(view.standings)}'
        f"{spark(view.probes, RECENT)}{_percentiles(view)}{sweeping(view)}</article></li>"
    )


def _concern(found: Concern) -> str:
    if found is WELL:
        return ""
    detail = f" <small>{told(found.detail, 160)}</small>" if found.detail else ""
    return f'<p class="concern">{mark(found.kind, told(found.text))}{detail}</p>'


def chips(standings: Sequence[SloStatus]) -> str:
    """The state of each SLO."""
    if not standings:
        return ""
    several = len({each.workload for each in standings}) > 1
    found = []
    for each in standings:
        kind, word = standing(each.state)
        where = f" {told(each.workload, 40)}" if several else ""
        found.append(
            f'<li class="chip {kind}"><i aria-hidden="true">{SIGNS[kind]}</i> {told(each.slo.name, 60)}{where} {word}</li>'
        )
    return f'<ul class="chips" aria-label="SLOs">{"".join(found)}</ul>'


def _percentiles(view: TargetView) -> str:
    """Of the workload with most samples."""
    workload = busiest(view.quantiles)
    if workload is None:
        return '<p class="none">No successful probe yet: no data, which is neither good nor bad.</p>'
    rows = []
    for signal in SHOWN:
        found = view.quantiles.get((workload, signal))
        if found:
            by_q = {quantile.q: quantile for quantile in found}
            cells = "".join(f'<td class="n">{short(by_q[q])}</td>' for q in QS)
            rows.append(f'<tr><th scope="row">{SIGNALS[signal]}</th>{cells}<td class="n">{found[0].count:,}</td></tr>')
    head = "".join(f'<th scope="col" class="n">p{q * 100:g}</th>' for q in QS)
    others = len({name for name, _ in view.quantiles}) - 1
    more = f" and {others} more" if others else ""
    return (
        f'<table class="mini"><caption>{told(workload, 60)}{more}</caption>'
        f'<thead><tr><td></td>{head}<th scope="col" class="n">samples</th></tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def busiest(quantiles: Mapping[tuple[str, str], Sequence[Quantile]]) -> str | None:
    """The workload whose latencies rest on most samples."""
    counts = {workload: found[0].count for (workload, _), found in quantiles.items() if found}
    return max(counts, key=lambda workload: counts[workload]) if counts else None


def short(quantile: Quantile) -> str:
    """An estimate, and whether it is worth anything."""
    shown = ms(quantile.estimate)
    return shown if quantile.enough else f'<span class="few">{shown}<small>too few</small></span>'


def sweeping(view: TargetView) -> str:
    """How far the sweep under way is."""
    now = view.sweeping
    if now is None:
        return ""
    stage = f", stage {now.stage + 1}" if now.stage is not None else ""
    adding = f", adding {now.rate_per_s:.3g} requests/s" if now.rate_per_s else ""
    phase = escape(now.phase.replace("_", " "))
    return (
        f'<p class="sweeping"><b>Sweep under way</b>: {phase}{stage}{adding}; {now.requests:,} requests sent, '
        f"{now.in_flight:,} in flight, {now.elapsed_s:.0f} s</p>"
    )

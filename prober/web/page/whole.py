"""A target with everything that is known of it."""

from collections.abc import Iterator, Sequence
from html import escape

from prober.features.experiments.report.document import Figure
from prober.measure.event import Event
from prober.measure.objective import percent
from prober.measure.timeline_text import ms
from prober.statistics.quantiles import Quantile
from prober.web.page import probes, sweeps
from prober.web.page.cards import chips, sweeping
from prober.web.page.marks import amount, attribute, bar, clock, link, mark, standing, state, table, told, used
from prober.web.page.view import SIGNALS, Drifting, Kind, Spending, TargetView, concern

QS = (0.5, 0.9, 0.99)


def whole(
    view: TargetView, events: Sequence[Event], charts: Sequence[Figure], now_unix_s: float, *, admin: bool
) -> Iterator[str]:
    """Panel by panel; charts: of its last sweeps."""
    yield _head(view, now_unix_s, admin=admin)
    yield '<div class="panels">'
    yield panel("Why it is slow", _diagnosis(view), kind="wide-panel") if view.diagnosis else ""
    yield panel("SLOs", _standings(view))
    yield panel("Percentiles of the last successful probes", _quantiles(view))
    yield panel("Capacity and headroom", sweeps.capacity(view, now_unix_s))
    yield panel("Budget", _budget(view))
    yield '<section class="panel wide-panel" aria-labelledby="h-probes"><h2 id="h-probes">Last probes</h2>'
    yield from probes.rows(view.probes, now_unix_s, named=False)
    yield "</section>"
    yield panel("Drift", _drift(view, now_unix_s))
    yield panel("Probes since start", _outcomes(view))
    if view.sweepable or view.sweeps:
        yield panel("Sweeps", sweeps.results(view, now_unix_s), kind="wide-panel")
    if charts:
        yield '<section class="panel wide-panel" aria-labelledby="h-curves"><h2 id="h-curves">Latency over load, last sweeps</h2>'
        yield '<div class="figures">'
        for chart in charts:
            yield sweeps.figure(chart)
        yield "</div></section>"
    yield panel("Events", happenings(events, now_unix_s, named=False), kind="wide-panel")
    yield "</div>"


def panel(title: str, body: str, *, kind: str = "") -> str:
    """A part with its heading."""
    at = "h-" + title.lower().replace(" ", "-")
    return f'<section class="panel {kind}" aria-labelledby="{at}"><h2 id="{at}">{escape(title)}</h2>{body}</section>'


def action(label: str, method: str, path: str, *, asks: str = "", kind: str = "") -> str:
    """A button that the page's script makes do something; asks: what a person is asked first."""
    asked = f' data-asks="{attribute(asks)}"' if asks else ""
    return f'<button type="button" class="{kind}" data-method="{method}" data-path="{attribute(path)}"{asked}>{label}</button>'


def _head(view: TargetView, now_unix_s: float, *, admin: bool) -> str:
    found = concern(view)
    said = " · ".join(
        part
        for part in (told(view.model), told(view.engine), f"<code>{told(view.url)}</code>")
        if part != "<bdi></bdi>"
    )
    since = ""
    if view.paused_unix_s is not None:
        since = f'<p class="concern">Nothing is sent to it since {clock(view.paused_unix_s, now_unix_s)}, until it is resumed.</p>'
    elif found.kind != "good":
        since = f'<p class="concern">{told(found.detail, 600)}</p>' if found.detail else ""
    return (
        f'<header class="target {found.kind}"><div class="top"><p class="model">{said}</p>{state(view)}</div>'
        f"{since}{chips(view.standings)}{sweeping(view)}{_actions(view) if admin else ''}</header>"
    )


def _actions(view: TargetView) -> str:
    asked = link(view.key)
    paused = view.paused_unix_s is not None
    buttons = [
        action("Resume", "DELETE", f"api/v1/pauses{asked}", kind="main")
        if paused
        else action("Probe now", "POST", f"api/v1/probes{asked}", kind="main"),
    ]
    if view.sweeping:
        buttons.append(action("Stop sweep", "DELETE", f"api/v1/sweeps{asked}"))
    elif view.sweepable and not paused:
        asks = f"Sweep {view.name} now? It adds load until an SLO gives way or a guard stops it."
        buttons.append(action("Sweep now…", "POST", f"api/v1/sweeps{asked}", asks=asks))
    if not paused:
        asks = f"Pause {view.name}? Nothing is sent to it, and its SLOs get no data, until it is resumed."
        buttons.append(action("Pause…", "POST", f"api/v1/pauses{asked}", asks=asks))
    return f'<div class="actions" role="group" aria-label="Actions">{"".join(buttons)}</div>'


def _diagnosis(view: TargetView) -> str:
    found = view.diagnosis
    assert found is not None
    evidence = "".join(
        f"<tr><td>{escape(each.figure)}</td><td class=n>{escape(each.amount)}</td>"
        f"<td>{escape(each.role)}</td><td>{told(each.detail)}</td></tr>"
        for each in found.evidence
    )
    parts = [f'<p class="lead"><b>{escape(found.regime.replace("_", " "))}</b>: {told(found.means, 1_000)}</p>']
    if evidence:
        parts.append(
            '<div class="wide"><table><caption>Evidence</caption><thead><tr><th scope="col">seen</th>'
            '<th scope="col" class="n">value</th><th scope="col">role</th><th scope="col">of</th></tr></thead>'
            f"<tbody>{evidence}</tbody></table></div>"
        )
    lists = (
        ("Not measured", [told(each) for each in found.missing]),
        (
            "Instead?",
            [f"<b>{escape(each.regime.replace('_', ' '))}</b>: {told(each.why, 600)}" for each in found.runners_up],
        ),
        (
            "What to do",
            [
                f"{told(each.do)}{f' (<code>{told(each.knob)}</code>)' if each.knob else ''}; the price: {told(each.trades)}"
                for each in found.advice
            ],
        ),
        ("Measure next", [told(found.next_measurement, 1_000)] if found.next_measurement else []),
    )
    parts += [f"<h3>{name}</h3><ul>{''.join(f'<li>{each}</li>' for each in rows)}</ul>" for name, rows in lists if rows]
    return "".join(parts)


def _standings(view: TargetView) -> str:
    if not view.standings:
        return '<p class="none">None is configured.</p>'
    rows = []
    for each in view.standings:
        kind, word = standing(each.state)
        limit = f" ≤ {ms(each.slo.threshold_s)}" if each.slo.threshold_s is not None else ""
        why = f"<br><small>{told(each.why)}</small>" if each.why else ""
        rows.append(
            f'<th scope="row">{told(each.slo.name)}<br><small>{told(each.workload)}</small></th>'
            f"<td>{mark(kind, word)}{why}</td><td>{percent(each.slo.objective)} of {SIGNALS.get(each.slo.signal, each.slo.signal)}"
            f'{limit}</td><td class="n">{each.bad:,} of {each.events:,}{_share(each.bad, each.events)}</td>'
        )
    note = "<p class=\"note\">Since the prober's start; over the SLO's own window in Prometheus.</p>"
    return table("SLOs", ["SLO", "state", "objective", "#bad events"], rows, kind="broad") + note


def _share(bad: int, events: int) -> str:
    return f"<br><small>{bad / events:.3%}</small>" if events else ""


def _quantiles(view: TargetView) -> str:
    rows = []
    workloads = {workload for workload, _ in view.quantiles}
    for (workload, signal), found in sorted(view.quantiles.items(), key=lambda item: _place(item[0])):
        by_q = {quantile.q: quantile for quantile in found}
        whose = f"<br><small>{told(workload, 60)}</small>" if len(workloads) > 1 else ""
        cells = "".join(f'<td class="n">{_quantile(by_q[q])}</td>' for q in QS)
        rows.append(
            f'<th scope="row">{SIGNALS.get(signal, signal)}{whose}</th>{cells}<td class="n">{found[0].count:,}</td>'
        )
    if not rows:
        return '<p class="none">No successful probe yet: no data, which is neither good nor bad.</p>'
    head = ["latency", *(f"#p{q * 100:g}" for q in QS), "#samples"]
    note = '<p class="note">Below each its distribution-free 95% interval; “?” where the samples give no bound.</p>'
    return table("Percentiles", head, rows) + note


def _place(key: tuple[str, str]) -> tuple[str, int]:
    workload, signal = key
    return workload, list(SIGNALS).index(signal) if signal in SIGNALS else len(SIGNALS)


def _quantile(quantile: Quantile) -> str:
    low, high = (_whole(ms(bound)) if bound is not None else "?" for bound in (quantile.lower, quantile.upper))
    few = "" if quantile.enough else "<small>too few</small>"
    kind = "" if quantile.enough else ' class="few"'
    return f"<span{kind}>{ms(quantile.estimate)}{few}</span><small>{low} – {high}</small>"


def _whole(figure: str) -> str:
    """Not broken off its unit."""
    return figure.replace(" ", "\N{NO-BREAK SPACE}")


def _drift(view: TargetView, now_unix_s: float) -> str:
    if not view.drifts:
        return '<p class="none">Not watched: nothing of it streams.</p>'
    rows = [
        f'<th scope="row">{SIGNALS.get(each.signal, each.signal)}<br><small>{told(each.workload, 60)}</small></th>'
        f"<td>{_phase(each, now_unix_s)}</td><td>{_meter(each)}</td><td>{_shifts(each)}</td>"
        for each in view.drifts
    ]
    note = '<p class="note">Evidence is on a log scale: 1 is the threshold that alarms.</p>'
    return table("Drift", ["latency", "baseline", "evidence", "shift, 95% interval"], rows, kind="broad") + note


def _phase(each: Drifting, now_unix_s: float) -> str:
    if each.verdict.active:
        since = each.verdict.since_unix_s
        cause = f"<br><small>cause: {each.verdict.cause}</small>" if each.verdict.cause else ""
        return mark("few", f"slower since {clock(since, now_unix_s)}" if since else "slower") + cause
    if each.verdict.phase == "learning":
        return mark("unknown", "learning")
    return mark("good", f"as usual <small>({each.verdict.phase})</small>")


def _meter(each: Drifting) -> str:
    full = min(1.0, max(0.0, each.verdict.evidence))
    kind = "few" if each.verdict.active else "good"
    said = f"{each.verdict.evidence:.2f} of 1"
    return f'<span class="n">{said}</span>{bar(full, kind, f"evidence {said}")}'


def _shifts(each: Drifting) -> str:
    if not each.verdict.active:
        return "–"
    found = [f"p{s.q * 100:g} ×{s.ratio:.3g} <small>[{s.lower:.3g}, {s.upper:.3g}]</small>" for s in each.shifts]
    return "<br>".join(found) or "<small>too few samples since</small>"


def _budget(view: TargetView) -> str:
    parts = [_spending(each) for each in view.budgets]
    if not view.budgets:
        parts.append('<p class="none">No budget is set: probing may use what its rate takes.</p>')
    if view.estimate is not None:
        dollars = f", ${view.estimate.dollars:.2f}" if view.estimate.dollars is not None else ""
        parts.append(
            f'<p class="note">As configured, probing takes about {amount(view.estimate.tokens)} tokens{dollars} a day.</p>'
        )
    return "".join(parts)


def _spending(each: Spending) -> str:
    spent, limit = (f"${v:.2f}" if each.kind == "cost" else amount(v) for v in (each.spent, each.limit))
    left = each.left_ratio
    kind: Kind = "good" if left > 0.2 else "few" if left > 0 else "bad"
    label = f"{spent} of {limit}{'' if each.kind == 'cost' else f' {each.kind}'} in the last 24 hours"
    return f"<p>{mark(kind, label)}</p>{used(each.spent / each.limit, kind, label)}"


def _outcomes(view: TargetView) -> str:
    if not view.outcomes:
        return '<p class="none">None yet.</p>'
    total = sum(view.outcomes.values())
    rows = [
        f'<th scope="row">{escape(name)}</th><td class="n">{count:,}</td><td class="n">{count / total:.2%}</td>'
        for name, count in view.outcomes.items()
    ]
    return table("Probes since start", ["outcome", "#probes", "#share"], rows)


def happenings(events: Sequence[Event], now_unix_s: float, *, named: bool) -> str:
    """What happened, latest first; long texts open."""
    if not events:
        return '<p class="none">None yet.</p>'
    found = []
    for event in events:
        first, _, rest = event.text.partition("\n")
        whose = f' <a href="{link(event.target)}">{told(event.target, 80)}</a>' if named else ""
        said = (
            f"<details><summary>{told(first, 400)}</summary><pre>{told(rest, 6_000)}</pre></details>"
            if rest
            else told(first, 600)
        )
        found.append(
            f'<li><span class="when">{clock(event.unix_s, now_unix_s)}</span><span class="what">'
            f"<b>{escape(event.kind)}</b>{whose}</span><span>{said}</span></li>"
        )
    return f'<ul class="events">{"".join(found)}</ul>'

"""What a target can carry, how much of that is free, and the sweeps that found it."""

from html import escape

from prober.features.experiments.report.document import Figure
from prober.results.capacity import binding, words
from prober.results.stop_reason import ending
from prober.web.page.marks import attribute, clock, mark, share, shown, table, told, used
from prober.web.page.view import Capacities, Kind, Room, TargetView

LISTED = 6  # results


def capacity(view: TargetView, now_unix_s: float) -> str:
    """What the last sweep found, and how much of it is free."""
    found = view.capacity
    if found is None:
        last = f" The last one: {told(words(view.sweeps[0].capacities), 600)}." if view.sweeps else ""
        return f'<p class="none">Not known: no sweep has found one.{last}</p>'
    parts = [
        f'<p class="lead">{told(words(found.found), 1_000)}</p><p class="note">As of {clock(found.at_unix_s, now_unix_s)} UTC; '
        f"90% intervals, in requests of the sweep's shape{_shape(found)}.</p>"
    ]
    if found.demand_per_s is not None:
        parts.append(f"<p>The engine finishes {found.demand_per_s:.3g} requests/s now, {_alike(found)}.</p>")
    elif all(each.estimate is None for each in found.rooms):
        parts.append('<p class="none">Demand and headroom are not known now.</p>')
    parts += [_room(each) for each in found.rooms]
    return "".join(parts) + _exhausted(found, now_unix_s)


def _shape(found: Capacities) -> str:
    """How large a request of the sweep is."""
    least = binding(tuple(found.found))
    if least is None or not least.tokens_per_s or not least.estimate:
        return ""
    return f", of {least.tokens_per_s / least.estimate:,.0f} tokens each"


def _alike(found: Capacities) -> str:
    """The demand in requests of the sweep's shape, which is what headroom rests on."""
    if found.demand_per_s is None or not found.shape_ratio:
        return "counted as if of the sweep's shape, as their tokens are not known"
    times, kind = found.shape_ratio, "smaller"
    if times < 1:
        times, kind = 1 / times, "larger"
    return (
        f"as much as <b>{found.demand_per_s / found.shape_ratio:.3g}/s</b> of the sweep's shape: "
        f"they are {times:.3g} times {kind}, in tokens"
    )


def _exhausted(found: Capacities, now_unix_s: float) -> str:
    if found.exhausted_unix_s is None:
        return ""
    days = (found.exhausted_unix_s - now_unix_s) / 86_400
    when = f"in about {days:.0f} days" if days > 0 else "now"
    return f"<p>{mark('few', f'Daily peaks, as they grow, reach it {when}.')}</p>"


def _room(each: Room) -> str:
    if each.estimate is None:
        return ""
    bounds = (
        f" <small>[{each.lower:.0%}, {each.upper:.0%}]</small>"
        if each.lower is not None and each.upper is not None
        else ""
    )
    kind: Kind = (
        "good"
        if (each.lower if each.lower is not None else each.estimate) > 0.2
        else "few"
        if each.estimate > 0
        else "bad"
    )
    busy = 1 - each.estimate
    free = f"{share(each.estimate)} free" if each.estimate >= 0 else f"none, {-each.estimate:.0%} above the capacity"
    return (
        f"<p>Headroom in {each.unit}: {mark(kind, free)}{bounds}</p>"
        f"{used(busy, kind, f'{share(busy)} of the capacity in use, in {each.unit}')}"
    )


def results(view: TargetView, now_unix_s: float) -> str:
    """The last ones, latest first."""
    if not view.sweeps:
        return '<p class="none">No result yet.</p>'
    rows = [
        f'<th scope="row">{clock(each.ended_unix_s, now_unix_s)}</th><td>{told(words(each.capacities), 600)}</td>'
        f'<td>{told(ending(each.stop, each.stop_detail), 200)}</td><td class="n">{len(each.stages)}</td>'
        f'<td><a href="api/v1/sweeps/{attribute(each.id)}">JSON</a></td>'
        for each in view.sweeps[:LISTED]
    ]
    return table("Last sweeps", ["ended, UTC", "found", "why it ended", "#stages", "result"], rows, kind="broad")


def figure(chart: Figure) -> str:
    """A chart under its title."""
    keys = "".join(
        f'<span class="swatch"><i style="--colour:{colour}"></i>{told(name, 60)}</span> ' for colour, name in chart.keys
    )
    return (
        f'<figure><figcaption>{escape(chart.title)}</figcaption>{shown(chart.svg)}<p class="keys">{keys}</p>'
        f'<p class="note">{escape(chart.note)}</p></figure>'
    )

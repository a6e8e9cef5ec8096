"""The page's small parts: text that nobody's name can break out of, states told by sign and word, times."""

import re
from datetime import UTC, datetime
from hashlib import sha1
from html import escape
from urllib.parse import quote

from prober.features.slo.status import State
from prober.web.page.view import Kind, TargetView

LONG = 300  # characters of a foreign text where it is one of many
DAY_S = 86_400
SIGNS: dict[Kind, str] = {"good": "✓", "bad": "✗", "few": "▲", "unknown": "?"}
_STANDINGS: dict[State, tuple[Kind, str]] = {
    "met": ("good", "met"),
    "missed": ("bad", "missed"),
    "no_data": ("unknown", "no data"),
}
_CELL = re.compile(r"(?=<t[dh][ >])")

# Nothing that steers a terminal, turns the direction of what follows, or is half a character: shown as what it is, a fault.
_FAULTS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160), *range(55296, 57344)), "�")
_FAULTS |= dict.fromkeys((1564, 8206, 8207, *range(8234, 8239), *range(8294, 8298)), "�")


def clean(text: str, most: int = LONG) -> str:
    """Characters that can be shown, and not too many of them."""
    return shown(text[:most]) + ("…" if len(text) > most else "")


def shown(text: str) -> str:
    """The same without a limit, of a text that may be markup already."""
    return text.translate(_FAULTS)


def told(text: str, most: int = LONG) -> str:
    """A foreign text: escaped, and its direction kept to itself."""
    return f"<bdi>{escape(clean(text, most))}</bdi>"


def attribute(text: str) -> str:
    """A foreign text inside quotes."""
    return escape(clean(text, 2_000))


def mark(kind: Kind, words: str) -> str:
    """A state: colour, sign and words."""
    return f'<span class="mark {kind}"><i aria-hidden="true">{SIGNS[kind]}</i> {words}</span>'


def state(view: TargetView) -> str:
    """What state a target is in, which is no verdict: one that is ready may miss all its SLOs."""
    if view.paused_unix_s is not None:
        return '<span class="state"><i aria-hidden="true">‖</i> paused</span>'
    return f'<span class="state">state: {escape(view.state)}</span>'


def standing(of: State) -> tuple[Kind, str]:
    """How an SLO's state is told."""
    return _STANDINGS[of]


def link(name: str) -> str:
    """The address of a target's own page."""
    return f"?target={quote(name, safe='', errors='replace')}"


def anchor(key: str) -> str:
    """An id for a key that may hold anything."""
    return sha1(key.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:10]


def clock(unix_s: float, now_unix_s: float) -> str:
    """A time, with its day unless that is within the last twelve hours."""
    if not unix_s:
        return "–"
    at = datetime.fromtimestamp(unix_s, UTC)
    form = "%H:%M:%S" if abs(now_unix_s - unix_s) < DAY_S / 2 else "%Y-%m-%d %H:%M"
    return f'<time datetime="{at:%Y-%m-%dT%H:%M:%SZ}">{at.strftime(form)}</time>'


def ago(seconds: float) -> str:
    """A length of time in its largest unit."""
    for unit, name in ((DAY_S, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def amount(value: float) -> str:
    """A large number in three digits."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def share(ratio: float) -> str:
    """A share in percent; one that is not all or nothing is never told as that."""
    if 0 < ratio < 0.01:
        return "under 1%"
    return "over 99%" if 0.99 < ratio < 1 else f"{ratio:.0%}"


def table(caption: str, head: list[str], rows: list[str], *, kind: str = "") -> str:
    """Rows of cells that are made already; columns whose name begins with `#` hold numbers.

    Each cell bears its column's name, for where there is no room for columns.
    """
    names = [name.removeprefix("#") for name in head]
    cells = "".join(
        f'<th scope="col"{" class=n" if given != name else ""}>{name}</th>'
        for given, name in zip(head, names, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_named, _CELL.split(row)[1:], names))}</tr>" for row in rows)
    return (
        f'<div class="wide" role="region" aria-label="{escape(caption)}: table" tabindex="0"><table class="{kind}">'
        f"<caption>{escape(caption)}</caption><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _named(cell: str, column: str) -> str:
    return f'{cell[:3]} data-of="{column}"{cell[3:]}'


def bar(ratio: float, kind: str, label: str) -> str:
    """A share from 0 to 1 as a bar."""
    return (
        f'<svg class="bar {kind}" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f'<path class="track" d="M0 3H100"/><path class="part" d="M0 3H{min(100, max(0, round(ratio * 100)))}"/></svg>'
    )


def used(ratio: float, kind: str, label: str) -> str:
    """A bar that says what it is full of."""
    return f'<div class="used">{bar(ratio, kind, label)}<small>{share(ratio)} used</small></div>'

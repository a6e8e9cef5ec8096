"""The page's small parts: text that nobody's name can break out of, states told by sign and word, times."""

from datetime import UTC, datetime
from hashlib import sha1
from html import escape
from urllib.parse import quote

from prober.generate.page.view import Kind, TargetView
from prober.slo.standing import State

LONG = 300  # characters of a foreign text where it is one of many
DAY_S = 86_400
SIGNS: dict[Kind, str] = {"good": "✓", "bad": "✗", "few": "▲", "unknown": "?"}
_STANDINGS: dict[State, tuple[Kind, str]] = {
    "met": ("good", "met"),
    "missed": ("bad", "missed"),
    "no_data": ("unknown", "no data"),
}
_STATES: dict[str, Kind] = {"ready": "good", "failing": "bad"}


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
    """What state a target is in."""
    if view.paused_unix_s is not None:
        return '<span class="mark unknown"><i aria-hidden="true">‖</i> paused</span>'
    return mark(_STATES.get(view.state, "unknown"), escape(view.state))


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


def table(caption: str, head: list[str], rows: list[str], *, kind: str = "") -> str:
    """Rows of cells that are made already; columns whose name begins with `#` hold numbers."""
    cells = "".join(
        f'<th scope="col"{" class=n" if name.startswith("#") else ""}>{name.removeprefix("#")}</th>' for name in head
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="wide" role="region" aria-label="{escape(caption)}" tabindex="0"><table class="{kind}">'
        f"<caption>{escape(caption)}</caption><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"
    )

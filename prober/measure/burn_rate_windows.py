"""Multi-window, multi-burn-rate pairs of the Google SRE workbook, chapter 5, table 5-8, as data.

https://sre.google/workbook/alerting-on-slos/: an alert fires when both a long window and a short one of a twelfth of it burn the
budget faster than `burn`: the long one so that it matters, the short one so that it ends soon after the cause does.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

DAY_S = 86_400
CITED_WINDOW_S = 30 * DAY_S
SHORTEST_S = 60  # a rate over less sees too few scrapes


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of both windows; `spent`: the share of the whole budget that is gone when the long window burns at `burn`."""

    severity: Literal["critical", "warning"]
    short_s: int
    long_s: int
    burn: Decimal
    spent: Decimal


CITED = (
    Pair("critical", 300, 3_600, Decimal("14.4"), Decimal("0.02")),
    Pair("critical", 1_800, 6 * 3_600, Decimal(6), Decimal("0.05")),
    Pair("warning", 2 * 3_600, DAY_S, Decimal(3), Decimal("0.10")),
    Pair("warning", 6 * 3_600, 3 * DAY_S, Decimal(1), Decimal("0.10")),
)
SHORTEST_SLO_WINDOW_S = SHORTEST_S * CITED_WINDOW_S / min(pair.short_s for pair in CITED)


def pairs(slo_window_s: float) -> tuple[Pair, ...]:
    """The pairs for an SLO over `slo_window_s`: the cited windows are for 30 days and scale with it; burn rates stay.

    Whole seconds. Below SHORTEST_SLO_WINDOW_S the shortest window would be under a minute.
    """
    scale = slo_window_s / CITED_WINDOW_S
    return tuple(
        Pair(pair.severity, round(pair.short_s * scale), round(pair.long_s * scale), pair.burn, pair.spent)
        for pair in CITED
    )


def promql(seconds: float) -> str:
    """A duration as PromQL writes it: 1h, 1h24m, 4m40s."""
    left, out = round(seconds), ""
    for unit, size in (("d", DAY_S), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        out += f"{count}{unit}" if count else ""
    return out or "0s"

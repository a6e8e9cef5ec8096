"""Window pairs and burn rates of the Google SRE workbook, chapter 5, table 5-8.

https://sre.google/workbook/alerting-on-slos/: an alert fires when a long window and a short one of a twelfth of it both burn the
budget faster than `burn`. The long window makes sure that the burn matters, the short one ends the alert soon after its cause.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

DAY_S = 86_400
WORKBOOK_WINDOW_S = 30 * DAY_S
MIN_RATE_WINDOW_S = 60  # a shorter rate window has too few scrapes


@dataclass(frozen=True, slots=True)
class Pair:
    """A window pair. spent: share of the budget that the long window uses at burn rate `burn`."""

    severity: Literal["critical", "warning"]
    short_s: int
    long_s: int
    burn: Decimal
    spent: Decimal


WORKBOOK_PAIRS = (
    Pair("critical", 300, 3_600, Decimal("14.4"), Decimal("0.02")),
    Pair("critical", 1_800, 6 * 3_600, Decimal(6), Decimal("0.05")),
    Pair("warning", 2 * 3_600, DAY_S, Decimal(3), Decimal("0.10")),
    Pair("warning", 6 * 3_600, 3 * DAY_S, Decimal(1), Decimal("0.10")),
)
MIN_SLO_WINDOW_S = MIN_RATE_WINDOW_S * WORKBOOK_WINDOW_S / min(pair.short_s for pair in WORKBOOK_PAIRS)


def pairs(slo_window_s: float) -> tuple[Pair, ...]:
    """Window pairs for an SLO window of `slo_window_s`. The workbook's windows are for 30 days and are scaled; burn rates stay.

    Windows are whole seconds. Below MIN_SLO_WINDOW_S the shortest would be under a minute.
    """
    scale = slo_window_s / WORKBOOK_WINDOW_S
    return tuple(
        Pair(pair.severity, round(pair.short_s * scale), round(pair.long_s * scale), pair.burn, pair.spent)
        for pair in WORKBOOK_PAIRS
    )


def promql(seconds: float) -> str:
    """A duration in PromQL syntax: 1h, 1h24m, 4m40s."""
    remaining, out = round(seconds), ""
    for unit, size in (("d", DAY_S), ("h", 3_600), ("m", 60), ("s", 1)):
        count, remaining = divmod(remaining, size)
        out += f"{count}{unit}" if count else ""
    return out or "0s"

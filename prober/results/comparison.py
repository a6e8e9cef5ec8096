"""The stored comparison of two targets: differences, and limits of the figures."""

from dataclasses import dataclass
from typing import Any, Literal

from prober.results.load_description import current_load
from prober.results.result import Load, Target
from prober.results.result_file import KEY
from prober.results.strict_json import Reader, Unreadable, dumps
from prober.statistics.quantiles import Quantile

Side = Literal["a", "b"]
INSIDE = "comparison"
FORMAT = 3  # 2: lengths are the `repr` of a distribution


@dataclass(frozen=True, slots=True)
class Compared:
    """Result for an axis at a rate, and of a workload if there are several.

    effect, lower, upper: B ÷ A − 1 (`ratio`) or B − A, with the 95% interval for this axis alone; None with too few rounds
    p: of Wilcoxon's test; p_adjusted: adjusted for all axes and rates
    better: the better side; None if the adjusted p is above the error
    a, b: the quantile of each side over all rounds (latencies only)
    """

    axis: str
    rate_per_s: float
    ratio: bool
    rounds: int
    effect: float
    lower: float | None
    upper: float | None
    p: float
    p_adjusted: float
    better: Side | None
    a: Quantile | None = None
    b: Quantile | None = None
    workload: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two targets.

    load: of both sides; None if they cannot be compared
    error: largest probability that any claim is wrong
    differs: (property, value of A, value of B) of engine and model
    said: limits of the figures, in sentences
    configuration: of the command, as JSON
    """

    id: str
    started_unix_s: float
    ended_unix_s: float
    tool: str
    a: Target
    b: Target
    load: Load | None
    error: float
    compared: tuple[Compared, ...]
    differs: tuple[tuple[str, str, str], ...]
    said: tuple[str, ...]
    configuration: str | None = None


_READER = Reader(Comparison)


def to_json(comparison: Comparison) -> str:
    """The file's text."""
    return dumps({KEY: {"format": FORMAT, INSIDE: comparison}}).decode()


def is_comparison(document: object) -> bool:
    """Whether the parsed JSON is the file of a comparison, in any format."""
    own = document.get(KEY) if isinstance(document, dict) else None
    return isinstance(own, dict) and INSIDE in own


def from_object(document: Any, source: str) -> Comparison:
    """The comparison that `to_json` wrote. Raises Unreadable, which names `source` and the key."""
    own = document[KEY]
    if own.get("format") not in (2, FORMAT):
        raise Unreadable(
            f"{source}: {KEY}.format: is {own.get('format')!r}, this prober reads comparisons of 2 to {FORMAT}; use the version "
            "that wrote it"
        )
    content = own[INSIDE]
    if own["format"] < FORMAT and isinstance(content, dict) and "load" in content:
        content = content | {"load": current_load(content["load"])}
    comparison: Comparison = _READER.read(content, source, f"{KEY}.{INSIDE}")
    return comparison

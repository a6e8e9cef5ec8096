"""JSON object of another tool's file: an absent value is None, a present one must have the right type."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prober.results.result import Stage
from prober.results.stage import is_stated
from prober.results.strict_json import Unreadable
from prober.statistics.quantiles import REPORTED_QUANTILES, Quantile, percentile_name

QUANTILES = {percentile_name(q): q for q in REPORTED_QUANTILES}


@dataclass(frozen=True, slots=True)
class ExportedObject:
    """A JSON object. source: name of its file for errors. Keys are paths: `number("request_latency", "p99")`."""

    source: str
    values: Mapping[str, Any]

    def get(self, *path: str | int) -> Any:
        """The value at a path; None if it is absent."""
        value: Any = self.values
        for key in path:
            if isinstance(value, Mapping):
                value = value.get(key)
            elif isinstance(value, list) and isinstance(key, int) and key < len(value):
                value = value[key]
            else:
                return None
        return value

    def number(self, *path: str | int) -> float | None:
        """A number; None also for an infinite one, which tools write as text, and for an empty text."""
        value = self.get(*path)
        if value is None or value in ("inf", ""):
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(path, value, "a number")
        return float(value)

    def count(self, *path: str | int) -> int | None:
        """A number, rounded to an integer."""
        value = self.number(*path)
        return None if value is None else round(value)

    def text(self, *path: str | int) -> str | None:
        """The value at a path as text; of a list, its first element."""
        value = self.get(*path)
        if isinstance(value, list):
            value = value[0] if value else None
        return None if value is None or isinstance(value, Mapping | list) else str(value)

    def rows(self, *path: str | int) -> list[Any] | None:
        """The list at a path; None if it is absent."""
        value = self.get(*path)
        if value is not None and not isinstance(value, list):
            raise self.wrong(path, value, "a list")
        return value

    def inside(self, *path: str | int) -> "ExportedObject":
        """The object at a path; an empty one if it is absent."""
        value = self.get(*path)
        return ExportedObject(self.source, value if isinstance(value, Mapping) else {})

    def unix_s(self, key: str) -> float | None:
        """Seconds of an ISO time, or of vLLM's `20261120-101500`; without a zone it is read as UTC."""
        text = self.text(key) or ""
        if re.fullmatch(r"\d{8}-\d{6}", text):
            text = text.replace("-", "T")
        try:
            value = datetime.fromisoformat(text)
        except ValueError:
            return None
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()

    def wrong(self, path: tuple[str | int, ...], value: Any, expected: str) -> Unreadable:
        """Error that names file, key and value."""
        key = ".".join(map(str, path))
        return Unreadable(f"{self.source}: {key}: is {str(value)[:40]!r}, not {expected}")


def reported(value: Callable[[str], float | None], answers: int) -> dict[str, float]:
    """The statistics of a latency that a tool states, by name ("mean", "std", "p99", …, "max").

    value: returns the seconds of a name; None if the tool does not state it
    """
    names = ("mean", "std", *(name for name, q in QUANTILES.items() if is_stated(q, answers)))
    return {name: seconds for name in names if (seconds := value(name)) is not None}


def stage_of_figures(
    name: str,
    rate_per_s: float | None,
    duration_s: float | None,
    answered: int,
    failed: int | None,
    figures: Mapping[str, Mapping[str, float]],
    counts: Mapping[str, int],
) -> Stage:
    """Stage from a tool's own figures; its quantiles have no confidence intervals.

    failed: None if the tool does not count them; figures: result of `reported` by latency; counts: samples by latency, 0 if unknown
    """
    quantiles = {
        latency: tuple(
            Quantile(q, values[name], None, None, counts[latency]) for name, q in QUANTILES.items() if name in values
        )
        for latency, values in figures.items()
    }
    return Stage(
        name=name,
        rate_per_s=rate_per_s,
        begin_s=0.0,
        sending_s=None,
        duration_s=duration_s,
        sent=answered + (failed or 0),
        answered=answered,
        outcomes={} if failed is None else {"ok": answered, **({"failed": failed} if failed > 0 else {})},
        latencies={latency: values for latency, values in quantiles.items() if values},
    )


def without_secrets(url: str | None) -> str | None:
    """A URL, with or without a scheme, but without user, password, query and fragment, which can hold secrets."""
    if url is None:
        return None
    scheme, mark, rest = re.split(r"[?#]", url)[0].rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"

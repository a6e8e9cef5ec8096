"""A tool's file with its keys: what is absent is None, what is there must be of its kind."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prober.results.stage import QS
from prober.results.strict_json import Unreadable
from prober.statistics.quantiles import Quantile


@dataclass(frozen=True, slots=True)
class Sheet:
    """One JSON object of a file. `source` names it in errors. Keys are paths: `number("request_latency", "p99")`."""

    source: str
    values: Mapping[str, Any]

    def get(self, *path: str | int) -> Any:
        """What is there, None where it is absent."""
        found: Any = self.values
        for key in path:
            if isinstance(found, Mapping):
                found = found.get(key)
            elif isinstance(found, list) and isinstance(key, int) and key < len(found):
                found = found[key]
            else:
                return None
        return found

    def number(self, *path: str | int) -> float | None:
        """A number; infinite ones, which tools write as a text, are None, and so is an empty text."""
        found = self.get(*path)
        if found is None or found in ("inf", ""):
            return None
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.wrong(path, found, "a number")
        return float(found)

    def count(self, *path: str | int) -> int | None:
        """A whole number."""
        found = self.number(*path)
        return None if found is None else round(found)

    def text(self, *path: str | int) -> str | None:
        """A text, also of a number; the first one of a list."""
        found = self.get(*path)
        if isinstance(found, list):
            found = found[0] if found else None
        return None if found is None or isinstance(found, Mapping | list) else str(found)

    def rows(self, *path: str | int) -> list[Any] | None:
        """A list."""
        found = self.get(*path)
        if found is not None and not isinstance(found, list):
            raise self.wrong(path, found, "a list")
        return found

    def inside(self, *path: str | int) -> "Sheet":
        """The object there, an empty one where it is absent."""
        found = self.get(*path)
        return Sheet(self.source, found if isinstance(found, Mapping) else {})

    def first(self, *paths: tuple[str | int, ...]) -> str | None:
        """The first of several places that has a text."""
        return next((found for path in paths if (found := self.text(*path)) is not None), None)

    def unix_s(self, key: str) -> float | None:
        """Seconds of an ISO time, or of vLLM's `20261120-101500`; without a zone it is read as UTC."""
        text = self.text(key) or ""
        if re.fullmatch(r"\d{8}-\d{6}", text):
            text = text.replace("-", "T")
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            return None
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()

    def wrong(self, path: tuple[str | int, ...], found: Any, wanted: str) -> Unreadable:
        """The error that says what stands where."""
        key = ".".join(map(str, path))
        return Unreadable(f"{self.source}: {key}: is {str(found)[:40]!r}, not {wanted}")


def told(values: Iterator[tuple[float, float | None]], count: int) -> tuple[Quantile, ...]:
    """Quantiles that a tool tells, (q, seconds): no intervals, and `count` samples where it tells so, else 0."""
    return tuple(Quantile(q, value, None, None, count) for q, value in values if value is not None and q in QS)


def times(factor: float, value: float | None) -> float | None:
    """The product; None of None."""
    return None if value is None else factor * value


def average(value: float | None, count: int | None) -> float | None:
    """value ÷ count; None where either is not known or 0."""
    return value / count if value and count else None


def without_secrets(url: str | None) -> str | None:
    """A URL, with or without a scheme, without user, password, query and fragment, where secrets are put."""
    if url is None:
        return None
    scheme, mark, rest = re.split(r"[?#]", url)[0].rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"

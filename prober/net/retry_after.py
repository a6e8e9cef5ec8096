"""The pause that an answer asks for: the header `Retry-After` (RFC 9110, 10.2.3), else the end of an exhausted rate limit."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

MAX_PAUSE_S = 366 * 86_400
_SECONDS = re.compile(r"-?[0-9]{1,15}")
_FORMATS = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")  # RFC 9110, 5.6.7
_LIMITS = ("requests", "tokens", "input-tokens", "output-tokens")
_MAX_DATE_CHARS = 40


def requested_pause_s(headers: Mapping[str, str], unix_s: float) -> float | None:
    """Seconds that an answer asks the client to wait; None if it does not, if that cannot be read, or above a year.

    Without a `Retry-After`, that is until the last `anthropic-ratelimit-*-reset` of the limits of which nothing is `-remaining`.
    A negative number and a date that has passed are 0. A date counts from the answer's own `Date`, so that the server's clock need
    not be right; from `unix_s`, the prober's wall clock, if the answer has none.

    headers: names in lower case, or a mapping that ignores case
    """
    value = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(value):
        pause_s = float(value)
    else:
        until_s = _http_date(value) if value else _limit_end(headers)
        if until_s is None:
            return None
        sent_s = _http_date(headers.get("date", "").strip())
        pause_s = until_s - (unix_s if sent_s is None else sent_s)
    return max(0.0, pause_s) if pause_s <= MAX_PAUSE_S else None


def _limit_end(headers: Mapping[str, str]) -> float | None:
    """When the last of the exhausted limits is filled again, in Unix seconds; None without one. The times are those of RFC 3339."""
    ends = []
    for name in (f"anthropic-ratelimit-{limit}" for limit in _LIMITS):
        try:
            end = datetime.fromisoformat(headers.get(f"{name}-reset", ""))
        except ValueError:
            continue
        if headers.get(f"{name}-remaining") == "0" and end.tzinfo is not None:
            ends.append(end.timestamp())
    return max(ends, default=None)


def _http_date(text: str) -> float | None:
    """Unix seconds; None for anything else."""
    if not text.isascii() or len(text) > _MAX_DATE_CHARS:
        return None
    for layout in _FORMATS:
        try:
            return datetime.strptime(text, layout).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    return None

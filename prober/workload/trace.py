"""Recorded traffic: arrival times, lengths and shared prefixes, read from published trace formats."""

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

BLOCK_TOKENS = 512
# Seconds read as milliseconds give 1,000 times the rate. The busiest published traces have 50/s.
MAX_RATE_IN_MS_PER_S = 100.0
EPOCH_S_AS_NS = range(10**15, 10**17)  # Unix times in seconds, 2001 to 5138, read as milliseconds


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded traffic.

    offsets_ns: arrival times since the first request, ascending, shape (requests,)
    prompt_tokens, output_tokens: lengths, shape (requests,)
    blocks: ids of each request's prefix blocks of `BLOCK_TOKENS` tokens (equal ids mean equal text); None if not recorded
    seems_in_seconds: the times were read as milliseconds, but look like seconds
    """

    offsets_ns: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...] | None = None
    seems_in_seconds: bool = False

    @property
    def rate_per_s(self) -> float:
        """Mean rate of requests at the recorded speed."""
        return (len(self.offsets_ns) - 1) * 1e9 / max(1, self.offsets_ns[-1] - self.offsets_ns[0])


class BadTrace(ValueError):
    """A trace file is invalid. The message names the file, the line and the remedy."""


Row = tuple[int, int, int, tuple[int, ...]]


def parse_trace(text: str, where: str) -> Trace:
    """Parses a Mooncake JSONL trace (timestamp in ms, input_length, output_length, hash_ids) or an Azure CSV trace.

    Raises BadTrace.
    """
    text = text.removeprefix("\ufeff")
    is_in_ms = text.lstrip().startswith("{")
    rows = list(_mooncake(text, where) if is_in_ms else _azure(text, where))
    if len(rows) < 2:
        raise BadTrace(f"{where}: {len(rows)} requests in it; a trace needs two or more to have a rate")
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    if rows[-1][0] == first:  # the rate would be infinite
        raise BadTrace(f"{where}: all {len(rows)} requests have the same time; a trace needs two times or more")
    blocks = tuple(row[3] for row in rows)
    trace = Trace(
        tuple(row[0] - first for row in rows),
        tuple(max(1, row[1]) for row in rows),
        tuple(max(1, row[2]) for row in rows),
        blocks if any(blocks) else None,
    )
    is_dense = trace.rate_per_s > MAX_RATE_IN_MS_PER_S
    return replace(trace, seems_in_seconds=is_in_ms and (is_dense or first in EPOCH_S_AS_NS))


def _mooncake(text: str, where: str) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            yield (
                round(float(row["timestamp"]) * 1e6),
                _length(row["input_length"]),
                _length(row["output_length"]),
                tuple(int(block) for block in row.get("hash_ids", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            need = "needs a JSON object with timestamp (ms), input_length, output_length and, if known, hash_ids"
            raise BadTrace(f"{where}: line {number}: {need}") from None


def _length(tokens: int | float | str) -> int:
    if (length := int(tokens)) < 0:
        raise ValueError
    return length


# 2023: 2023-11-16 18:15:46.6805900; 2024: 2024-05-10 00:00:00.009930+00:00
_TIME = re.compile(r"([^.+]+?)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?")


def _azure(text: str, where: str) -> Iterator[Row]:
    # The files have no quoted fields: a stray quote must not swallow the following lines.
    reader = csv.reader(text.splitlines(), quoting=csv.QUOTE_NONE)
    header = next(reader, [])
    if header[:3] != ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]:
        raise BadTrace(f"{where}: line 1: neither JSON lines nor the columns TIMESTAMP,ContextTokens,GeneratedTokens")
    for row in reader:
        if not row:
            continue
        try:
            yield _instant_ns(row[0]), _length(row[1]), _length(row[2]), ()
        except (ValueError, IndexError):
            need = "needs a time, prompt tokens and generated tokens, such as 2023-11-16 18:15:46.68,374,44"
            raise BadTrace(f"{where}: line {reader.line_num}: {need}") from None


def _instant_ns(text: str) -> int:
    """Unix time in nanoseconds; UTC without a zone. Reads seven decimals, because datetime supports only six."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError
    seconds_text, fraction, zone = match.groups("")
    at = datetime.fromisoformat(seconds_text + zone)
    seconds = int((at if zone else at.replace(tzinfo=UTC)).timestamp())
    return seconds * 10**9 + int(fraction.ljust(9, "0")[:9])

"""Recorded traffic: arrival times, lengths and shared prefixes, from the formats that providers publish."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded stretch of traffic.

    offsets_ns: arrival of each request since the first, rising; prompt_tokens, output_tokens: its lengths, same shape
    blocks: ids of its `BLOCK_TOKENS`-token prefix blocks (equal ids, equal text), or None where the trace has none
    """

    offsets_ns: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...] | None = None

    @property
    def rate_per_s(self) -> float:
        """Mean rate at speed 1."""
        return (len(self.offsets_ns) - 1) * 1e9 / max(1, self.offsets_ns[-1] - self.offsets_ns[0])


class BadTrace(ValueError):
    """A trace that cannot be used; the message names the file, the line, and what to do."""


Row = tuple[int, int, int, tuple[int, ...]]


def parse_trace(text: str, where: str) -> Trace:
    """A Mooncake JSONL trace (timestamp in ms, input_length, output_length, hash_ids) or an Azure CSV trace.

    Raises BadTrace.
    """
    rows = list(_mooncake(text, where) if text.lstrip().startswith("{") else _azure(text, where))
    if len(rows) < 2:
        raise BadTrace(f"{where}: {len(rows)} requests in it; a trace needs two or more to have a rate")
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    blocks = tuple(row[3] for row in rows)
    return Trace(
        tuple(row[0] - first for row in rows),
        tuple(max(1, row[1]) for row in rows),
        tuple(max(1, row[2]) for row in rows),
        blocks if any(blocks) else None,
    )


def _mooncake(text: str, where: str) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            yield (
                round(float(row["timestamp"]) * 1e6),
                int(row["input_length"]),
                int(row["output_length"]),
                tuple(int(block) for block in row.get("hash_ids", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            need = "needs a JSON object with timestamp (ms), input_length, output_length and, if known, hash_ids"
            raise BadTrace(f"{where}: line {number}: {need}") from None


def _azure(text: str, where: str) -> Iterator[Row]:
    reader = csv.reader(text.splitlines())
    header = next(reader, [])
    if header[:3] != ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]:
        raise BadTrace(f"{where}: line 1: neither JSON lines nor the columns TIMESTAMP,ContextTokens,GeneratedTokens")
    for row in reader:
        try:
            # Seven digits of a second are in the file; datetime takes six, the seventh is 100 ns.
            whole, _, fraction = row[0].partition(".")
            at = datetime.fromisoformat(whole).replace(tzinfo=UTC)
            yield int(at.timestamp()) * 10**9 + int(fraction.ljust(9, "0")[:9]), int(row[1]), int(row[2]), ()
        except (ValueError, IndexError):
            need = "needs a time, prompt tokens and generated tokens, such as 2023-11-16 18:15:46.68,374,44"
            raise BadTrace(f"{where}: line {reader.line_num}: {need}") from None

"""Requests that worlds are made of: lengths from mixtures of lognormals or from a production trace, and arrivals."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.independent.engine import Prefixes, Times

Tokens = NDArray[np.int64]
CHUNK = 4_096  # requests that a stream draws at once
# Files of a folder of traces, and where they are published.
TRACES = {
    "azure": (
        "azure_2023_conversation.csv",
        "Azure LLM inference trace 2023, conversation, CC-BY 4.0 (Splitwise, ISCA 2024)",
    ),
    "mooncake": (
        "mooncake_conversation_first_half.jsonl",
        "Mooncake conversation trace, first half, Apache-2.0 (FAST '25)",
    ),
}
MOONCAKE_TICK_S = 3.0  # its arrivals are rounded to such ticks; they are spread over them


class Requests(NamedTuple):
    """Requests in order of arrival, an element each."""

    times_s: Times
    prompts: Tokens
    outputs: Tokens
    prefixes: Prefixes | None

    def merged(self, other: "Requests") -> tuple["Requests", NDArray[np.bool_]]:
        """Both in order of arrival, and which of them are of `self`."""
        times = np.concatenate((self.times_s, other.times_s))
        order = np.argsort(times, kind="stable")
        prefixes = None
        if self.prefixes or other.prefixes:
            first, second = (part.prefixes or _no_prefixes(len(part.times_s)) for part in (self, other))
            offsets = np.concatenate((first.offsets, second.offsets[1:] + first.offsets[-1]))
            prefixes = Prefixes(offsets, np.concatenate((first.ids, second.ids))).taken(order)
        requests = Requests(
            times[order],
            np.concatenate((self.prompts, other.prompts))[order],
            np.concatenate((self.outputs, other.outputs))[order],
            prefixes,
        )
        return requests, order < len(self.times_s)


def _no_prefixes(count: int) -> Prefixes:
    return Prefixes(np.zeros(count + 1, dtype=np.int64), np.empty(0, dtype=np.int64))


class Mode(NamedTuple):
    """A component of a mixture: weight, medians and sigmas of lognormal lengths."""

    weight: float
    prompt: float
    prompt_sigma: float
    output: float
    output_sigma: float


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths of independent requests.

    modes: mixture of lognormals; without effect with a trace
    max_prompt, max_output: longer ones are clipped
    conversations: number of groups that share prefixes, the first ones most used; 0: none
    shared: share of a prompt that a conversation has in common
    block: tokens of a prefix block
    trace: name of a trace whose rows are drawn
    """

    modes: tuple[Mode, ...]
    max_prompt: int
    max_output: int
    conversations: int = 0
    shared: float = 0.0
    block: int = 0
    trace: str | None = None

    def lengths(self, rng: np.random.Generator, count: int, traces: Path | None) -> tuple[Tokens, Tokens]:
        """Prompt and output tokens."""
        if self.trace:
            rows = read_trace(_folder(traces), self.trace)
            chosen = rng.integers(0, len(rows.prompts), count)
            prompts, outputs = rows.prompts[chosen], rows.outputs[chosen]
        else:
            table = np.array(self.modes)
            draws = rng.standard_normal((count, 2))
            rows_of = table[np.searchsorted(np.cumsum(table[:, 0]) / table[:, 0].sum(), rng.spawn(1)[0].random(count))]
            prompts = np.rint(rows_of[:, 1] * np.exp(rows_of[:, 2] * draws[:, 0]))
            outputs = np.rint(rows_of[:, 3] * np.exp(rows_of[:, 4] * draws[:, 1]))
        return (
            np.clip(prompts, 4, self.max_prompt).astype(np.int64),
            np.clip(outputs, 1, self.max_output).astype(np.int64),
        )

    def requests(self, rng: np.random.Generator, count: int, rate: float, traces: Path | None = None) -> Requests:
        """Poisson arrivals; the same generator gives the same requests at scaled times, whatever the rate and the count."""
        of_gaps, of_lengths, of_groups = rng.spawn(3)
        times = np.cumsum(of_gaps.standard_exponential(count)) / rate
        prompts, outputs = self.lengths(of_lengths, count, traces)
        return Requests(times, prompts, outputs, self.prefixes(of_groups, prompts))

    def prefixes(self, rng: np.random.Generator, prompts: Tokens) -> Prefixes | None:
        """What requests with these prompts have in common with others of their conversations; None: nothing."""
        if not self.conversations:
            return None
        groups = (self.conversations * rng.random(len(prompts)) ** 3).astype(np.int64)
        offsets = np.concatenate(([0], np.cumsum(prompts * self.shared // self.block))).astype(np.int64)
        position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
        return Prefixes(offsets, np.repeat(groups << 16, np.diff(offsets)) + position)

    def replayed(self, rng: np.random.Generator, count: int, rate: float, traces: Path | None) -> Requests:
        """Rows of the trace in order with their scaled arrivals and prefixes, from a random row on, over and over."""
        rows = read_trace(_folder(traces), self.trace or "")
        start, size = int(rng.integers(0, len(rows.prompts))), len(rows.prompts)
        indices = np.arange(start, start + count)
        index, turn = indices % size, indices // size
        period = rows.times_s[-1] * (size + 1) / size
        times = rows.times_s[index] + period * turn
        prefixes = None
        if rows.prefixes is not None and self.block:
            prefixes = rows.prefixes.taken(index)
            prefixes = prefixes._replace(ids=prefixes.ids + np.repeat(turn << 32, np.diff(prefixes.offsets)))
        scaled = (times - rows.times_s[start]) * (size / period) / rate
        prompts, outputs = (np.minimum(rows.prompts, self.max_prompt), np.minimum(rows.outputs, self.max_output))
        return Requests(scaled, prompts[index], outputs[index], prefixes)

    def stream(
        self, seed: object, rate: float, traces: Path | None = None
    ) -> Iterator[tuple[float, int, int, list[int]]]:
        """Requests without end: arrival, prompt tokens, output tokens, prefix ids. A trace is replayed."""
        rng = generator(seed)
        start = 0.0
        while True:
            draw = self.replayed if self.trace else self.requests
            batch = draw(rng, CHUNK, rate, traces)
            for i, at in enumerate(batch.times_s):
                ids = (
                    []
                    if batch.prefixes is None
                    else batch.prefixes.ids[slice(*batch.prefixes.offsets[i : i + 2])].tolist()
                )
                yield start + float(at), int(batch.prompts[i]), int(batch.outputs[i]), ids
            start += float(batch.times_s[-1]) + 1 / rate


def generator(*seed: object) -> np.random.Generator:
    """A generator with the seed of this text."""
    return np.random.default_rng(list(" ".join(str(part) for part in seed).encode()))


def _folder(traces: Path | None) -> Path:
    if traces is None:
        raise ValueError("a world from a trace needs the folder of the traces")
    return traces


@cache
def read_trace(folder: Path, name: str) -> Requests:
    """A trace as published.

    Raises:
        OSError: it is not in the folder
    """
    path = folder / TRACES[name][0]
    if name == "azure":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        stamps = [datetime.fromisoformat(row["TIMESTAMP"][:26] + "+00:00").timestamp() for row in rows]
        times = np.array(stamps) - stamps[0]
        prompts, outputs, prefixes = (
            [row["ContextTokens"] for row in rows],
            [row["GeneratedTokens"] for row in rows],
            None,
        )
    else:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        ticks = np.array([line["timestamp"] / 1e3 for line in lines])
        times = np.sort(ticks + MOONCAKE_TICK_S * generator("spread", name).random(len(ticks)))
        prompts, outputs = [line["input_length"] for line in lines], [line["output_length"] for line in lines]
        prefixes = Prefixes.of([line["hash_ids"] for line in lines])
    lengths = [np.maximum(1, np.array(values, dtype=np.int64)) for values in (prompts, outputs)]
    return Requests(times, lengths[0], lengths[1], prefixes)

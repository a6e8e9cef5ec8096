"""Tells by the hour whether an engine works less efficiently than in earlier hours with requests like these. Without I/O.

Differences of the page's counters make one row an hour. Of each measure, such as the share of prompt tokens found in the prefix cache,
a row has the cost: what the engine does for a unit of work. A row's mix is what users asked for: their rate and the lengths of prompts
and answers. The cost less the usual cost of such a mix and hour is a sample for the detector of drift.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import mul
from statistics import fmean, pstdev
from typing import Any, Literal, NamedTuple

from prober.config.configuration import DriftSpec
from prober.features.drift import serialization
from prober.features.drift.blocks import DAY_S, Blocks
from prober.features.drift.detector import adopt, step
from prober.features.drift.fitting import inverse_root, learn_baseline
from prober.features.drift.state import Drift, Observation, Ring, Settings, new_state
from prober.measure.engine_signals import EngineSignals

# The constants were chosen on the development half of bench/independent/efficiency_courses.py, by bench/efficiency.py.
HOUR_S, WEEK_S = 3_600.0, 7 * DAY_S
# Of a row, for which hours with little traffic are joined: a share of 30 requests has an error of a tenth.
MIN_REQUESTS, MAX_ROW_S = 30, DAY_S
MAX_ROWS, BLOCK_ROWS, MIN_ROWS = 14 * 24, 12, 48  # stored: each weekday twice
LAG_S, REFIT_S = 12 * HOUR_S, 3 * DAY_S  # a row is learned if nothing is suspected so long after it
APART_S = 20 * HOUR_S  # rows nearer than this do not show how well an hour is foreseen
SAME_S = 2 * HOUR_S  # between the same hours of two weeks
# Of the likeness of mixes: in standard deviations of the rows, squares of them, and least sum of weights.
BANDWIDTH, MAX_SQUARES, MIN_ALIKE = 0.5, 4.0, 1.0
MIN_SPREAD = 0.1  # of the log of a rate or length: smaller differences are none
NEAR_S = 2 * HOUR_S  # between a fall and a change of the engine named beside it
# Ranks need different values, and an engine may never preempt: a thousandth of a cost is nothing.
TIE, GOLDEN, DIGITS = 1e-3, 0.618034, 5  # and digits that are stored of a logarithm
RING_ROWS, PATIENCE_ROWS = 72, 3  # in which the start of a fall is looked for; that end one
MULTIPLES = ((1.0, 0.25), (2.0, 0.25), (10.0, 0.25))  # of the smallest shift, with weights: most falls are large

Event = Literal["dropped", "recovered", "accepted"]
Point = tuple[float, float, float]


class Measure(NamedTuple):
    """A ratio of two totals. Its cost, what the engine does for a unit of work, is its distance from `best`.

    name: value of the label `measure`, with the unit; subject, shown: words for it and for its value
    best: negative, or -0.0, if values are above it
    """

    name: str
    above: str
    below: str
    best: float
    subject: str
    shown: str

    def log_cost(self, value: float) -> float:
        """Log of the cost."""
        return math.log(max(abs((min(value, 1.0) if self.best > 0 else value) - self.best), 1e-9))

    def value(self, log_cost: float) -> float:
        """Inverse of `log_cost`."""
        return max(0.0, round(self.best + math.copysign(math.exp(log_cost), -self.best), DIGITS))


BEST_SHARE = 1.05  # a twentieth is lost at best
MEASURES = (
    Measure("prefix_hit_ratio", "hits", "queries", BEST_SHARE, "prompt tokens found in the prefix cache", "{:.0%}"),
    Measure("acceptance_ratio", "accepted", "drafted", BEST_SHARE, "draft tokens accepted", "{:.0%}"),
    Measure("kv_load_seconds_per_gigabyte", "load_s", "load_gb", -0.0, "loading of offloaded KV cache", "{:.3g} s/GB"),
    Measure(
        "preemptions_per_request", "preemptions", "requests", -1.0, "preemptions per request", "{:.2g}"
    ),  # each repeats work
    Measure("joules_per_token", "joules", "joule_tokens", -0.0, "energy per generated token", "{:.3g} J"),
    Measure("step_seconds", "step_s", "steps", -0.0, "the engine's own ITL", "{:.3g} s"),
)


TOTALS = {  # of a page, by their names in rows
    "requests": "requests_finished_total",
    "prompt": "prompt_tokens_total",
    "generated": "generation_tokens_total",
    "queries": "prefix_cache_queries_tokens_total",
    "hits": "prefix_cache_hits_tokens_total",
    "drafted": "speculation_draft_tokens_total",
    "accepted": "speculation_accepted_tokens_total",
    "preemptions": "preemptions_total",
    "load_s": "kv_offload_load_seconds_total",
}


def totals_of(signals: EngineSignals) -> dict[str, float]:
    """The totals that a page has of those that mix and measures need."""
    totals = {name: getattr(signals, field) for name, field in TOTALS.items()}
    if (loaded := signals.kv_offload_load_bytes_total) is not None:
        totals["load_gb"] = loaded / 1e9
    if (itl := signals.itl_seconds) is not None:
        totals |= {"step_s": itl.sum, "steps": itl.counts[-1]}
    return {name: value for name, value in totals.items() if value is not None}


@dataclass(slots=True)
class Row:
    """An hour, or several with little traffic, from `unix_s` on.

    observed_s, sums: seconds between its readings, and growth of the totals
    mix: logs of requests per second, and of prompt and generated tokens per request; costs: log costs by measure
    """

    unix_s: float
    observed_s: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    mix: Point = (0.0, 0.0, 0.0)
    costs: dict[str, float] = field(default_factory=dict)

    def add(self, grown: Mapping[str, float], seconds: float) -> None:
        """Add the growth of totals between two readings."""
        self.observed_s += seconds
        for name, more in grown.items():
            self.sums[name] = self.sums.get(name, 0.0) + max(0.0, more)

    def close(self) -> bool:
        """Compute mix and costs; False with too few requests."""
        sums, requests = self.sums, self.sums.get("requests", 0.0)
        if requests < MIN_REQUESTS:
            return False
        prompt, generated = (math.log(max(1.0, sums.get(name, 0.0) / requests)) for name in ("prompt", "generated"))
        rate = math.log(requests / max(1.0, self.observed_s))
        self.mix = (round(rate, DIGITS), round(prompt, DIGITS), round(generated, DIGITS))
        for measure in MEASURES:
            above, below = sums.get(measure.above), sums.get(measure.below)
            if above is not None and below and (above or measure.best):
                self.costs[measure.name] = round(measure.log_cost(above / below), DIGITS)
        self.sums = {"requests": requests}
        return True


class UsualCost:
    """The usual log cost of a measure: a curve in the mix, plus the mean deviation of earlier rows, weighted by likeness of the mix."""

    def __init__(self, measure: str, rows: Sequence[Row]) -> None:
        columns = list(zip(*(row.mix for row in rows), strict=True))
        self._means = [fmean(column) for column in columns]
        self._scales = [max(MIN_SPREAD, pstdev(column)) for column in columns]
        points = [self._point(row) for row in rows]
        self._curve = _regression(list(map(_columns, points)), [row.costs[measure] for row in rows])
        off = (row.costs[measure] - self._on_curve(point) for row, point in zip(rows, points, strict=True))
        self._known = [(row.unix_s, *point, more) for row, point, more in zip(rows, points, off, strict=True)]

    def _point(self, row: Row) -> Point:
        x, y, z = ((x - mean) / scale for x, mean, scale in zip(row.mix, self._means, self._scales, strict=True))
        return x, y, z

    def _on_curve(self, point: Point) -> float:
        return math.fsum(map(mul, self._curve, _columns(point)))

    def of(self, row: Row, apart_s: float = 0.0) -> float | None:
        """The higher of the usual costs of like mixes and of the same hours of other weeks; None if no mixes are alike.

        apart_s: rows nearer in time do not count
        """
        weights = total = 0.0
        same = []
        x, y, z = point = self._point(row)
        for unix_s, other_x, other_y, other_z, off in self._known:
            later_s = unix_s - row.unix_s
            if abs(later_s) < apart_s:
                continue
            if (later_s + SAME_S) % WEEK_S <= 2 * SAME_S:
                same.append(off)
            squares = (x - other_x) ** 2 + (y - other_y) ** 2 + (z - other_z) ** 2
            if squares < MAX_SQUARES:
                weight = math.exp(-squares / (2 * BANDWIDTH**2))
                weights, total = weights + weight, total + weight * off
        if weights < MIN_ALIKE:
            return None
        return self._on_curve(point) + max(total / weights, sum(same) / len(same) if same else -math.inf)


def _columns(point: Point) -> tuple[float, ...]:
    """Of the regression. An idle machine's power makes the energy of a token a curve in the rate."""
    rate, prompt, generated = point
    return (1.0, rate, rate * rate, prompt, generated)


def _regression(columns: Sequence[tuple[float, ...]], values: Sequence[float]) -> list[float]:
    """Coefficients of a linear regression by the normal equations."""
    by_column = list(zip(*columns, strict=True))
    moments = [[sum(map(mul, one, other)) for other in by_column] for one in by_column]
    root = inverse_root(moments, ridge=1e-3 * len(values))
    half = [sum(map(mul, line, (sum(map(mul, column, values)) for column in by_column))) for line in root]
    return [sum(map(mul, column, half)) for column in zip(*root, strict=True)]


@dataclass(slots=True)
class Fall:
    """A measure that got worse. usual, present: log costs when found; change: of the engine (Unix seconds, text) near the start"""

    since_unix_s: float
    usual: float
    present: float
    change: tuple[float, str] | None = None


Finding = tuple[Event, Measure, Fall]


@dataclass(slots=True)
class Held:
    """One measure against its baseline.

    known_s: rows until then tell what is usual; fitted_s: when the baseline was fitted
    scarce: requests in a row with which half of a residual's variance is chance
    latest: log costs of the last judged row: usual, present
    """

    measure: Measure
    drift: Drift
    known_s: float = 0.0
    fitted_s: float = 0.0
    scarce: float = 0.0
    latest: tuple[float, float] | None = None
    fall: Fall | None = None

    def weight(self, row: Row) -> float:
        """Factor that gives the residuals of all rows one spread."""
        return 1 / math.sqrt(1 + self.scarce / row.sums["requests"])

    def known(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that tell what is usual."""
        return [row for row in rows if row.unix_s <= self.known_s and self.measure.name in row.costs]

    def fit(self, rows: Sequence[Row]) -> None:
        """Learn how well the usual cost foretells a row's, if there are rows of a week."""
        known = self.known(rows)
        if not known or known[-1].unix_s - known[0].unix_s < WEEK_S:
            return
        usual, name = UsualCost(self.measure.name, known), self.measure.name
        off = [(row, row.costs[name] - cost) for row in known if (cost := usual.of(row, APART_S)) is not None]
        count = len(off) // BLOCK_ROWS
        if count * BLOCK_ROWS < MIN_ROWS:
            return
        self.scarce, self.fitted_s = _scarce(off), known[-1].unix_s
        blocks = Blocks(0.0, block_samples=BLOCK_ROWS, block_count=count)
        for at, (row, residual) in enumerate(off[-count * BLOCK_ROWS :]):
            apart = TIE * (GOLDEN * at % 1 - 0.5)  # ranks need different values: an engine may never preempt
            blocks.add(row.unix_s, self.weight(row) * residual + apart, 0.0, linked=True)
        before = replace(self.drift)
        adopt(self.drift, replace(learn_baseline(blocks), floors=()), settled=False)
        self.drift.covers_days, self.drift.caution = True, before.caution
        if before.baseline is not None:  # the evidence so far stays
            self.drift.slower, self.drift.judged = before.slower, before.judged


def _scarce(off: Sequence[tuple[Row, float]]) -> float:
    """`Held.scarce` of residuals: of their variance, one part falls with the requests, and one stays."""
    ordered = sorted(off, key=lambda pair: pair[0].sums["requests"])
    halves = ordered[: len(off) // 2], ordered[len(off) // 2 :]
    few, more = (sum(1 / row.sums["requests"] for row, _ in half) / len(half) for half in halves)
    large, small = (sum(residual**2 for _, residual in half) / len(half) for half in halves)
    slope = max(0.0, (large - small) / (few - more)) if few > more else 0.0
    return slope / max(small - slope * more, small / 10, 1e-12)


def _settings(spec: DriftSpec) -> Settings:
    """Half of a material change is taken off each sample: latencies alarm from a half on, too."""
    return Settings(1 / HOUR_S, spec.model_copy(update={"material": spec.material / 2}), PATIENCE_ROWS, MULTIPLES)


def _new_drift(spec: DriftSpec) -> Drift:
    """A detector whose baseline is fitted to rows."""
    drift = new_state(_settings(spec))
    drift.stretch, drift.spread, drift.covers_days = None, None, True
    drift.ring = Ring(times=drift.ring.times[:RING_ROWS], residuals=drift.ring.residuals[:RING_ROWS])
    return drift


class Efficiency:
    """All measures of one engine. rows: oldest first; row: the present one; changes: the engine's latest (Unix seconds, text)"""

    def __init__(self, spec: DriftSpec) -> None:
        self.spec = spec
        self.rows: list[Row] = []
        self.row: Row | None = None
        self.held = {measure.name: Held(measure, _new_drift(spec)) for measure in MEASURES}
        self.changes: list[tuple[float, str]] = []

    def add(
        self, unix_s: float, grown: Mapping[str, float], seconds: float, minute_s: float = 0.0
    ) -> list[Finding] | None:
        """Add the growth of totals up to a reading. Returns what the row shows that this completes; None if it completes none.

        minute_s: seconds past the hour at which rows begin
        """
        found = None
        begun_s, row = unix_s - (unix_s - minute_s) % HOUR_S, self.row
        if row is not None and begun_s != row.unix_s:
            if row.close():
                self.rows = [*self.rows, row][-MAX_ROWS:]
                found = [event for held in self.held.values() for event in self.judge(held, row)]
                row = None
            elif unix_s - row.unix_s >= MAX_ROW_S:
                row = None
        self.row = row = row or Row(begun_s)
        row.add(grown, seconds)
        return found

    def judge(self, held: Held, row: Row) -> Iterator[Finding]:
        """Judge a measure in a completed row, and learn what is usual once a day."""
        name, fall, event = held.measure.name, held.fall, None
        cost, known = row.costs.get(name), held.known(self.rows) if held.drift.baseline is not None else []
        usual = UsualCost(name, known).of(row) if cost is not None and len(known) >= MIN_ROWS else None
        if cost is not None and usual is not None:
            held.latest = usual, cost
            event = step(held.drift, Observation(row.unix_s, math.exp(held.weight(row) * (cost - usual))))[1].event
        elif row.unix_s - held.drift.last_s >= DAY_S:  # the page lacks it, or no mix is alike
            held.latest, event = None, "accepted" if fall is not None else None
        if event == "alarm" and (alarm := held.drift.alarm) is not None and held.latest is not None:
            near = [change for change in self.changes if abs(change[0] - alarm.since_s) <= NEAR_S]
            held.fall = Fall(alarm.since_s, *held.latest, near[-1] if near else None)
            yield "dropped", held.measure, held.fall
        elif fall is not None and event in ("recovered", "accepted"):
            for other in self.rows:  # a fall is not usual, unless it is accepted
                if (other.unix_s >= fall.since_unix_s) == (event == "recovered"):
                    other.costs.pop(name, None)
            held.fall = None
            yield "recovered" if event == "recovered" else "accepted", held.measure, fall
        if event in ("accepted", "improved"):
            held.drift = _new_drift(self.spec)
        held.known_s = min(held.known_s, row.unix_s)  # the clock may have been set back
        if held.fall is None and held.drift.suspected_s is None and row.unix_s - held.known_s >= DAY_S + LAG_S:
            held.known_s = row.unix_s - LAG_S
            if held.drift.baseline is None or held.known_s - held.fitted_s >= REFIT_S:
                held.fit(self.rows)


def dump(state: Efficiency) -> bytes:
    """Write a state: at most about 90 kB, in about 2 ms."""
    rows = [(row.unix_s, row.sums["requests"], row.mix, row.costs) for row in state.rows]
    held = {
        name: asdict(replace(of, measure=None, drift=None)) | {"drift": serialization.dump(of.drift).decode()}  # type: ignore[arg-type]
        for name, of in state.held.items()
    }
    row = asdict(state.row) if state.row else None
    return json.dumps({"rows": rows, "row": row, "held": held, "changes": state.changes}).encode()


def restore(spec: DriftSpec, data: bytes) -> Efficiency:
    """Read the state that `dump` wrote, with these settings. Raises ValueError, KeyError or TypeError if `data` is invalid."""
    saved: dict[str, Any] = json.loads(data)
    state = Efficiency(spec)
    state.rows = [
        Row(unix_s, 0.0, {"requests": requests}, tuple(mix), costs) for unix_s, requests, mix, costs in saved["rows"]
    ]
    if not all(math.isfinite(value) for row in state.rows for value in (row.unix_s, *row.mix, *row.costs.values())):
        raise ValueError("a row has no finite value")
    state.row = Row(**saved["row"]) if saved["row"] else None
    state.changes = [(unix_s, text) for unix_s, text in saved["changes"]]
    for name, held in state.held.items():
        if (own := saved["held"].get(name)) is not None:
            fall = Fall(**own["fall"]) if own["fall"] else None
            drift = serialization.restore(_settings(spec), own["drift"].encode())
            latest = tuple(own["latest"]) if own["latest"] else None
            state.held[name] = Held(held.measure, drift, own["known_s"], own["fitted_s"], own["scarce"], latest, fall)
    return state

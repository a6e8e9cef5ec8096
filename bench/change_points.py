"""An offline search for change points beside the drift detector, over the same series.

    python -m bench.change_points [--held-out] [--lanes N] [--traces FOLDER] [--processes N]

The series are scenes of `bench/independent/odd_days.py`, each of whose engines becomes 1.3 times slower at the last of its times, and
with --traces engines of `bench.drift_odd_days.ENGINES`, which replay production traces and become slower on the eighth day. The
detector takes them sample by sample, with the load and without it. The search (PELT with a squared error, `ruptures`) has the whole
series at once: the log of the lower decile of ten minutes, less the usual one of that time of the day, so that waits count little. A
change point is a rise by 10% or more. The search has found a change if a rise is within two hours of it; the detector, if it reports it
within the 8 h that a series goes on.

A row says which of both found the change, how long the detector took, how long the search would take if it were run again every half
hour on what there is by then, and for the time before the change the rises that one or both report per 30 days. The search has no false
alarms to pay for: what it alone finds is worth a look, not a miss.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import Pool
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import ruptures

from bench.drift_odd_days import ENGINES, SEED, SETTINGS, observations
from bench.independent.kinds import HELD_OUT as HELD_OUT_ENGINES
from bench.independent.odd_days import DAY_S, FROM_TRACES, HELD_OUT, HOUR_S, SEARCH_S, SLOWER, TUNING, Floats, scene
from bench.independent.probes import ProbedEngine, probe_series
from bench.report import goal, part, show
from prober.features.drift.detector import step
from prober.features.drift.state import new_state

BIN_S, BINS_A_DAY = 600.0, 144
MIN_BINS = 6  # of a segment: an hour
MIN_RISE = math.log(1.1)
PENALTY = (
    8.0  # times variance and log of the length: about two rises a month on series without change and without rest days
)
NEAR_S = 2 * HOUR_S
REPEAT_S, RECENT_DAYS = 1_800.0, 4.0
ENGINE_DAYS, ENGINE_CHANGE_DAY = 7.7, 7.35
VIEWS = ("load seen", "load not seen")


@dataclass(frozen=True, slots=True)
class Series:
    """Probes of an engine that becomes slower at `change_s` since the first of them."""

    name: str
    unix_s: Floats
    ttft_s: Floats
    load: Floats
    change_s: float

    @property
    def since_s(self) -> Floats:
        """Since the first probe."""
        return np.asarray(self.unix_s - self.unix_s[0])


@dataclass
class Found:
    """Rises that one method reports.

    delay_min: from the change to the report of it; infinite: none
    before_s: times of the others, before the change
    """

    delay_min: float = math.inf
    before_s: list[float] = field(default_factory=list)


def series_of_scene(kind: str, index: int, traces: Path | None) -> Series:
    """A scene up to its last time, and slower from then on."""
    of = scene(kind, index, SEED, traces)
    change_s = of.moments_s[-1]
    after = of.slower(change_s)
    before = int(np.searchsorted(of.unix_s, after.unix_s[0]))
    return Series(
        f"{kind} {index}",
        np.concatenate((of.unix_s[:before], after.unix_s)),
        np.concatenate((of.ttft_s[:before], after.ttft_s)),
        np.concatenate((of.load[:before], after.load)),
        float(after.unix_s[0] - of.unix_s[0]),
    )


def series_of_engine(probed: ProbedEngine, traces: Path) -> Series:
    """An engine that replays a trace."""
    of = probe_series(probed, ENGINE_DAYS, SEED, traces, slowdown=(ENGINE_CHANGE_DAY, SLOWER))
    ok = np.isfinite(of.log_ttft_s)
    begin_s = float(of.unix_s[ok][0] - of.unix_s[0])
    return Series(
        f"engine {probed.name}",
        of.unix_s[ok],
        np.exp(of.log_ttft_s[ok]),
        of.load[ok],
        ENGINE_CHANGE_DAY * DAY_S - begin_s,
    )


def by_detector(series: Series, load_seen: bool) -> Found:
    """What the product reports."""
    found, state = Found(), new_state(SETTINGS)
    begin_unix_s = float(series.unix_s[0])
    for observation in observations(series.unix_s, series.ttft_s, series.load, load_seen):
        _, verdict = step(state, observation)
        if verdict.event != "alarm":
            continue
        at_s = observation.unix_s - begin_unix_s
        if at_s < series.change_s:
            found.before_s.append(at_s)
        elif math.isinf(found.delay_min):
            found.delay_min = (at_s - series.change_s) / 60
    return found


def residuals(series: Series) -> Floats:
    """Log of the lower decile of bins, less the median of that time of the day; a bin without probes continues the one before."""
    number = (series.since_s // BIN_S).astype(np.int64)
    edges = np.searchsorted(number, np.arange(number[-1] + 2))
    logs = np.log(series.ttft_s)
    low = np.array([np.quantile(logs[a:b], 0.1) if b > a else np.nan for a, b in pairwise(edges.tolist())])
    low = low[np.maximum.accumulate(np.where(np.isnan(low), 0, np.arange(low.size)))]
    usual = np.array([np.median(low[slot::BINS_A_DAY]) for slot in range(min(BINS_A_DAY, low.size))])
    return np.asarray(low - usual[np.arange(low.size) % BINS_A_DAY])


def rises(values: Floats) -> list[float]:
    """Times in seconds at which the level rises by `MIN_RISE` or more, in a series of bins."""
    if values.size < 2 * MIN_BINS:
        return []
    variance = max(1e-6, float(np.median(np.abs(values - np.median(values))) * 1.4826) ** 2)
    search = ruptures.KernelCPD(kernel="linear", min_size=MIN_BINS).fit(values.reshape(-1, 1))
    ends = [0, *search.predict(pen=PENALTY * variance * math.log(values.size))]
    levels = [float(values[a:b].mean()) for a, b in pairwise(ends)]
    pairs = zip(ends[1:-1], levels[:-1], levels[1:], strict=True)
    return [end * BIN_S for end, low, high in pairs if high - low >= MIN_RISE]


def by_search(series: Series) -> Found:
    """What the offline search reports, and when it would at the earliest."""
    values = residuals(series)
    found = Found()
    for at_s in rises(values):
        if abs(at_s - series.change_s) <= NEAR_S:
            found.delay_min = _earliest_min(values, series.change_s)
        elif at_s < series.change_s:
            found.before_s.append(at_s)
    return found


def _earliest_min(values: Floats, change_s: float) -> float:
    """Minutes after the change at which a search on the last days until then finds it."""
    first = max(0, int((change_s - RECENT_DAYS * DAY_S) / BIN_S))
    for after_s in np.arange(REPEAT_S, SEARCH_S + 1, REPEAT_S):
        recent = values[first : int((change_s + after_s) / BIN_S)]
        if any(abs(first * BIN_S + at_s - change_s) <= NEAR_S for at_s in rises(recent)):
            return float(after_s / 60)
    return SEARCH_S / 60


def compared(task: tuple[str, int, ProbedEngine | None, str | None]) -> dict[str, Any]:
    """The row of a series."""
    kind, index, probed, folder = task
    traces = Path(folder) if folder else None
    if probed is None:
        series = series_of_scene(kind, index, traces)
    else:
        assert traces is not None
        series = series_of_engine(probed, traces)
    search = by_search(series)
    row: dict[str, Any] = {
        "series": series.name,
        "days": round(series.change_s / DAY_S, 1),
        "search_min": _finite(search.delay_min),
        "search_days": _days(search.before_s),
    }
    for view in VIEWS if probed is None else VIEWS[1:]:
        detector = by_detector(series, view == VIEWS[0])
        both = [at_s for at_s in detector.before_s if any(abs(at_s - other_s) <= NEAR_S for other_s in search.before_s)]
        row[view] = {
            "detector_min": _finite(detector.delay_min),
            "found_by": found_by(detector, search),
            "alarm_days": _days(detector.before_s),
            "alarm_days_of_both": _days(both),
        }
    return row


def found_by(detector: Found, search: Found) -> str:
    """Which of both found the change."""
    names = ("none", "only the search", "only the detector", "both")
    return names[2 * math.isfinite(detector.delay_min) + math.isfinite(search.delay_min)]


def _days(times_s: Sequence[float]) -> list[float]:
    return [round(at_s / DAY_S, 2) for at_s in times_s]


def _finite(value: float) -> float | None:
    return round(value, 1) if math.isfinite(value) else None


def summary(rows: Sequence[dict[str, Any]], view: str) -> dict[str, Any]:
    """Counts over all series with a view."""
    seen = [row for row in rows if view in row]
    days = sum(row["days"] for row in seen)
    counts: dict[str, Any] = {}
    for row in seen:
        counts[row[view]["found_by"]] = counts.get(row[view]["found_by"], 0) + 1
    both = [row for row in seen if row[view]["found_by"] == "both"]
    alarms = sum(len(row[view]["alarm_days"]) for row in seen)
    of_both = sum(len(row[view]["alarm_days_of_both"]) for row in seen)
    return {
        "series": len(seen),
        "days_before": round(days, 1),
        "changes": counts,
        "both_detector_median_min": median(row[view]["detector_min"] for row in both) if both else None,
        "both_search_median_min": median(row["search_min"] for row in both) if both else None,
        "rises_of_both_per_30_days": round(30 * of_both / days, 2),
        "rises_of_the_detector_alone_per_30_days": round(30 * (alarms - of_both) / days, 2),
        "rises_of_the_search_per_30_days": round(30 * sum(len(row["search_days"]) for row in seen) / days, 2),
    }


def goals(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Goals for what the search alone finds, and for alarms that it does not confirm."""
    results = []
    for view in VIEWS:
        of = summary(rows, view)
        if not of["series"]:
            continue
        share = of["changes"].get("only the search", 0) / of["series"]
        results.append(goal(f"changes that only the search finds, {view}", share, round(1 / 6, 4), "share"))
        alone = of["rises_of_the_detector_alone_per_30_days"]
        results.append(goal(f"alarms without a change point, {view}", alone, 0.3, "per 30 days"))
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", action="store_true", help="the kinds that nothing is tuned on")
    parser.add_argument("--lanes", type=int, default=1, help="scenes of each kind")
    parser.add_argument("--traces", help="folder of the production traces")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    tasks: list[tuple[str, int, ProbedEngine | None, str | None]] = [
        (kind, index, None, options.traces)
        for group, kinds in (HELD_OUT if options.held_out else TUNING).items()
        if group != "recurring"
        for kind in kinds
        if options.traces or kind not in FROM_TRACES
        for index in range(options.lanes)
    ]
    if options.traces:
        engines = [probed for probed in ENGINES if (probed.kind in HELD_OUT_ENGINES) == options.held_out]
        tasks += [(probed.name, 0, probed, options.traces) for probed in engines[:4]]
    with Pool(options.processes) as pool:
        rows = [part(row["series"], row) for row in pool.imap(compared, tasks, chunksize=1)]
    views = {view: summary(rows, view) for view in VIEWS}
    show("change_points", goals(rows), held_out=options.held_out, views=views, rows=rows)


if __name__ == "__main__":
    main()

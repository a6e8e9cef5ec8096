"""Rivals of the drift detector: a CUSUM that knows both distributions, and the rule that people write."""

import numpy as np
from numpy.typing import NDArray

from bench.nulls import CHANGES, DAY, LEVEL, SIGMA, Array, Change, Null, Source

TAILS = {"×2 in 4%": 2.0, "×4 in 4%": 4.0}
SHIFTS = {**{f"+{share}%": share / 100 for share in (10, 20, 30, 50, 100)}, "ramp +50% over 6 h": 0.5}
CALIBRATED_AT = 5.0


def llr(null: Null, change: str, residuals: Array) -> Array:
    """Log likelihood ratio of each sample given those before it; `residuals`: logs less their mean, a column of the past first.

    A ramp is taken as its end.
    """
    past, now = residuals[:, :-1], residuals[:, 1:]
    ratio: Array
    if null.bimodal:
        by = np.log1p(SHIFTS[change]) if change in SHIFTS else np.log(TAILS[change])
        ratio = _modes(now - by) / _modes(now)
    else:
        spread = SIGMA * np.sqrt(1 - null.phi**2)
        d = (np.log1p(SHIFTS[change]) * (1 - null.phi) if change in SHIFTS else np.log(TAILS[change])) / spread
        ratio = np.exp(d * (now - null.phi * past) / spread - d * d / 2)
    logs: Array = np.log(ratio if change in SHIFTS else 0.96 + 0.04 * ratio)
    return logs


def _modes(x: Array) -> Array:
    found: Array = 0.7 * np.exp(-((x / 0.2) ** 2) / 2) + 0.3 * np.exp(-(((x - np.log(2.5)) / 0.2) ** 2) / 2)
    return found + 1e-300  # far from both modes neither density is exactly nothing


def oracle(null: Null, change: str, runs: int, arl: float, seed: int) -> dict[str, float]:
    """Delays in samples of the CUSUM whose mean time between false alarms is `arl` samples.

    Its threshold h: alarms at 5 are counted, and their rate falls as exp(−h), as it must for a likelihood ratio.
    """
    plain = Null("noise", phi=null.phi, bimodal=null.bimodal)
    source = Source(plain, np.random.default_rng(seed), runs)
    state, alarms, drawn = np.zeros(runs), 0, 0
    last = _residuals(source, 1)
    while drawn < 10_000_000:
        now = _residuals(source, 2_000)
        for row in llr(null, change, np.hstack((last, now))).T:
            state = np.maximum(0, state + row)
            over = state >= CALIBRATED_AT
            alarms += int(over.sum())
            state[over] = 0
        last, drawn = now[:, -1:], drawn + 2_000 * runs
    threshold = CALIBRATED_AT + np.log(arl * alarms / drawn)
    # No run alarms before the change here: the mean time to do so is 30 days.
    found, since, rng = np.full(runs, np.inf), 0, np.random.default_rng(seed + 1)
    clean = _residuals(source, 1_000)
    for row in llr(null, change, np.hstack((last, clean))).T:
        state = np.minimum(np.maximum(0, state + row), threshold - 1e-9)
    last = clean[:, -1:]
    while since < DAY and np.isinf(found).any():
        now = CHANGES[change](_residuals(source, 360), since, rng)
        for i, row in enumerate(llr(null, change, np.hstack((last, now))).T):
            state = np.maximum(0, state + row)
            found[(state >= threshold) & np.isinf(found)] = since + i + 1
        last, since = now[:, -1:], since + 360
    return {"threshold": float(threshold), **summary(found)}


def _residuals(source: Source, count: int) -> Array:
    return source.draw(count)[0] - LEVEL


HOUR, HOLD, EVERY = 720, 10, 12  # samples of an hour; evaluations of ten minutes; samples between evaluations


def firing(logs: Array, limit: Array, window: int) -> NDArray[np.bool_]:
    """Does the rule "p99 of `window` samples above `limit` for 10 min", evaluated each minute, fire? (lanes, evaluations).

    The 99th percentile of 720 is the 8th largest: above the limit if 8 are. The first evaluation is of the first window.
    """
    over = np.cumsum(logs > limit[:, None], axis=1, dtype=np.int32)
    ends = np.arange(window, logs.shape[1] + 1, EVERY) - 1
    before = np.where(ends >= window, over[:, ends - window], 0)
    above = over[:, ends] - before >= window - int(np.ceil(0.99 * window)) + 1
    held = np.cumsum(above, axis=1, dtype=np.int32)
    fires: NDArray[np.bool_] = held[:, HOLD:] - np.pad(held[:, : -HOLD - 1], ((0, 0), (1, 0))) == HOLD + 1
    return fires


def rule_false_alarms(source: Source, limit: Array, factors: list[float], days: int, window: int) -> dict[float, float]:
    """False alarms per 30 days of the rule, by its factor."""
    logs = np.hstack([source.draw(DAY)[0].astype(np.float32) for _ in range(days)])
    found = {}
    for factor in factors:
        fires = firing(logs, limit + np.log(factor), window)
        found[factor] = float((fires[:, 1:] & ~fires[:, :-1]).sum() / (len(logs) * days / 30))
    return found


def rule_delays(source: Source, limit: Array, change: Change, seed: int, window: int) -> dict[str, float]:
    """Delays in samples of the rule with this limit on the log; runs in which it fires at the change are left out."""
    past = source.draw(window + HOLD * EVERY)[0]
    logs = np.hstack((past, change(source.draw(DAY)[0], 0, np.random.default_rng(seed))))
    fires = firing(logs, limit, window)
    fires = fires[~fires[:, 0], 1:]
    first = np.where(fires.any(axis=1), EVERY * (fires.argmax(axis=1) + 1), np.inf)
    return summary(first)


def summary(delays: Array) -> dict[str, float]:
    """Median, mean and 90th percentile in samples; a run that found nothing counts as infinite, in the mean as a day."""
    ordered = np.sort(delays)
    return {
        "runs": len(ordered),
        "missed_in_24_h": int(np.isinf(ordered).sum()),
        "median": float(ordered[(len(ordered) - 1) // 2]),
        "p90": float(ordered[int(np.ceil(0.9 * len(ordered))) - 1]),
        "mean": float(np.minimum(ordered, DAY).mean()),
    }

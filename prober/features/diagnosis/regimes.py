"""The known causes of slowness: figures that are computed from evidence, and the table of regimes that they identify.

The thresholds were tuned on the simulated engine (`bench/diagnosis.py`) and on half of the independent scenes
(`bench/diagnosis_independent.py`); results are reported for other seeds and the other half.
"""

import math
from collections.abc import Callable, Mapping

from prober.features.diagnosis.clues import Advice, Clue, Evidence, Figure, Figures, Regime, Value, WindowFeatures

GROWN = 1.25  # relative to the baseline; quantiles of a hundred probes vary by less
BEYOND = 1.05  # step growth over work growth up to which the work explains it
BUSIER = 1.6  # work growth that means another load; minutes of one load vary by less
ALONE = 1.0  # share of an SLO's threshold at which one part alone breaches it
EVEN = 1.5  # TPOT growth over step growth up to which the step explains it
MOST = 0.5  # share of a growth that makes a part its cause
PART = 0.3  # share of a growth that makes a part one of two causes
NEAR_BOUND, FAR_FROM_BOUND, ABOVE_BOUND = 0.75, 0.6, 1.3  # 1 is the bound; a speed far above it contradicts the model
FALLEN = 0.8  # share of the baseline
SLOW_CLOCK = 0.85  # share of the baseline; a power cap in normal operation reduces the clock less
CERTAIN = 3.0  # standard errors of the probes' mean that a growth of it exceeds before it is divided into parts
PREEMPTED = 0.02  # preemptions per request
BURSTING = 3.0  # growth of the variance of requests; windows of one load vary by less
FULL = 0.9  # KV cache usage below which nobody waits for space
AGREEING = 2.0  # factor between two measurements of one quantity: a gauge is read every few seconds
IDLE = 0.1  # waiting requests that are too few to compare
LATE = 0.05  # share of the probes: five times the limit of llmslo_trusted

Read = Callable[[WindowFeatures], float | None]


def at(figures: Figures, q: float) -> float | None:
    """Estimate of a quantile; None without enough samples."""
    return next((figure.estimate for figure in figures if figure.q == q and figure.has_enough_samples), None)


def _now(name: str, unit: str, read: Read, detail: str = "") -> Figure:
    def of(evidence: Evidence) -> Value | None:
        value = read(evidence.now)
        return None if value is None else Value(value, detail)

    return Figure(name, unit, of)


def _growth(name: str, read: Read) -> Figure:
    """Ratio of the value now to that of the baseline."""

    def of(evidence: Evidence) -> Value | None:
        now, before = read(evidence.now), read(evidence.before)
        return None if now is None or not before else Value(now / before, f"{now:.3g} after {before:.3g}")

    return Figure(name, "×", of)


def _difference(name: str, unit: str, read: Read) -> Figure:
    def of(evidence: Evidence) -> Value | None:
        now, before = read(evidence.now), read(evidence.before)
        return None if now is None or before is None else Value(now - before, f"{now:.3g} after {before:.3g}")

    return Figure(name, unit, of)


def _largest(name: str, parts: Mapping[str, Figure]) -> Figure:
    """Largest of the measured parts."""

    def of(evidence: Evidence) -> Value | None:
        measured = [(value, part) for part, figure in parts.items() if (value := figure.of(evidence)) is not None]
        if not measured:
            return None
        value, part = max(measured)
        return Value(value.value, f"{part} {value.detail}")

    return Figure(name, "×", of)


def _share(name: str, part: Read, total: Read, error: Read = lambda window: 0.0) -> Figure:
    """Share of the part in the growth of the total; None if the total did not grow, or by less than its error allows to divide."""

    def of(evidence: Evidence) -> Value | None:
        now, before = evidence.now, evidence.before
        part_now, part_before, total_now, total_before = part(now), part(before), total(now), total(before)
        if part_now is None or part_before is None or total_now is None or total_before is None:
            return None
        grown = part_now - part_before, total_now - total_before
        error_s = math.hypot(error(now) or 0.0, error(before) or 0.0)
        if total_now < GROWN * total_before or grown[1] <= CERTAIN * error_s:
            return None
        return Value(grown[0] / grown[1], f"{1e3 * grown[0]:+.3g} of {1e3 * grown[1]:+.3g} ms")

    return Figure(name, "ratio", of)


def _of_ttft_growth(name: str, part: Read) -> Figure:
    """Share of the part in the growth of the probes' mean TTFT.

    Probes arrive at random, so their mean wait is that of all requests (Wolff, Poisson arrivals see time averages, 1982).
    """
    return _share(name, part, lambda window: window.ttft_mean_s, lambda window: window.ttft_mean_error_s)


def _over_slo(name: str, signals: tuple[str, ...], part: Read) -> Figure:
    """Ratio of the part to the strictest threshold of the breached SLOs on these signals; from 1 on it breaches them alone."""

    def of(evidence: Evidence) -> Value | None:
        thresholds = [threshold_s for signal, threshold_s in evidence.breached.items() if signal in signals]
        value = part(evidence.now)
        if value is None or not thresholds:
            return None
        return Value(value / min(thresholds), f"{_format_seconds(value)} over {_format_seconds(min(thresholds))}")

    return Figure(name, "×", of)


def _format_seconds(seconds: float) -> str:
    """Three digits, in milliseconds below one second."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _mean_ttft_growth(evidence: Evidence) -> Value | None:
    """Growth of the mean, if it is larger than its error allows: it shows a tail of which there are too few samples for a quantile."""
    now, before = evidence.now, evidence.before
    if now.ttft_mean_s is None or not before.ttft_mean_s:
        return None
    error_s = math.hypot(now.ttft_mean_error_s or 0.0, before.ttft_mean_error_s or 0.0)
    if abs(now.ttft_mean_s - before.ttft_mean_s) < CERTAIN * error_s:
        return None
    return Value(now.ttft_mean_s / before.ttft_mean_s, f"{now.ttft_mean_s:.3g} after {before.ttft_mean_s:.3g}")


def _prompt_cost(window: WindowFeatures) -> float | None:
    """Seconds of prefill of the median prompt; at most the median TTFT, since the slope is noisy."""
    slope, median = window.ttft_per_prompt_token_s, at(window.ttft_s, 0.5)
    if slope is None or window.prompt_tokens is None or median is None:
        return None
    return min(slope * window.prompt_tokens, median)


def _saving(window: WindowFeatures) -> float | None:
    """Seconds that a shared prefix saves."""
    return None if window.ttft_cold_s is None or window.ttft_warm_s is None else window.ttft_cold_s - window.ttft_warm_s


def _saving_ratio(evidence: Evidence) -> Value | None:
    """Saving relative to the baseline; None if that was below a fifth of the cold TTFT, or the errors are too large."""
    now, before, cold = _saving(evidence.now), _saving(evidence.before), evidence.before.ttft_cold_s
    if now is None or before is None or cold is None or before < 0.2 * cold:
        return None
    if CERTAIN * math.hypot(evidence.now.saving_error_s or 0.0, evidence.before.saving_error_s or 0.0) > before:
        return None
    return Value(now / before, f"{1e3 * now:.3g} ms after {1e3 * before:.3g} ms")


def _warm_growth_ratio(evidence: Evidence) -> Value | None:
    """Growth of the warm TTFT over the time that the prefix saved: a lost prefix adds all of it."""
    saving, now, before = _saving(evidence.before), evidence.now.ttft_warm_s, evidence.before.ttft_warm_s
    if saving is None or saving <= 0 or now is None or before is None:
        return None
    return Value((now - before) / saving, f"{1e3 * (now - before):+.3g} ms of {1e3 * saving:.3g} ms")


def _hits_ratio(evidence: Evidence) -> Value | None:
    """Prefix cache hits relative to the baseline: the larger of rate and share, because other prompts lower the share alone."""
    now, before = evidence.now, evidence.before
    if now.prefix_hit_ratio is None or now.prefix_hit_tokens_per_s is None:
        return None
    if not before.prefix_hit_ratio or not before.prefix_hit_tokens_per_s or before.prefix_hit_ratio < 0.1:
        return None
    ratios = (
        now.prefix_hit_ratio / before.prefix_hit_ratio,
        now.prefix_hit_tokens_per_s / before.prefix_hit_tokens_per_s,
    )
    return Value(max(ratios), f"{now.prefix_hit_ratio:.2g} of the prompt tokens after {before.prefix_hit_ratio:.2g}")


def waiting_by_queue_time(window: WindowFeatures) -> float | None:
    """Requests that wait on average, by Little's law: arrivals per second times mean queue time."""
    if window.engine_queue_s is None or window.requests_per_s is None:
        return None
    return window.engine_queue_s * window.requests_per_s


def is_queue_time_consistent(window: WindowFeatures) -> bool:
    """Whether the page's queue time and its waiting requests agree, or cannot be compared."""
    expected, waiting = waiting_by_queue_time(window), window.waiting
    if expected is None or waiting is None:
        return True
    return expected <= AGREEING * waiting + IDLE and waiting <= AGREEING * expected + IDLE


def doubts(evidence: Evidence) -> tuple[str, ...]:
    """Sentences about measurements of the breach that contradict each other."""
    now = evidence.now
    if is_queue_time_consistent(now) or now.engine_queue_s is None or now.requests_per_s is None:
        return ()
    return (
        f"the page's queue time: {_format_seconds(now.engine_queue_s)} at {now.requests_per_s:.3g} requests/s would be "
        f"{now.engine_queue_s * now.requests_per_s:.3g} waiting (Little's law), but the page reads {now.waiting:.3g}",
    )


def _queue_s(window: WindowFeatures) -> float | None:
    """Mean queue time; None if the waiting requests contradict it."""
    return window.engine_queue_s if is_queue_time_consistent(window) else None


def _queue_growth_steps(evidence: Evidence) -> Value | None:
    """Growth of the queue time in decode steps: up to about one, requests wait for the running step and not for others."""
    now, before, step_s = _queue_s(evidence.now), _queue_s(evidence.before), evidence.now.step_s
    if now is None or before is None or step_s is None:
        return None
    return Value((now - before) / step_s, f"{1e3 * (now - before):+.3g} ms over {1e3 * step_s:.3g} ms")


def _waiting_s(window: WindowFeatures) -> float | None:
    """Mean wait of a request, by Little's law: waiting requests over arrivals per second."""
    return window.waiting / window.requests_per_s if window.waiting is not None and window.requests_per_s else None


def _free_prompts(window: WindowFeatures) -> float | None:
    """Number of mean prompts that the free part of the KV cache holds."""
    if window.kv_free_tokens is None or not window.prompt_tokens_per_request:
        return None
    return window.kv_free_tokens / window.prompt_tokens_per_request


def _preemptions_per_request(window: WindowFeatures) -> float | None:
    if window.preemptions_per_s is None or not window.requests_per_s:
        return None
    return window.preemptions_per_s / window.requests_per_s


def _outside(evidence: Evidence) -> Value | None:
    """Share of the growth of the probes' mean TTFT that the engine cannot have seen.

    Probes that were slower than the mean request, because their prompts are longer, may have grown by as much more in the engine.
    """
    before = evidence.before
    inside = ENGINE_SHARE.of(evidence)
    if inside is None or before.ttft_mean_s is None or not before.engine_ttft_s:
        return None
    factor = max(1.0, before.ttft_mean_s / before.engine_ttft_s) if inside.value > 0 else 1.0
    return Value(
        1 - factor * inside.value, f"engine {inside.detail}{f', × {factor:.2g} for the probes' if factor > 1 else ''}"
    )


def _decode_breaches(evidence: Evidence) -> Value | None:
    """Number of breached SLOs that decode steps can breach; None if it is not known what is breached."""
    signals = sorted({"tpot", "itl", "e2e"} & evidence.breached.keys())
    return Value(len(signals), ", ".join(signals)) if evidence.breached else None


def _tpot_over_step_growth(evidence: Evidence) -> Value | None:
    """TPOT growth over decode step growth."""
    step, tpot = STEP_GROWTH.of(evidence), TPOT_GROWTH.of(evidence)
    return None if step is None or tpot is None else Value(tpot.value / step.value, tpot.detail)


def _step_over_work_growth(evidence: Evidence) -> Value | None:
    """Decode step growth over work growth; None if the step did not slow down."""
    step, work = STEP_GROWTH.of(evidence), WORK_GROWTH.of(evidence)
    if step is None or work is None or step.value < GROWN:
        return None
    return Value(step.value / max(1.0, work.value), f"{step.value:.3g} over {work.value:.3g}")


def _of(signal: Callable[[WindowFeatures], Figures], q: float) -> Read:
    return lambda window: at(signal(window), q)


TTFT_GROWTH = _largest(
    "TTFT growth",
    {
        "mean": Figure("", "×", _mean_ttft_growth),
        **{f"p{q * 100:.0f}": _growth("", _of(lambda window: window.ttft_s, q)) for q in (0.5, 0.9, 0.99)},
    },
)
STEP_GROWTH = _growth("decode step growth", lambda window: window.step_s)
TPOT_GROWTH = _growth("median TPOT growth", lambda window: at(window.tpot_s, 0.5))
DECODE_GROWTH = _largest(
    "TPOT and ITL growth",
    {
        "TPOT p50": TPOT_GROWTH,
        "ITL p90": _growth("", lambda window: at(window.itl_s, 0.9)),
        "ITL p99": _growth("", lambda window: at(window.itl_s, 0.99)),
    },
)
TPOT_OVER_STEP_GROWTH = Figure("TPOT growth over decode step growth", "×", _tpot_over_step_growth)
STEP_OVER_SLO = _over_slo("decode step over the SLO threshold", ("tpot", "itl"), lambda window: window.step_s)
DECODE_BREACHES = Figure("breached SLOs on TPOT, ITL or E2E", "", _decode_breaches)
LATE_RATIO = _now("probes sent too late", "ratio", lambda window: window.late_ratio)
HELD_BACK = _now(
    "answers that arrived all at once or several tokens at a time", "ratio", lambda window: window.held_back_ratio
)
LAG_SHARE = _share(
    "share of send lag in TTFT growth",
    lambda window: at(window.send_lag_s, 0.9),
    lambda window: at(window.ttft_s, 0.9),
)
SEND_LAG = _now("send lag p90", "s", lambda window: at(window.send_lag_s, 0.9))
ENGINE_TTFT_GROWTH = _growth("engine TTFT growth", lambda window: window.engine_ttft_s)
ENGINE_ITL_GROWTH = _growth("engine ITL growth", lambda window: window.engine_itl_s)
ENGINE_SHARE = _of_ttft_growth("", lambda window: window.engine_ttft_s)
OUTSIDE = Figure("share of TTFT growth outside the engine", "ratio", _outside)
CONNECT_SHARE = _share(
    "share of connecting in TTFT growth", lambda window: window.connect_s, lambda window: at(window.ttft_s, 0.5)
)
PROMPT_SHARE = _share("share of prompt length in TTFT growth", _prompt_cost, lambda window: at(window.ttft_s, 0.5))
QUEUE_SHARE = _of_ttft_growth("share of queue time in TTFT growth", _queue_s)
QUEUE_GROWTH_STEPS = Figure("growth of queue time in decode steps", "×", _queue_growth_steps)
WAITING_SHARE = _of_ttft_growth("share of waiting in TTFT growth, from the requests waiting", _waiting_s)
PROMPT_OVER_SLO = _over_slo("prompt cost over the SLO threshold", ("ttft",), _prompt_cost)
QUEUE_OVER_SLO = _over_slo("mean queue time over the SLO threshold", ("ttft",), _queue_s)
WAITING_GROWTH = _difference("increase of requests waiting", "", lambda window: window.waiting)
PROMPT_LENGTH_GROWTH = _growth("growth of the mean prompt", lambda window: window.prompt_tokens_per_request)
REQUESTS_GROWTH = _growth("growth of requests per second", lambda window: window.requests_per_s)
DISPERSION_GROWTH = _growth("growth of the dispersion of requests", lambda window: window.requests_dispersion)
WAITING = _now("requests waiting", "", lambda window: window.waiting, "mean of the readings")
KV_USAGE = _now("KV cache usage", "ratio", lambda window: window.kv_usage_ratio, "90th percentile of the readings")
KV_FREE = _now("free KV cache over the tokens of a prompt", "×", _free_prompts, "10th percentile of the readings")
KV_FREE_RATIO = _growth("free KV cache against the baseline", lambda window: window.kv_free_tokens)
AT_MOST_RUNNING = _now(
    "readings with waiting requests that have the most running ones",
    "ratio",
    lambda window: window.waiting_at_most_running_ratio,
)
PREEMPTIONS = _now("preemptions per request", "", _preemptions_per_request)
HITS_RATIO = Figure("prefix cache hits against the baseline", "×", _hits_ratio)
WARM_GROWTH_RATIO = Figure("growth of the warm TTFT over what a warm prefix saved", "×", _warm_growth_ratio)
SAVING_RATIO = Figure("time saved by a warm prefix, against the baseline", "×", _saving_ratio)
WORK_GROWTH = _largest(
    "work growth",
    {
        "answer tokens/s": _growth("", lambda window: window.generated_tokens_per_s),
        "computed prompt tokens/s": _growth("", lambda window: window.computed_prompt_tokens_per_s),
    },
)
STEP_OVER_WORK_GROWTH = Figure("decode step growth over work growth", "×", _step_over_work_growth)
OVER_BOUND = _now("decode speed over the bandwidth bound", "", lambda window: window.over_bound, "1 is the bound")
OVER_BOUND_RATIO = _growth("decode speed over the bound, against the baseline", lambda window: window.over_bound)
CLOCK_RATIO = _growth("GPU clock against the baseline", lambda window: window.gpu_clock_hertz)
THROTTLED = _difference("increase of throttled GPU readings", "", lambda window: window.gpu_throttled_ratio)
UTILIZATION_RATIO = _growth("GPU utilization against the baseline", lambda window: window.gpu_utilization_ratio)

SLOWER_FIRST_TOKEN = (Clue(TTFT_GROWTH, at_least=GROWN),)

# Regimes are rows of a table: clues that several of them need stay in each row.
REGIMES: tuple[Regime, ...] = (
    Regime(
        name="prober_late",
        means="the prober itself sends and reads late; its latencies do not describe the target",
        needs=((Clue(LATE_RATIO, at_least=LATE),),),
        supports=(Clue(SEND_LAG, at_least=0.005),),
        contradicts=(Clue(ENGINE_TTFT_GROWTH, at_least=1.5), Clue(ENGINE_ITL_GROWTH, at_least=1.5)),
        evident=((Clue(LATE_RATIO, at_least=LATE),), (Clue(LAG_SHARE, at_least=PART),)),
        explains=frozenset({"network", "prefill_bound", "decode_far_from_bound", "memory_bound_decode", "prefix_miss"}),
        next_measurement="the prober's CPU throttling and event loop lag, then the same probe from another host",
        advice=(
            Advice("give the prober its own CPU: a request without a limit, away from the target", "one core"),
            Advice("fewer targets or probes per prober", "more probers, or slower detection"),
        ),
    ),
    Regime(
        name="network",
        means="the path to the engine is slow (network, gateway, proxy), not the engine",
        needs=(
            SLOWER_FIRST_TOKEN,
            (Clue(OUTSIDE, at_least=0.7), Clue(CONNECT_SHARE, at_least=MOST)),
            (Clue(LATE_RATIO, at_most=LATE),),
        ),
        supports=(Clue(CONNECT_SHARE, at_least=MOST), Clue(HELD_BACK, at_least=MOST)),
        contradicts=(
            Clue(OUTSIDE, at_most=MOST),
            Clue(ENGINE_ITL_GROWTH, at_least=GROWN),
        ),
        evident=((Clue(CONNECT_SHARE, at_least=PART),), (Clue(LATE_RATIO, at_most=LATE),)),
        next_measurement="probe the engine directly, beside the same probe through the gateway",
        advice=(
            Advice("check the gateway's queue, buffering and TLS; bypass it for streams", "its features"),
            Advice("serve nearer to the users, and keep connections open", "more locations"),
        ),
    ),
    Regime(
        name="cache_pressure",
        means="the KV cache is full: requests are preempted and recomputed, or wait for space",
        needs=(
            (*SLOWER_FIRST_TOKEN, Clue(DECODE_GROWTH, at_least=GROWN), Clue(QUEUE_OVER_SLO, at_least=ALONE)),
            (Clue(KV_USAGE, at_least=FULL),),
            # Usage alone is no harm: requests are preempted, or wait although neither slots nor space for their prompt is what lacks.
            (Clue(PREEMPTIONS, at_least=PREEMPTED), Clue(KV_FREE, at_most=1.0)),
            (Clue(PREEMPTIONS, at_least=PREEMPTED), Clue(AT_MOST_RUNNING, at_most=MOST)),
            # More requests or longer prompts than can be served fill any cache.
            (Clue(PREEMPTIONS, at_least=PREEMPTED), Clue(REQUESTS_GROWTH, at_most=GROWN)),
            (Clue(PREEMPTIONS, at_least=PREEMPTED), Clue(PROMPT_LENGTH_GROWTH, at_most=GROWN)),
            (
                Clue(PREEMPTIONS, at_least=PREEMPTED),
                Clue(WAITING_SHARE, at_least=MOST),
                Clue(QUEUE_SHARE, at_least=MOST),
                Clue(QUEUE_OVER_SLO, at_least=ALONE),
            ),
        ),
        supports=(Clue(PREEMPTIONS, at_least=PREEMPTED), Clue(WAITING_GROWTH, at_least=0.5)),
        contradicts=(Clue(OUTSIDE, at_least=0.7), Clue(KV_FREE_RATIO, at_least=FALLEN)),
        evident=(
            (Clue(PREEMPTIONS, at_least=PREEMPTED),),
            (Clue(KV_USAGE, at_least=FULL),),
            (Clue(WAITING_SHARE, at_least=PART),),
        ),
        explains=frozenset({"queueing", "prefill_bound", "memory_bound_decode", "prefix_miss"}),
        next_measurement="KV cache usage and preemptions against request lengths, over a day",
        advice=(
            Advice("give the KV cache more memory", "less memory for activations", "kv_memory"),
            Advice("store the KV cache in 8 bits", "some accuracy", "kv_type"),
            Advice("run fewer sequences at a time", "some requests wait instead of being preempted", "sequences"),
            Advice("limit the context length", "long requests are refused", "context"),
            Advice("quantise the weights: the freed memory becomes cache", "some accuracy", "quantise"),
            Advice("use more GPUs (tensor parallelism)", "cost", "tensor_parallel"),
        ),
    ),
    Regime(
        name="prefix_miss",
        means="prompts that used to be in the prefix cache are computed again",
        needs=(
            (*SLOWER_FIRST_TOKEN, Clue(ENGINE_TTFT_GROWTH, at_least=GROWN)),
            (Clue(HITS_RATIO, at_most=0.6), Clue(SAVING_RATIO, at_least=-0.4, at_most=0.4)),
            (Clue(HITS_RATIO, at_most=0.6), Clue(WARM_GROWTH_RATIO, at_least=MOST)),
        ),
        supports=(Clue(HITS_RATIO, at_most=0.6), Clue(SAVING_RATIO, at_least=-0.4, at_most=0.4)),
        contradicts=(Clue(OUTSIDE, at_least=0.7), Clue(HITS_RATIO, at_least=FALLEN)),
        evident=((Clue(HITS_RATIO, at_most=0.6),), (Clue(ENGINE_TTFT_GROWTH, at_least=GROWN),)),
        explains=frozenset(
            {"queueing", "prefill_bound", "decode_far_from_bound", "memory_bound_decode", "cache_pressure"}
        ),
        next_measurement="warm and cold probes of equal length; what changed at the beginning of the prompts",
        advice=(
            Advice("enable the prefix cache", "nothing on most models", "prefix_cache"),
            Advice("move changing text (time, user) away from the beginning of prompts", "work on the application"),
            Advice("route requests with equal prefixes to the same replica", "uneven load"),
            Advice("give the cache more memory", "less memory for activations", "kv_memory"),
        ),
    ),
    Regime(
        name="decode_far_from_bound",
        means="decode steps are slow without more work, far from the bandwidth bound: clocks, host, kernels, another process",
        needs=(
            (Clue(STEP_GROWTH, at_least=GROWN), Clue(STEP_OVER_SLO, at_least=ALONE)),
            (
                Clue(OVER_BOUND, at_most=FAR_FROM_BOUND),
                Clue(OVER_BOUND_RATIO, at_most=FALLEN),
                Clue(CLOCK_RATIO, at_most=SLOW_CLOCK),
            ),
            # Under much more work every step contains prefill, and no plain step is measured.
            (Clue(WORK_GROWTH, at_most=BUSIER), Clue(WAITING, at_most=0.5), Clue(CLOCK_RATIO, at_most=SLOW_CLOCK)),
        ),
        supports=(
            Clue(THROTTLED, at_least=0.3),
            Clue(CLOCK_RATIO, at_most=SLOW_CLOCK),
            Clue(UTILIZATION_RATIO, at_most=FALLEN),
        ),
        contradicts=(
            Clue(STEP_OVER_WORK_GROWTH, at_most=BEYOND),
            Clue(OVER_BOUND, at_least=NEAR_BOUND),
            Clue(LATE_RATIO, at_least=LATE),
        ),
        evident=(
            (Clue(DECODE_BREACHES, at_least=1),),
            (Clue(STEP_GROWTH, at_least=GROWN),),
            (Clue(ENGINE_ITL_GROWTH, at_least=GROWN),),
            (Clue(OVER_BOUND_RATIO, at_most=FALLEN), Clue(CLOCK_RATIO, at_most=SLOW_CLOCK)),
            (Clue(WORK_GROWTH, at_most=BUSIER),),
            (Clue(STEP_OVER_WORK_GROWTH, at_least=GROWN),),
        ),
        explains=frozenset({"queueing", "prefill_bound", "cache_pressure"}),
        next_measurement="GPU clocks, throttling and processes now, host CPU of the engine, then a profile of one decode step",
        advice=(
            Advice("cool and power the GPU sufficiently, and remove other processes from it", "nothing"),
            Advice("give the engine's host process its own CPU; use CUDA graphs", "cores, memory"),
            Advice("go back to the previous engine, driver or kernels", "their fixes"),
        ),
    ),
    Regime(
        name="memory_bound_decode",
        means="decode steps are as fast as the memory allows: weights and KV cache are too large to be read within this SLO",
        needs=(
            (Clue(STEP_GROWTH, at_least=GROWN), Clue(STEP_OVER_SLO, at_least=ALONE)),
            (Clue(OVER_BOUND, at_least=NEAR_BOUND, at_most=ABOVE_BOUND),),
        ),
        supports=(Clue(UTILIZATION_RATIO, at_least=FALLEN),),
        contradicts=(
            Clue(DECODE_BREACHES, at_most=0),
            Clue(TPOT_OVER_STEP_GROWTH, at_least=EVEN),
            Clue(WAITING_GROWTH, at_least=1.0),
            Clue(PREEMPTIONS, at_least=PREEMPTED),
            Clue(OVER_BOUND_RATIO, at_most=FALLEN),
            Clue(LATE_RATIO, at_least=LATE),
        ),
        next_measurement="TPOT at concurrency one, and against the context tokens in the batch",
        advice=(
            Advice("quantise the weights", "some accuracy", "quantise"),
            Advice("store the KV cache in 8 bits", "some accuracy", "kv_type"),
            Advice("use speculative decoding", "throughput at high load", "speculate"),
            Advice("run fewer sequences at a time", "throughput", "sequences"),
            Advice("use more GPUs (tensor parallelism)", "cost, and synchronisation time", "tensor_parallel"),
            Advice("use a GPU with more memory bandwidth", "cost"),
        ),
    ),
    Regime(
        name="prefill_bound",
        means="the first token waits for the computation of its own prompt, not for other requests",
        needs=(
            (*SLOWER_FIRST_TOKEN, Clue(PROMPT_OVER_SLO, at_least=ALONE)),
            (Clue(PROMPT_SHARE, at_least=MOST), Clue(PROMPT_OVER_SLO, at_least=ALONE)),
            (Clue(QUEUE_SHARE, at_most=0.4), Clue(QUEUE_OVER_SLO, at_most=0.3)),
        ),
        supports=(Clue(WAITING, at_most=0.5),),
        contradicts=(
            Clue(PROMPT_SHARE, at_most=0.4),
            Clue(STEP_GROWTH, at_least=GROWN),
            Clue(STEP_OVER_SLO, at_least=ALONE),
            Clue(WAITING_GROWTH, at_least=1.0),
            Clue(HITS_RATIO, at_most=0.6),
            Clue(OUTSIDE, at_least=0.7),
            Clue(LATE_RATIO, at_least=LATE),
        ),
        next_measurement="TTFT by prompt length on the idle engine (`prober diagnose`)",
        advice=(
            Advice("shorten prompts, or share their beginning", "work on the application", "prefix_cache"),
            Advice("process more prompt tokens per step", "decoding of other requests stalls longer", "batched_tokens"),
            Advice("use more GPUs (tensor parallelism)", "cost", "tensor_parallel"),
            Advice("disaggregate: prefill on separate GPUs", "more GPUs, and transfer of the cache"),
            Advice("use a GPU with more compute", "cost"),
        ),
    ),
    Regime(
        name="queueing",
        means="requests wait for others: too much load, bursts, too few slots, or long prompts ahead of short ones",
        needs=(
            (*SLOWER_FIRST_TOKEN, Clue(QUEUE_OVER_SLO, at_least=ALONE)),
            (
                Clue(WAITING_GROWTH, at_least=0.5),
                Clue(QUEUE_SHARE, at_least=MOST),
                Clue(QUEUE_OVER_SLO, at_least=ALONE),
            ),
            # Without more to do or fewer slots, the queue is the consequence of a slower service.
            (
                Clue(WORK_GROWTH, at_least=GROWN),
                Clue(PROMPT_LENGTH_GROWTH, at_least=GROWN),
                Clue(DISPERSION_GROWTH, at_least=BURSTING),
                Clue(AT_MOST_RUNNING, at_least=MOST),
            ),
            # otherwise they may wait for space in the cache
            (Clue(KV_USAGE, at_most=FULL), Clue(KV_FREE, at_least=2.0), Clue(AT_MOST_RUNNING, at_least=MOST)),
        ),
        supports=(Clue(WAITING, at_least=1.0), Clue(WORK_GROWTH, at_least=BUSIER)),
        contradicts=(
            Clue(OUTSIDE, at_least=0.7),
            Clue(QUEUE_SHARE, at_most=0.4),
            Clue(WAITING_SHARE, at_most=0.3),
            Clue(QUEUE_GROWTH_STEPS, at_most=2.0),
        ),
        evident=(
            (Clue(QUEUE_SHARE, at_least=PART),),
            (Clue(WAITING_SHARE, at_least=PART),),
            (Clue(QUEUE_GROWTH_STEPS, at_least=5.0),),
            (Clue(KV_USAGE, at_most=FULL),),
        ),
        explains=frozenset({"memory_bound_decode"}),
        next_measurement="a sweep: the highest rate at which the SLO holds; TTFT by prompt length at this load",
        advice=(
            Advice("add replicas", "cost"),
            Advice("run more sequences at a time", "slower decoding of each", "sequences"),
            Advice("split long prompts (chunked prefill)", "their own first token is later", "chunked_prefill"),
            Advice("shape the load: limit or delay requests that can wait", "some requests are refused or later"),
            Advice("separate pools: long and short, interactive and batch", "each pool is less used"),
        ),
    ),
)

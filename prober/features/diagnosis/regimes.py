"""What is known of slow engines: the figures that evidence gives, and the table of regimes that they name.

The thresholds were tuned on the simulated engine (`bench/diagnosis.py`) and are reported on seeds that they were not tuned on.
"""

from collections.abc import Callable, Mapping

from prober.features.diagnosis.clues import Advice, Clue, Evidence, Figure, Figures, Regime, Value, WindowFeatures

GROWN = 1.25  # against the baseline: above what quantiles of a hundred probes wander by
BEYOND = 1.05  # steps that slowed by no more than this beside the growth of the work slowed with it
BUSIER = 1.6  # so much more work is another load: above what minutes of one load wander by
ALONE = 1.0  # of its SLO: one part alone breaches it
EVEN = 1.5  # a TPOT that grew no more than this beside the plain step grew with it
MOST = 0.5  # of a growth: its cause
NEAR_BOUND, FAR_FROM_BOUND, ABOVE_BOUND = 0.75, 0.6, 1.3  # 1 is the bound; above it an assumption is wrong
FALLEN = 0.8  # of what it was
SLOW_CLOCK = 0.85  # of what it was: below what a power cap takes off in normal work
PREEMPTING = 0.005  # a second: once in some minutes
FULL = 0.9  # of the KV cache: admission and growth begin to fail
LATE = 0.05  # of the probes: five times what the prober still trusts itself with

Read = Callable[[WindowFeatures], float | None]


def at(figures: Figures, q: float) -> float | None:
    """A quantile's estimate; None without enough samples."""
    return next((each.estimate for each in figures if each.q == q and each.has_enough_samples), None)


def _now(name: str, unit: str, read: Read, detail: str = "") -> Figure:
    def of(evidence: Evidence) -> Value | None:
        value = read(evidence.now)
        return None if value is None else Value(value, detail)

    return Figure(name, unit, of)


def _growth(name: str, read: Read) -> Figure:
    """Now over before."""

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
    """The largest of those that were measured."""

    def of(evidence: Evidence) -> Value | None:
        found = [(value, part) for part, figure in parts.items() if (value := figure.of(evidence)) is not None]
        if not found:
            return None
        value, part = max(found)
        return Value(value.value, f"{part} {value.detail}")

    return Figure(name, "×", of)


def _share(name: str, part: Read, whole: Read) -> Figure:
    """What the part has in the growth of the whole; None if that did not grow."""

    def of(evidence: Evidence) -> Value | None:
        now, before = evidence.now, evidence.before
        part_now, part_before, whole_now, whole_before = part(now), part(before), whole(now), whole(before)
        if part_now is None or part_before is None or whole_now is None or whole_before is None:
            return None
        if whole_now < GROWN * whole_before or whole_now <= whole_before:
            return None
        grown = part_now - part_before, whole_now - whole_before
        return Value(grown[0] / grown[1], f"{1e3 * grown[0]:+.3g} of {1e3 * grown[1]:+.3g} ms")

    return Figure(name, "ratio", of)


def _over_slo(name: str, signals: tuple[str, ...], part: Read) -> Figure:
    """The part over the strictest threshold of the breached SLOs on these signals: from 1 on it breaches them alone."""

    def of(evidence: Evidence) -> Value | None:
        thresholds = [each for signal, each in evidence.breached.items() if signal in signals]
        value = part(evidence.now)
        if value is None or not thresholds:
            return None
        return Value(value / min(thresholds), f"{_lasting(value)} over {_lasting(min(thresholds))}")

    return Figure(name, "×", of)


def _lasting(seconds: float) -> str:
    """Three digits, of milliseconds or from one second on of seconds."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _prompt_cost(seen: WindowFeatures) -> float | None:
    """What the median prompt costs; a noisy slope cannot make it more than the median TTFT."""
    slope, median = seen.ttft_per_prompt_token_s, at(seen.ttft_s, 0.5)
    if slope is None or seen.prompt_tokens is None or median is None:
        return None
    return min(slope * seen.prompt_tokens, median)


def _saving(seen: WindowFeatures) -> float | None:
    """Seconds that a shared prefix saves; None where it is too little to be told from noise."""
    return None if seen.ttft_cold_s is None or seen.ttft_warm_s is None else seen.ttft_cold_s - seen.ttft_warm_s


def _saving_kept(evidence: Evidence) -> Value | None:
    """Only of a saving that was clear before: a fifth of the cold TTFT."""
    now, before, cold = _saving(evidence.now), _saving(evidence.before), evidence.before.ttft_cold_s
    if now is None or before is None or cold is None or before < 0.2 * cold:
        return None
    return Value(now / before, f"{1e3 * now:.3g} ms after {1e3 * before:.3g} ms")


def _hits_kept(evidence: Evidence) -> Value | None:
    """The larger of what is left of their rate and of their share: other prompts beside them lower the share alone."""
    now, before = evidence.now, evidence.before
    if now.prefix_hit_ratio is None or now.prefix_hit_tokens_per_s is None:
        return None
    if not before.prefix_hit_ratio or not before.prefix_hit_tokens_per_s or before.prefix_hit_ratio < 0.1:
        return None
    kept = now.prefix_hit_ratio / before.prefix_hit_ratio, now.prefix_hit_tokens_per_s / before.prefix_hit_tokens_per_s
    return Value(max(kept), f"{now.prefix_hit_ratio:.2g} of the prompt tokens after {before.prefix_hit_ratio:.2g}")


def _outside(evidence: Evidence) -> Value | None:
    """Of the growth of the probes' mean TTFT, what the engine's own mean did not see."""
    now, before = evidence.now, evidence.before
    if (
        now.ttft_mean_s is None
        or before.ttft_mean_s is None
        or now.engine_ttft_s is None
        or before.engine_ttft_s is None
    ):
        return None
    grown = now.ttft_mean_s - before.ttft_mean_s
    if grown < (GROWN - 1) * before.ttft_mean_s:
        return None
    inside = now.engine_ttft_s - before.engine_ttft_s
    return Value(1 - inside / grown, f"probes +{1e3 * grown:.3g} ms, engine {1e3 * inside:+.3g} ms")


def _uneven(evidence: Evidence) -> Value | None:
    """How much more the TPOT grew than the plain step."""
    step, tpot = STEP_GROWTH.of(evidence), TPOT_GROWTH.of(evidence)
    return None if step is None or tpot is None else Value(tpot.value / step.value, tpot.detail)


def _beyond_work(evidence: Evidence) -> Value | None:
    """How much more a step that slowed has slowed than the work grew."""
    step, work = STEP_GROWTH.of(evidence), WORK_GROWTH.of(evidence)
    if step is None or work is None or step.value < GROWN:
        return None
    return Value(step.value / max(1.0, work.value), f"{step.value:.3g} over {work.value:.3g}")


def _of(signal: Callable[[WindowFeatures], Figures], q: float) -> Read:
    return lambda seen: at(signal(seen), q)


TTFT_GROWTH = _largest(
    "growth of the TTFT", {f"p{q * 100:.0f}": _growth("", _of(lambda seen: seen.ttft_s, q)) for q in (0.5, 0.9, 0.99)}
)
STEP_GROWTH = _growth("growth of a decode step", lambda seen: seen.step_s)
TPOT_GROWTH = _growth("growth of the median TPOT", lambda seen: at(seen.tpot_s, 0.5))
DECODE_GROWTH = _largest(
    "growth of TPOT and ITL",
    {
        "TPOT p50": TPOT_GROWTH,
        "ITL p90": _growth("", lambda seen: at(seen.itl_s, 0.9)),
        "ITL p99": _growth("", lambda seen: at(seen.itl_s, 0.99)),
    },
)
UNEVEN = Figure("growth of the TPOT beside the step's", "×", _uneven)
STEP_OVER_SLO = _over_slo("a decode step over the SLO", ("tpot", "itl"), lambda seen: seen.step_s)
LATE_RATIO = _now("probes sent too late", "ratio", lambda seen: seen.late_ratio)
SEND_LAG = _now("send lag p90", "s", lambda seen: at(seen.send_lag_s, 0.9))
ENGINE_TTFT_GROWTH = _growth("growth of the engine's own TTFT", lambda seen: seen.engine_ttft_s)
ENGINE_ITL_GROWTH = _growth("growth of the engine's own ITL", lambda seen: seen.engine_itl_s)
OUTSIDE = Figure("share of the TTFT's growth outside the engine", "ratio", _outside)
CONNECT_SHARE = _share(
    "growth of connecting over the TTFT's", lambda seen: seen.connect_s, lambda seen: at(seen.ttft_s, 0.5)
)
PROMPT_SHARE = _share("share of prompt length in the TTFT's growth", _prompt_cost, lambda seen: at(seen.ttft_s, 0.5))
QUEUE_SHARE = _share(
    "share of queueing in the growth of the engine's TTFT",
    lambda seen: seen.engine_queue_s,
    lambda seen: seen.engine_ttft_s,
)
PROMPT_OVER_SLO = _over_slo("the cost of a prompt over the SLO", ("ttft",), _prompt_cost)
QUEUE_OVER_SLO = _over_slo("the engine's mean queueing over the SLO", ("ttft",), lambda seen: seen.engine_queue_s)
WAITING_GROWTH = _difference("more requests waiting", "", lambda seen: seen.waiting)
WAITING = _now("requests waiting", "", lambda seen: seen.waiting, "mean of the readings")
KV_USAGE = _now("KV cache usage", "ratio", lambda seen: seen.kv_usage_ratio, "90th percentile of the readings")
PREEMPTIONS = _now("preemptions", "/s", lambda seen: seen.preemptions_per_s)
HITS_KEPT = Figure("prefix cache hits left", "×", _hits_kept)
SAVING_KEPT = Figure("what a warm prefix saves, of what it saved", "×", _saving_kept)
WORK_GROWTH = _largest(
    "growth of the work",
    {
        "answer tokens/s": _growth("", lambda seen: seen.generated_tokens_per_s),
        "computed prompt tokens/s": _growth("", lambda seen: seen.computed_prompt_tokens_per_s),
    },
)
BEYOND_WORK = Figure("slowdown of a step beside the growth of the work", "×", _beyond_work)
OVER_BOUND = _now("speed of a decode step over the memory's bound", "", lambda seen: seen.over_bound, "1 is the bound")
OVER_BOUND_KEPT = _growth("speed over the bound, of what it was", lambda seen: seen.over_bound)
CLOCK_KEPT = _growth("GPU clock, of what it was", lambda seen: seen.gpu_clock_hertz)
THROTTLED = _difference("more readings of the GPU throttled", "", lambda seen: seen.gpu_throttled_ratio)
UTILIZATION_KEPT = _growth("GPU utilization, of what it was", lambda seen: seen.gpu_utilization_ratio)

SLOWER_FIRST_TOKEN = (Clue(TTFT_GROWTH, at_least=GROWN),)

REGIMES: tuple[Regime, ...] = (
    Regime(
        name="prober_late",
        means="the prober itself sends and reads late; its figures do not tell of the target",
        needs=((Clue(LATE_RATIO, at_least=LATE),),),
        supports=(Clue(SEND_LAG, at_least=0.005),),
        contradicts=(Clue(ENGINE_TTFT_GROWTH, at_least=1.5), Clue(ENGINE_ITL_GROWTH, at_least=1.5)),
        explains=frozenset({"network", "prefill_bound", "decode_far_from_bound", "memory_bound_decode", "prefix_miss"}),
        next_measurement="the prober's CPU throttling and event loop lag, then the same probe from another host",
        advice=(
            Advice("give the prober CPU of its own: a request without a limit, away from the target", "a core"),
            Advice("fewer targets or probes for each prober", "more probers, or slower detection"),
        ),
    ),
    Regime(
        name="network",
        means="the way to the engine is slow (network, gateway, proxy), not the engine",
        needs=(
            SLOWER_FIRST_TOKEN,
            (Clue(OUTSIDE, at_least=0.7), Clue(CONNECT_SHARE, at_least=MOST)),
            (Clue(LATE_RATIO, at_most=LATE),),
        ),
        supports=(Clue(CONNECT_SHARE, at_least=MOST),),
        contradicts=(
            Clue(OUTSIDE, at_most=MOST),
            Clue(ENGINE_ITL_GROWTH, at_least=GROWN),
        ),
        next_measurement="probe the engine directly, beside the same probe through the gateway",
        advice=(
            Advice(
                "look at the gateway's own queue, buffering and TLS; take it out of the way of streams", "its features"
            ),
            Advice("serve nearer to the users, and keep connections open", "more places to run"),
        ),
    ),
    Regime(
        name="cache_pressure",
        means="the KV cache is full: requests are preempted and computed again, or wait for room",
        needs=(
            (*SLOWER_FIRST_TOKEN, Clue(DECODE_GROWTH, at_least=GROWN), Clue(QUEUE_OVER_SLO, at_least=ALONE)),
            (Clue(KV_USAGE, at_least=FULL),),
            (
                Clue(PREEMPTIONS, at_least=PREEMPTING),
                Clue(WAITING_GROWTH, at_least=0.5),
                Clue(QUEUE_SHARE, at_least=MOST),
            ),
        ),
        supports=(Clue(PREEMPTIONS, at_least=PREEMPTING), Clue(WAITING_GROWTH, at_least=0.5)),
        contradicts=(Clue(OUTSIDE, at_least=0.7),),
        explains=frozenset({"queueing", "prefill_bound", "memory_bound_decode"}),
        next_measurement="KV usage and preemptions against the lengths of requests, over a day",
        advice=(
            Advice("give the KV cache more memory", "less room for activations", "kv_memory"),
            Advice("keep the KV cache in 8 bit", "some accuracy", "kv_type"),
            Advice("run fewer sequences at a time", "some wait instead of being preempted", "sequences"),
            Advice("bound the context", "long requests are refused", "context"),
            Advice("quantise the weights: the room becomes cache", "some accuracy", "quantise"),
            Advice("spread over more GPUs", "money", "tensor_parallel"),
        ),
    ),
    Regime(
        name="prefix_miss",
        means="prompts that were found in the prefix cache are computed again",
        needs=(
            (*SLOWER_FIRST_TOKEN, Clue(ENGINE_TTFT_GROWTH, at_least=GROWN)),
            (Clue(HITS_KEPT, at_most=0.6), Clue(SAVING_KEPT, at_least=-0.4, at_most=0.4)),
        ),
        supports=(Clue(HITS_KEPT, at_most=0.6), Clue(SAVING_KEPT, at_least=-0.4, at_most=0.4)),
        contradicts=(Clue(OUTSIDE, at_least=0.7), Clue(HITS_KEPT, at_least=FALLEN)),
        explains=frozenset({"queueing", "prefill_bound", "decode_far_from_bound", "memory_bound_decode"}),
        next_measurement="warm probes beside cold ones of one length; what changed at the beginning of the prompts",
        advice=(
            Advice("switch the prefix cache on", "nothing on most models", "prefix_cache"),
            Advice("keep what changes (time, user) out of the beginning of prompts", "work on the application"),
            Advice("route equal prefixes to the same replica", "uneven load"),
            Advice("give the cache more memory", "less room for activations", "kv_memory"),
        ),
    ),
    Regime(
        name="decode_far_from_bound",
        means="decode steps are slow at no more work, far from the memory's bound: clocks, host, kernels, a foreign process",
        needs=(
            (Clue(STEP_GROWTH, at_least=GROWN), Clue(STEP_OVER_SLO, at_least=ALONE)),
            (
                Clue(OVER_BOUND, at_most=FAR_FROM_BOUND),
                Clue(OVER_BOUND_KEPT, at_most=FALLEN),
                Clue(CLOCK_KEPT, at_most=SLOW_CLOCK),
            ),
            # Under much more work prefill stands in every step, and no plain one is seen.
            (Clue(WORK_GROWTH, at_most=BUSIER), Clue(WAITING, at_most=0.5), Clue(CLOCK_KEPT, at_most=SLOW_CLOCK)),
        ),
        supports=(
            Clue(THROTTLED, at_least=0.3),
            Clue(CLOCK_KEPT, at_most=SLOW_CLOCK),
            Clue(UTILIZATION_KEPT, at_most=FALLEN),
        ),
        contradicts=(
            Clue(BEYOND_WORK, at_most=BEYOND),
            Clue(OVER_BOUND, at_least=NEAR_BOUND),
            Clue(LATE_RATIO, at_least=LATE),
        ),
        explains=frozenset({"queueing", "prefill_bound", "cache_pressure"}),
        next_measurement="GPU clocks, throttling and processes now, host CPU of the engine, then a profile of one decode step",
        advice=(
            Advice("cool and power the GPU as it needs, take foreign processes off it", "nothing"),
            Advice("give the engine's host process CPU of its own; use captured graphs", "cores, memory"),
            Advice("go back to the engine, driver or kernels of before", "their fixes"),
        ),
    ),
    Regime(
        name="memory_bound_decode",
        means="decode steps are as fast as the memory allows: weights and KV cache are too much to read for this SLO",
        needs=(
            (Clue(STEP_GROWTH, at_least=GROWN), Clue(STEP_OVER_SLO, at_least=ALONE)),
            (Clue(OVER_BOUND, at_least=NEAR_BOUND, at_most=ABOVE_BOUND),),
        ),
        supports=(Clue(UTILIZATION_KEPT, at_least=FALLEN),),
        contradicts=(
            Clue(UNEVEN, at_least=EVEN),
            Clue(WAITING_GROWTH, at_least=1.0),
            Clue(PREEMPTIONS, at_least=PREEMPTING),
            Clue(OVER_BOUND_KEPT, at_most=FALLEN),
            Clue(LATE_RATIO, at_least=LATE),
        ),
        next_measurement="TPOT at concurrency one, and against the tokens of context in the batch",
        advice=(
            Advice("quantise the weights", "some accuracy", "quantise"),
            Advice("keep the KV cache in 8 bit", "some accuracy", "kv_type"),
            Advice("speculate", "throughput at high load", "speculate"),
            Advice("run fewer sequences at a time", "throughput", "sequences"),
            Advice("spread over more GPUs", "money, and time to synchronise", "tensor_parallel"),
            Advice("another GPU: one with more memory bandwidth", "money"),
        ),
    ),
    Regime(
        name="prefill_bound",
        means="the first token waits for its own prompt to be computed, not for others",
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
            Clue(HITS_KEPT, at_most=0.6),
            Clue(OUTSIDE, at_least=0.7),
            Clue(LATE_RATIO, at_least=LATE),
        ),
        next_measurement="TTFT by prompt length on the idle engine (the phase matrix: 256, 2048 and 4096 tokens)",
        advice=(
            Advice("shorten prompts, or share their beginning", "work on the application", "prefix_cache"),
            Advice("take more prompt tokens a step", "decode of others stalls longer", "batched_tokens"),
            Advice("spread over more GPUs", "money", "tensor_parallel"),
            Advice("disaggregate: prefill on GPUs of its own", "more GPUs, moving the cache"),
            Advice("another GPU: one with more arithmetic", "money"),
        ),
    ),
    Regime(
        name="queueing",
        means="requests wait for others: too much load, bursts, too few slots, or long prompts in front of short ones",
        needs=(
            (*SLOWER_FIRST_TOKEN, Clue(QUEUE_OVER_SLO, at_least=ALONE)),
            (
                Clue(WAITING_GROWTH, at_least=0.5),
                Clue(QUEUE_SHARE, at_least=MOST),
                Clue(QUEUE_OVER_SLO, at_least=ALONE),
            ),
            (Clue(KV_USAGE, at_most=FULL),),  # else they may wait for room in the cache
        ),
        supports=(Clue(WAITING, at_least=1.0), Clue(WORK_GROWTH, at_least=BUSIER)),
        contradicts=(Clue(OUTSIDE, at_least=0.7), Clue(QUEUE_SHARE, at_most=0.4)),
        explains=frozenset({"memory_bound_decode"}),
        next_measurement="a sweep: up to which rate the SLO holds; TTFT by prompt length at this load",
        advice=(
            Advice("add replicas", "money"),
            Advice("run more sequences at a time", "slower decode for each", "sequences"),
            Advice("cut long prompts into pieces", "their own first token is later", "chunked_prefill"),
            Advice("shape the load: limit or delay what may wait", "some requests are refused or later"),
            Advice("separate pools: long and short, interactive and batch", "each pool is less full"),
        ),
    ),
)

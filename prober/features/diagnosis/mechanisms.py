"""Table of the mechanisms of slowness and failure: what each needs, the figures that show it, its text, and what to do about it.

Specific figures show a mechanism: its part in a latency's growth, or a state of the engine that only it causes.
Constants were tuned on half of the independent scenes (`bench/diagnosis_independent.py`), and are reported on the other half;
docs/methods.md has the effect of each.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from prober.features.diagnosis import advice
from prober.features.diagnosis.advice import Advice
from prober.features.diagnosis.clues import (
    CERTAIN,
    GROWN,
    MOST,
    Finding,
    Name,
    Symptoms,
    WindowFeatures,
    is_at_least,
)
from prober.measure.timeline import format_duration

OUTSIDE = 0.7  # share of the growth outside the engine that makes the path the cause
IDLE = 1.0  # waiting requests in a queue that counts as empty
PREEMPTED = 0.01  # preemptions per request
LONGER = 1.4  # growth of prompts, work or pauses; minutes with the same users differ less
LOST = 0.6  # share of the usual prefix hits
GONE = 0.2  # share of the usual saving of a warm prefix
STILL = 0.02  # excess share of streaming time in which streams stand still
SHARP = 8.0  # standard errors of the slope that prove that length slows prompts
SLOW_CLOCK = 0.85  # share of the usual clock; a power cap in normal operation reduces it less
NEAR_BOUND = 0.75  # share of the speed that memory bandwidth allows
FOREIGN = 0.03  # share of GPU memory; an engine reserves its own at its start
REFUSALS = ("http_429", "shed")
LOADING = ("loading", "starting")  # words in a 503 while a model is loaded
CALM_TIME = "a time without trouble, to compare with"  # a measurement that would show more


def _known(*findings: Finding | None) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding is not None)


def failures(s: Symptoms, kinds: Callable[[str], bool] = lambda _: True) -> tuple[Finding, ...]:
    """Most frequent failures of some kinds, if failures alone breach an SLO and half of them are of these kinds."""
    counts = {text: count for text, count in s.now.failures.items() if kinds(text)}
    if "success" not in s.breached or 2 * sum(counts.values()) < sum(s.now.failures.values()):
        return ()
    return tuple(Finding(text, count, f"of {s.now.probes} probes") for text, count in list(counts.items())[:3])


def _is_loading(text: str) -> bool:
    return text.startswith("http_5") and any(word in text.lower() for word in LOADING)


def _is_other_failure(text: str) -> bool:
    """Timeouts are a consequence of slowness: they are named only if nothing shows its cause."""
    return not text.startswith((*REFUSALS, "timeout")) and not _is_loading(text)


def _waiting(s: Symptoms) -> Finding | None:
    return s.shared("waiting", s.queue_share, s.added_s, is_told=s.now.queue_part_s is not None)


def _told_prefill(s: Symptoms) -> Finding | None:
    share = s.told_share(lambda w: w.prefill_part_s)
    return s.shared("prefill, as the engine tells", share, s.added_s, is_told=True)


def _cache_pressure(s: Symptoms) -> tuple[Finding, ...]:
    def preemptions(window: WindowFeatures) -> float | None:
        per_s = window.preemptions_per_s
        return per_s / window.requests_per_s if per_s is not None and window.requests_per_s else None

    findings = _known(
        s.measured("KV cache usage", lambda w: w.kv_usage_ratio, "ratio"),
        s.measured("requests waiting", lambda w: w.waiting),
        s.measured("requests running", lambda w: w.running),
    )
    if is_at_least(preemptions(s.now), PREEMPTED):
        return _known(s.measured("preemptions per request", preemptions), *findings)
    usage, capacity = s.now.kv_usage_ratio, s.now.kv_capacity_tokens
    if usage is None or capacity is None or not is_at_least(s.queue_share, MOST):
        return ()
    # Some pages count cached blocks as used: a cache that was as full before is not the cause.
    has_grown = s.before.kv_usage_ratio is None or usage >= GROWN * s.before.kv_usage_ratio
    lacks_space = is_at_least(s.now.prompt_tokens_per_request, (1 - usage) * capacity)
    # More requests than the engine can serve fill a cache of any size.
    is_overloaded = is_at_least(s.growth(lambda w: w.requests_per_s), GROWN)
    return findings if lacks_space and has_grown and not is_overloaded else ()


def _prefix_miss(s: Symptoms) -> tuple[Finding, ...]:
    now, before = s.now, s.before
    ttfts = s.growth(lambda w: w.ttft_mean_s), s.growth(lambda w: w.engine_ttft_s)
    if not any(is_at_least(growth, GROWN) for growth in ttfts):
        return ()
    # Other prompts lower only the share of hits, and fewer requests only their rate.
    hits = [s.growth(lambda w: w.prefix_hit_ratio), s.growth(lambda w: w.prefix_hit_tokens_per_s)]
    known = [ratio for ratio in hits if ratio is not None]
    share = s.measured("prompt tokens found in the prefix cache", lambda w: w.prefix_hit_ratio, "ratio")
    if is_at_least(before.prefix_hit_ratio, 0.1) and len(known) == 2:
        return _known(share) if max(known) <= LOST else ()
    if now.ttft_warm_s is None or now.ttft_cold_s is None or before.ttft_warm_s is None or before.ttft_cold_s is None:
        return ()
    saved_s, usual_s = now.ttft_cold_s - now.ttft_warm_s, before.ttft_cold_s - before.ttft_warm_s
    error_s = math.hypot(now.saving_error_s or 0.0, before.saving_error_s or 0.0)
    is_lost = abs(saved_s) <= GONE * usual_s and usual_s - abs(saved_s) >= CERTAIN * error_s
    if not is_lost or now.ttft_warm_s < GROWN * before.ttft_warm_s:
        return ()
    detail = f"{format_duration(saved_s)}, usually {format_duration(usual_s)}"
    return _known(
        Finding("time that a warm prefix saves, against the usual one", saved_s / usual_s, "ratio", detail), share
    )


def _long_prompts(s: Symptoms) -> tuple[Finding, ...]:
    if not is_at_least(s.growth(lambda w: w.prompt_tokens_per_request), LONGER):
        return ()
    return _known(
        s.measured("mean prompt of all requests", lambda w: w.prompt_tokens_per_request, "tokens"),
        _waiting(s),
    )


def _kv_transfer(s: Symptoms) -> tuple[Finding, ...]:
    # Without a usual time nothing is stated: a transfer always takes a part of the TTFT.
    share = s.share(lambda w: w.kv_transfer_s, s.added_s)
    if not is_at_least(s.growth(lambda w: w.kv_transfer_s), GROWN) or not is_at_least(share, MOST):
        return ()
    return _known(
        s.grown("KV transfer", lambda w: w.kv_transfer_s),
        s.shared("KV transfer", share, s.added_s),
        s.measured("failed KV transfers per second", lambda w: w.kv_transfer_failures_per_s),
    )


def _slow_decode(s: Symptoms) -> tuple[Finding, ...]:
    is_slow = is_at_least(s.step_growth, GROWN)
    if not is_slow and not (s.is_about_decode and is_at_least(s.growth(lambda w: w.slow_step_s), GROWN)):
        return ()
    # Under much more work every step contains prefill, and no plain step is measured.
    if is_at_least(s.work_growth, LONGER) and (s.now.waiting is None or s.now.waiting >= IDLE):
        return ()
    # Without a page it is unknown whether more work slows the steps. The queue is known, if the engine tells it of the probes.
    is_unknown_work = s.work_growth is None and not s.is_about_decode
    is_told_queue = s.now.queue_part_s is not None and is_at_least(s.queue_share, MOST)
    if (is_unknown_work and is_told_queue) or _is_late_on_the_way(s):
        return ()
    step = s.grown("decode step", lambda w: w.step_s)
    slowest = s.grown("decode step of the slowest fifth of the answers", lambda w: w.slow_step_s)
    work = None if s.work_growth is None else Finding("tokens per second of all requests", s.work_growth, "×")
    prefill = _told_prefill(s) if s.is_ttft_slow else None
    running = s.measured("requests running", lambda w: w.running)
    return _known(step if is_slow else slowest, prefill, work, running)


def _is_late_on_the_way(s: Symptoms) -> bool:
    """True if the probes' steps are slower, but not those that the engine tells of the same answers."""
    own = s.growth(lambda w: w.step_part_s)
    return own is not None and own < GROWN and is_at_least(s.step_growth, GROWN)


def _network(s: Symptoms) -> tuple[Finding, ...]:
    held = (s.now.held_ratio or 0.0) - (s.before.held_ratio or 0.0)
    still = (s.now.still_ratio or 0.0) - (s.before.still_ratio or 0.0)
    if s.is_about_decode and s.has_usual and held >= STILL and held > still:
        return _known(s.measured("time in which tokens are held on the way", lambda w: w.held_ratio, "ratio"))
    if s.is_about_decode and _is_late_on_the_way(s):
        return _known(
            s.grown("decode step of the probes", lambda w: w.step_s),
            s.grown("decode step by the engine", lambda w: w.step_part_s),
        )
    # Headers are informative only if they do not wait for the first token.
    is_early = s.before.headers_ratio is not None and s.before.headers_ratio < MOST
    parts = (
        ("connecting", s.share(lambda w: w.connect_s, s.added_s), MOST),
        ("time until its host has the request", s.share(lambda w: w.network_s, s.added_s), MOST),
        ("time to the headers", s.share(lambda w: w.headers_s, s.added_s) if is_early else None, MOST),
        ("time outside the engine", s.outside_share, OUTSIDE),
    )
    deciding = [s.shared(name, share, s.added_s) for name, share, least in parts if is_at_least(share, least)]
    if is_at_least(gateway := s.told_share(lambda w: w.gateway_part_s), MOST):
        deciding.insert(0, s.shared("time in the gateway", gateway, s.added_s, is_told=True))
    return _known(*deciding) if s.is_ttft_slow else ()


def _slow_prefill(s: Symptoms) -> tuple[Finding, ...]:
    def cost_s(window: WindowFeatures) -> float | None:
        slope, tokens = window.ttft_per_prompt_token_s, window.long_prompt_tokens
        return slope * tokens if slope is not None and tokens is not None else None

    waiting = _waiting(s)
    if s.queue_share is not None and s.queue_share >= MOST:
        return ()
    own = s.told_share(lambda w: w.prefill_part_s)
    if own is not None:
        return _known(_told_prefill(s), waiting) if own >= MOST else ()
    cost = s.share(cost_s, s.long_added_s)
    if cost is None:
        if s.queue_share is None or s.outside_share is None:
            return ()
        inside = 1 - s.outside_share - s.queue_share
        if inside < MOST:
            return ()
        return _known(s.shared("time in the engine without waiting", inside, s.added_s), waiting)
    slopes_s = (s.now.ttft_per_prompt_token_s or 0.0) - (s.before.ttft_per_prompt_token_s or 0.0)
    error_s = math.hypot(s.now.ttft_per_prompt_token_error_s or 0.0, s.before.ttft_per_prompt_token_error_s or 0.0)
    # Otherwise the prompts may wait for other slow prompts: that wait does not depend on the length.
    is_seen_inside = s.queue_share is not None and (s.outside_share is not None or not s.has_usual)
    is_own = cost >= MOST and slopes_s > (CERTAIN if is_seen_inside else SHARP) * error_s
    return _known(s.shared("prefill of its own prompt", cost, s.long_added_s), waiting) if is_own else ()


def _stands_still_more(s: Symptoms) -> bool:
    """True if streams pause for a larger share of time than usual, with about the same load and no waiting requests."""
    still, usual = s.now.still_ratio, s.before.still_ratio
    if still is None or usual is None or still < max(usual + STILL, LONGER * usual):
        return False
    return not is_at_least(s.now.waiting, IDLE) and s.load_growth < LONGER


def _stalls(s: Symptoms) -> tuple[Finding, ...]:
    # Without a page, and if the first token is late too, the computation of prompts may cause the pauses.
    median = s.growth(lambda w: w.long_ttft_s)
    if s.now.waiting is None or median is None or median >= LONGER or not _stands_still_more(s):
        return ()
    return _known(
        s.measured("time in which streams stand still", lambda w: w.still_ratio, "ratio"),
        s.measured("longest pause", lambda w: w.longest_still_s, "s"),
    )


def _queueing(s: Symptoms) -> tuple[Finding, ...]:
    if not is_at_least(s.queue_share, MOST) or _stands_still_more(s):
        return ()
    return _known(
        _waiting(s),
        s.measured("requests waiting", lambda w: w.waiting),
        s.measured("requests per second", lambda w: w.requests_per_s),
    )


def why_decode_is_slow(s: Symptoms) -> tuple[str, tuple[str, ...]]:
    """(why decode steps are slow, measurements that could show more), from GPU readings, metrics page and bandwidth bound."""
    now, before = s.now, s.before
    clock, running = s.growth(lambda w: w.gpu_clock_hertz), s.growth(lambda w: w.running)
    tokens = s.growth(lambda w: w.generated_tokens_per_s)
    if clock is not None and clock <= SLOW_CLOCK:
        is_throttled = (now.gpu_throttled_ratio or 0.0) - (before.gpu_throttled_ratio or 0.0) >= 0.3
        return f"the GPU clock is at {clock:.0%} of the usual one{', throttled' if is_throttled else ''}", ()
    if now.gpu_processes and before.gpu_processes and now.gpu_processes - before.gpu_processes >= 0.5:
        counts = f"{now.gpu_processes:.3g} compute on it, usually {before.gpu_processes:.3g}"
        return f"a foreign process on the GPU: {counts}", ()
    foreign = (now.gpu_memory_ratio or 0.0) - (before.gpu_memory_ratio or 1.0)
    if foreign >= FOREIGN and not now.gpu_processes:
        return f"perhaps another process on the GPU: {foreign:.0%} more of its memory is in use", ()
    # Slower steps alone raise the number of running requests by the same factor; a larger batch slows the steps by less.
    if is_at_least(running, LONGER) and is_at_least(tokens, max(LONGER, s.step_growth or 1.0)):
        return f"the batch is larger: {now.running:.3g} requests run, usually {before.running:.3g}", ()
    if is_at_least(now.over_bound, NEAR_BOUND):
        return f"memory bandwidth: steps run at {now.over_bound:.0%} of what it allows", ()
    compared = (now.running, before.running), (now.gpu_clock_hertz, before.gpu_clock_hertz)
    missing = unmet(
        ("the engine's metrics page", now.running is not None),
        ("GPU readings", now.gpu_clock_hertz is not None),
        # The bound depends on the context: if that is unknown, there is no bound.
        ("KV cache usage and capacity on its page", now.kv_cache_tokens is not None or now.running is None),
        ("`decode_bound`", now.over_bound is not None or now.kv_cache_tokens is None),
        (CALM_TIME, all(usual is not None or value is None for value, usual in compared)),
    )
    if missing:
        return "unknown with these measurements", missing
    return "neither clocks nor memory bandwidth: the host of the engine, its kernels or another process", ()


def unmet(*needs: tuple[str, bool]) -> tuple[str, ...]:
    """Names of measurements that were not made. needs: (name, True if made)"""
    return tuple(name for name, is_met in needs if not is_met)


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A mechanism of slowness or failure, and how to recognise it.

    needs: returns whether it can cause what is bad
    shows: returns the findings that show it; empty if the symptoms do not
    explains: mechanisms that can be its consequence, and are not named with it
    """

    name: Name
    means: str
    needs: Callable[[Symptoms], bool]
    shows: Callable[[Symptoms], tuple[Finding, ...]]
    explains: frozenset[Name]
    next_measurement: str
    advice: tuple[Advice, ...]


def _anything(_: Symptoms) -> bool:
    return True


def _has_failures(s: Symptoms) -> bool:
    return "success" in s.breached


def _is_ttft_slow(s: Symptoms) -> bool:
    return s.is_ttft_slow


# In order of evaluation. Requests that are refused or fail look up no prefixes.
MECHANISMS: tuple[Mechanism, ...] = (
    Mechanism(
        "refusing",
        "the server refuses requests (429, too many requests)",
        _has_failures,
        lambda s: failures(s, lambda text: text.startswith(REFUSALS)),
        frozenset({"prefix_miss"}),
        "the limit of the gateway or the engine that refuses, and the rate of all clients",
        (advice.LOAD_LIMIT, advice.REPLICAS),
    ),
    Mechanism(
        "loading",
        "the engine loads its model",
        _has_failures,
        lambda s: failures(s, _is_loading),
        frozenset({"prefix_miss"}),
        "the log of the engine since its last start",
        (advice.WAIT,),
    ),
    Mechanism(
        "draining",
        "the engine shuts down and takes no more requests",
        _has_failures,
        lambda _: (),  # the target's health says so
        frozenset(),
        "whether somebody or something asked it to shut down",
        (advice.NEXT_SERVER,),
    ),
    Mechanism(
        "sleeping",
        "the engine sleeps: it has released its GPU memory on request, and answers nobody until it is woken",
        _has_failures,
        lambda _: (),  # the target's state, by its page, says so
        frozenset(),
        "who put it to sleep, and when it is to wake",
        (advice.WAKE,),
    ),
    Mechanism(
        "failing",
        "requests fail",
        _has_failures,
        lambda s: failures(s, _is_other_failure),
        frozenset({"prefix_miss"}),
        "the log of the server or gateway that answers so, at that time",
        (advice.REQUEST_IDS,),
    ),
    Mechanism(
        "cache_pressure",
        "the KV cache is full: requests are preempted and recomputed, or wait for space",
        _anything,
        _cache_pressure,
        frozenset({"queueing", "slow_prefill", "slow_decode", "stalls", "prefix_miss", "long_prompts"}),
        "KV cache usage and preemptions against request lengths, over a day",
        (
            advice.CACHE_MEMORY,
            advice.CACHE_TYPE,
            advice.FEWER_SEQUENCES,
            advice.SHORT_CONTEXT,
            advice.QUANTISE,
            advice.MORE_GPUS,
        ),
    ),
    Mechanism(
        "prefix_miss",
        "prompts that used to be in the prefix cache are computed again",
        lambda s: s.is_about_ttft,
        _prefix_miss,
        frozenset({"queueing", "slow_prefill", "slow_decode", "stalls", "long_prompts", "kv_transfer"}),
        "warm and cold probes of equal length; what changed at the beginning of the prompts",
        (advice.PREFIX_CACHE, advice.STABLE_PREFIX, advice.ROUTING, advice.CACHE_MEMORY),
    ),
    Mechanism(
        "long_prompts",
        "the engine computes longer prompts of other requests first",
        _is_ttft_slow,
        _long_prompts,
        frozenset({"queueing", "slow_prefill", "slow_decode", "stalls", "kv_transfer"}),
        "the lengths of all prompts, and TTFT by prompt length at this load",
        (advice.CHUNKED_PREFILL, advice.POOLS, advice.SHORT_CONTEXT),
    ),
    Mechanism(
        "kv_transfer",
        "the KV cache takes longer from the engine that prefills to the one that decodes",
        _is_ttft_slow,
        _kv_transfer,
        frozenset({"queueing", "slow_prefill", "stalls", "network"}),
        "bytes per transfer on the engines' pages, and load and errors of the links between the two machines",
        (advice.TRANSPORT, advice.TOGETHER, advice.CACHE_TYPE),
    ),
    Mechanism(
        "slow_decode",
        "the engine's steps take longer than usual",
        _anything,
        _slow_decode,
        frozenset({"queueing", "slow_prefill", "stalls"}),
        "GPU clocks, throttling and processes now, host CPU of the engine, then a profile of one decode step",
        (
            advice.COOLING,
            advice.ENGINE_CPU,
            advice.OLD_VERSION,
            advice.FEWER_SEQUENCES,
            advice.QUANTISE,
            advice.SPECULATE,
        ),
    ),
    Mechanism(
        "network",
        "the path to the engine is slow (network, gateway, proxy), not the engine",
        _anything,
        _network,
        frozenset({"slow_prefill", "stalls"}),
        "probe the engine directly, beside the same probe through the gateway",
        (advice.GATEWAY, advice.NEARER),
    ),
    Mechanism(
        "slow_prefill",
        "the first token waits for the computation of its prompt, not in the queue",
        _is_ttft_slow,
        _slow_prefill,
        frozenset({"queueing", "stalls"}),
        "TTFT by prompt length on the idle engine (`prober diagnose`)",
        (advice.SHORT_PROMPTS, advice.LARGER_STEPS, advice.MORE_GPUS, advice.DISAGGREGATE),
    ),
    Mechanism(
        "stalls",
        "all streams stand still now and then",
        _anything,
        _stalls,
        frozenset({"queueing"}),
        "the log of the engine and its host at the time of a pause: garbage collection, swapping, a blocked process",
        (advice.ENGINE_CPU,),
    ),
    Mechanism(
        "queueing",
        "requests wait for others: too much load, bursts, or too few slots",
        _is_ttft_slow,
        _queueing,
        frozenset(),
        "a sweep: the highest rate at which the SLO holds; TTFT by prompt length at this load",
        (advice.REPLICAS, advice.MORE_SEQUENCES, advice.SHAPING, advice.POOLS),
    ),
)
MECHANISM_OF = {mechanism.name: mechanism for mechanism in MECHANISMS}

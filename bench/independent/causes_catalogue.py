"""Causes of slowness: what changes in a service, how to tell that it acts, and the names that are true of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from bench.independent.causes_engines import Half, Wishes, replace_rate, replace_structure
from bench.independent.causes_prober import FIRST_TOKEN_TIMEOUT_S
from bench.independent.causes_service import Record, capacity_per_s
from bench.independent.causes_situation import Failure, Gpu, Machine, Situation, Window
from bench.independent.engine import PAGES
from prober.measure.gpu_reading import ThrottleReason
from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult

UNANSWERED = frozenset({Outcome.TIMEOUT_FIRST_TOKEN, Outcome.TIMEOUT_TOTAL})
NAMES = frozenset(
    {
        *("refusing", "failing", "loading", "cache_pressure", "queueing", "long_prompts"),
        *("slow_prefill", "prefix_miss", "slow_decode", "stalls", "network", "kv_transfer", "unknown"),
    }
)


@dataclass(frozen=True, slots=True)
class Case:
    """Figures of a healthy service that a cause is scaled by.

    kv_tokens: in the caches of all replicas on average
    capacity_per_s: requests that they complete under a backlog
    """

    rng: Generator
    kv_tokens: float
    capacity_per_s: float


@dataclass(frozen=True, slots=True)
class Truth:
    """Names of `NAMES` for one scene.

    right: answer the question what happens
    true: are true as well, such as a consequence, and do not answer it: neither right nor wrong
    is_visible: whether an expert who has this prober's readings could give a right name; otherwise only `unknown` is honest
    causes: number of causes that act
    """

    right: frozenset[str]
    true: frozenset[str] = frozenset()
    is_visible: bool = True
    causes: int = 1

    def verdict(self, names: Sequence[str]) -> str:
        """`right`, `true`, `unknown` or `wrong`. Two names for two causes are right only if both are."""
        given = frozenset(names) - {"unknown"}
        if not given:
            return "unknown"
        if not given <= self.right | self.true:
            return "wrong"
        return "right" if given <= self.right or (self.causes == 1 and given & self.right) else "true"


def _visible(_: Machine, __: Window) -> bool:
    """Probes alone show it."""
    return True


def _hidden(_: Machine, __: Window) -> bool:
    """Nothing shows it."""
    return False


def _shown_by(*signals: str) -> Callable[[Machine, Window], bool]:
    """Only a page with these signals shows it."""
    return lambda machine, _: machine.page is not None and not PAGES[machine.page] & set(signals)


def _shown_by_headers(machine: Machine, healthy: Window) -> bool:
    """Headers that come before the first token, or the engine's own TTFT, tell a wait before the engine from one in it."""
    return machine.has_early_headers or _shown_by("ttft_seconds")(machine, healthy)


def _shown_by_saving(machine: Machine, healthy: Window) -> bool:
    """The page counts hits, or long warm probes were a sixth faster than cold ones."""
    long = [probe for probe in healthy.probes if probe.requested_prompt_tokens == max(machine.probe_tokens)]
    cold, warm = ([probe for probe in long if probe.workload.endswith("_warm") is is_warm] for is_warm in (False, True))
    saves = np.median(signal_values(warm, "ttft")) < 0.85 * np.median(signal_values(cold, "ttft"))
    return bool(saves) or _shown_by("prefix_cache_hits_tokens_total")(machine, healthy)


@dataclass(frozen=True, slots=True)
class Cause:
    """Trouble. `apply(situation, severity from 0 to 1, case)` is the service after the change.

    right, true: see `Truth`
    signals: SLOs that it breaches
    acts: whether a record shows that it slows the service in the way of its names, and in no other
    is_visible: to an expert who has the readings of a prober on this machine, by the healthy window
    wishes: for the healthy service
    quantile: of those signals in the SLO
    """

    right: frozenset[str]
    signals: tuple[str, ...]
    apply: Callable[[Situation, float, Case], Situation]
    acts: Callable[[Record, Situation], bool]
    wishes: Wishes = Wishes()
    quantile: float = 0.95
    true: frozenset[str] = frozenset()
    is_visible: Callable[[Machine, Window], bool] = _visible


def joint_truth(causes: Sequence[Cause], machine: Machine, healthy: Window) -> Truth:
    """Truth of a scene in which some causes act, for a prober on this machine."""
    right = frozenset[str]().union(*(cause.right for cause in causes))
    true = frozenset[str]().union(*(cause.true for cause in causes))
    return Truth(right, true - right, any(cause.is_visible(machine, healthy) for cause in causes), len(causes))


def _scaled(situation: Situation, factors: Sequence[float]) -> Situation:
    """The situation with the steps of the replicas slower by factors."""
    structures = tuple(
        replace(structure, speed=structure.speed * factor)
        for structure, factor in zip(situation.structures, factors, strict=True)
    )
    return replace(situation, structures=structures)


# The service after a change of a severity from 0 to 1


def _more_users(situation: Situation, severity: float, case: Case) -> Situation:
    """The rate rises to 70% of what the replicas complete, and up to 3% above it."""
    return replace_rate(situation, (0.7 + 0.33 * severity) * capacity_per_s(situation, case.rng))


def _bursts(situation: Situation, severity: float, case: Case) -> Situation:
    """The mean rate rises a little, and requests come in bursts that fill the batch."""
    size = situation.structures[0].max_batch
    users = replace(situation.users, burstiness=size * (0.5 + 2.0 * severity))
    rate_per_s = max(users.rate_per_s, (0.4 + 0.2 * severity) * case.capacity_per_s)
    return replace(situation, users=replace(users, rate_per_s=rate_per_s))


def _long_prompts(situation: Situation, severity: float, case: Case) -> Situation:
    """Prompts of 8 to 32 thousand tokens of others take 12 to 45% of the time."""
    structure, users = situation.structures[0], situation.users
    tokens = int(min(case.rng.uniform(8_000, 32_000), structure.kv_tokens / 6))
    cost_s = structure.speed * (structure.prompt_s * tokens + structure.attention_s * tokens**2 / 2)
    per_replica_per_s = users.rate_per_s / len(situation.structures) / structure.workers
    share = min(0.3, (0.12 + 0.33 * severity) / cost_s / per_replica_per_s)
    return replace(situation, users=replace(users, long_share=share, long_tokens=tokens))


def _small_kv_cache(situation: Situation, severity: float, case: Case) -> Situation:
    """A setting leaves memory for 2.5 down to 1 times what the same load has in the cache on average."""
    workers = sum(structure.workers for structure in situation.structures)
    tokens = (2.5 - 1.5 * severity) * case.kv_tokens / workers
    tokens = max(tokens, 3 * situation.machine.probe_tokens[1], 4_096)
    return replace_structure(situation, kv_tokens=int(min(tokens, situation.structures[0].kv_tokens)) // 64 * 64)


def _long_answers(situation: Situation, severity: float, case: Case) -> Situation:
    """Answers get 1.3 to 5 times longer; there is memory for a part of the batch only."""
    return replace(
        situation,
        users=replace(situation.users, output_tokens=situation.users.output_tokens * (1.3 + 3.7 * severity)),
    )


def _cache_off(situation: Situation, severity: float, case: Case) -> Situation:
    """A new prompt template, or a flag that was lost, hides 50 to 100% of the prefixes from the cache."""
    return replace(situation, users=replace(situation.users, uncached_share=0.5 + 0.5 * severity))


def _evictions(situation: Situation, severity: float, case: Case) -> Situation:
    """Thousands of documents take the place of a few, and all of them together no longer fit; memory for running requests does."""
    users, structure = situation.users, situation.structures[0]
    churn_per_s = users.rate_per_s / len(situation.structures) / structure.workers
    length = users.document_tokens + users.prompt_tokens + users.output_tokens
    in_use = case.kv_tokens / len(situation.structures) / structure.workers
    tokens = 3 * in_use + 12 * length + churn_per_s * length * (12 - 10 * severity)
    users = replace(users, documents=20_000)
    return replace_structure(
        replace(situation, users=users), kv_tokens=int(min(max(tokens, 12_000), structure.kv_tokens)) // 64 * 64
    )


def _throttled(situation: Situation, severity: float, case: Case) -> Situation:
    """The clock falls to between 75 and 30%, for heat, power or a setting."""
    ratio = 0.75 - 0.45 * severity
    reason = case.rng.choice(
        [ThrottleReason.THERMAL, ThrottleReason.THERMAL_HARDWARE, ThrottleReason.POWER_BRAKE, ThrottleReason.POWER_CAP]
    )
    gpu = Gpu(ratio, frozenset({ThrottleReason(str(reason))}), float(case.rng.uniform(0.7, 1.0)))
    slower = [(situation.gpus[0].clock_ratio / ratio) ** case.rng.uniform(0.8, 1.0)] * len(situation.structures)
    return replace(_scaled(situation, slower), gpus=(gpu,) * len(situation.gpus))


def _neighbour(situation: Situation, severity: float, case: Case) -> Situation:
    """Another process on the GPUs takes time slices: steps are 1.25 to 2.5 times as long, and vary."""
    situation = _scaled(situation, [1.25 + 1.25 * severity] * len(situation.structures))
    gpus = tuple(replace(gpu, foreign_bytes=int(0.06 * situation.machine.gpu_bytes)) for gpu in situation.gpus)
    tau_s = float(case.rng.uniform(5, 60))
    return replace(replace_structure(situation, neighbour=0.1 + 0.2 * severity, neighbour_tau_s=tau_s), gpus=gpus)


def _slow_replica(situation: Situation, severity: float, case: Case) -> Situation:
    """One of two replicas computes 1.5 to 3 times slower; its clock is low, or nothing shows why."""
    factor = 1.5 + 1.5 * severity
    situation = _scaled(situation, [factor, *[1.0] * (len(situation.structures) - 1)])
    if case.rng.random() < 0.5:
        return situation
    slow = Gpu(0.95 / factor, frozenset({ThrottleReason.THERMAL}), 0.9)
    return replace(situation, gpus=(slow, *situation.gpus[1:]))


def _stalls(situation: Situation, severity: float, case: Case) -> Situation:
    """The engine's host stands still for 0.3 to 1.5 s every 8 to 20 s."""
    every_s = float(case.rng.uniform(8, 20))
    return replace_structure(situation, stall_every_s=every_s, stall_s=0.3 + 1.2 * severity)


def _slow_host(situation: Situation, severity: float, case: Case) -> Situation:
    """The engine's scheduler loop takes 0.5 to 2.5 times as long as a step on the GPU."""
    return replace_structure(situation, host_s=situation.structures[0].base_s * (0.5 + 2 * severity))


def _fewer_accepted(situation: Situation, severity: float, case: Case) -> Situation:
    """Texts that the draft model does not know: acceptance falls by 50 to 95%."""
    return replace_structure(situation, acceptance=situation.structures[0].acceptance * (0.5 - 0.45 * severity))


def _larger_batch(situation: Situation, severity: float, case: Case) -> Situation:
    """More users with long answers, fewer than the batch can take: every step reads more."""
    return replace_rate(situation, (0.3 + 0.55 * severity) * case.capacity_per_s)


def _slow_prefill(situation: Situation, severity: float, case: Case) -> Situation:
    """Prompts are computed 1.5 to 5 times slower: another attention kernel or precision, with the same decode."""
    structure, factor = situation.structures[0], 1.5 + 3.5 * severity
    return replace_structure(
        situation, prompt_s=structure.prompt_s * factor, attention_s=structure.attention_s * factor
    )


def _tiny_chunks(situation: Situation, severity: float, case: Case) -> Situation:
    """A setting cuts prompts into chunks of 256 down to 64 tokens, so that a prompt takes many steps."""
    return replace_structure(situation, chunk_tokens=int(256 * 0.25**severity))


def _slow_path(situation: Situation, severity: float, case: Case) -> Situation:
    """Packets take 30 to 400 ms longer each way."""
    route = situation.route
    delay_s = 0.03 * (400 / 30) ** severity
    return replace(situation, route=replace(route, one_way_s=route.one_way_s + delay_s, jitter=0.3))


def _slow_gateway(situation: Situation, severity: float, case: Case) -> Situation:
    """A gateway holds 40 to 100% of the requests for 0.1 to 2 s before it forwards them."""
    route = replace(situation.route, gateway_s=0.1 * 20**severity, gateway_share=float(case.rng.uniform(0.4, 1.0)))
    return replace(situation, route=route)


def _lossy_path(situation: Situation, severity: float, case: Case) -> Situation:
    """Chunks wait for retransmissions: 1 to 10% of them, and all behind them."""
    return replace(situation, route=replace(situation.route, loss=0.01 * 10**severity, jitter=0.5))


def _slow_link(situation: Situation, severity: float, case: Case) -> Situation:
    """The link between the pools falls back to a slow transport: it is busy for 20 to 90% of the time."""
    structure, users = situation.structures[0], situation.users
    tokens = users.prompt_tokens + users.document_tokens
    usual_s = structure.transfer_s + structure.transfer_token_s * tokens
    factor = max(3.0, (0.2 + 0.7 * severity) * len(situation.structures) / users.rate_per_s / usual_s)
    return replace_structure(
        situation,
        transfer_s=structure.transfer_s * factor,
        transfer_token_s=structure.transfer_token_s * factor,
    )


def _front_backlog(situation: Situation, severity: float, case: Case) -> Situation:
    """A serial tokenizer before the scheduler is busy for 60 to 100% of the time."""
    per_replica_per_s = situation.users.rate_per_s / len(situation.structures)
    return replace_structure(situation, front_s=(0.6 + 0.4 * severity) / per_replica_per_s)


# Whether a cause acts by its mechanism, read from the simulated state


def _mean(window: Window, signal: str) -> float:
    return float(np.mean([getattr(signals, signal) for _, signals in window.readings]))


def _increase(window: Window, signal: str) -> float:
    """Increase of a counter in a window."""
    first, last = (getattr(window.readings[index][1], signal) for index in (0, -1))
    return float(last - first)


def _queue_s(window: Window) -> float:
    """Mean wait in the engine's queue."""
    first, last = (window.readings[index][1].queue_seconds for index in (0, -1))
    assert first is not None
    assert last is not None
    return ((last.sum or 0.0) - (first.sum or 0.0)) / max(1.0, last.counts[-1] - first.counts[-1])


def _transfer_s(window: Window) -> float:
    """Mean time on the link between the pools."""
    first, last = (window.readings[index][1].kv_transfer_seconds for index in (0, -1))
    assert first is not None
    assert last is not None
    return ((last.sum or 0.0) - (first.sum or 0.0)) / max(1.0, last.counts[-1] - first.counts[-1])


def _hit_ratio(window: Window) -> float:
    hits = _increase(window, "prefix_cache_hits_tokens_total")
    return hits / max(1.0, _increase(window, "prefix_cache_queries_tokens_total"))


def _slots(situation: Situation) -> int:
    return sum(structure.max_batch * structure.workers for structure in situation.structures)


def _waits(record: Record, _: Situation) -> bool:
    """Requests wait much longer than before, and not for memory."""
    longer = _queue_s(record.trouble) > 1.5 * _queue_s(record.healthy) + 0.005
    return longer and not _increase(record.trouble, "preemptions_total")


def _lacks_memory(record: Record, after: Situation) -> bool:
    """Sequences are preempted, or requests wait although slots are free."""
    preemptions = _increase(record.trouble, "preemptions_total")
    has_slots = _mean(record.trouble, "requests_running") < 0.8 * _slots(after)
    is_full = preemptions > 20 or _mean(record.trouble, "requests_waiting") > 0.5
    return is_full and has_slots and _queue_s(record.trouble) > 1.5 * _queue_s(record.healthy)


def _misses(record: Record, _: Situation) -> bool:
    """Fewer tokens come from the cache, and there is memory for all."""
    fewer = _hit_ratio(record.healthy) - _hit_ratio(record.trouble) > 0.15
    return (
        fewer and not _increase(record.trouble, "preemptions_total") and _mean(record.trouble, "requests_waiting") < 0.7
    )


def _reads_more(record: Record, after: Situation) -> bool:
    """A step reads at least 20% more memory, which explains most of the slower tokens, and nobody waits."""
    structure = after.structures[0]
    before_s, now_s = (
        structure.base_s + structure.context_s * _mean(window, "kv_cache_usage_ratio_mean") * structure.kv_tokens
        for window in record
    )
    is_idle = _mean(record.trouble, "requests_waiting") < 0.5 and not _increase(record.trouble, "preemptions_total")
    before_tpot_s, tpot_s = (float(np.median(signal_values(window.probes, "tpot"))) for window in record)
    explained = 1.2 * before_s < now_s and tpot_s - before_tpot_s < 1.6 * (now_s - before_s)
    return explained and is_idle


def _keeps_up(record: Record, _: Situation) -> bool:
    """No queue forms."""
    return _mean(record.trouble, "requests_waiting") < 1 and not _increase(record.trouble, "preemptions_total")


def _computes_alone(record: Record, _: Situation) -> bool:
    """At most a quarter of the added TTFT is a wait for others."""
    added_s = np.mean(signal_values(record.trouble.probes, "ttft")) - np.mean(
        signal_values(record.healthy.probes, "ttft")
    )
    return bool(_queue_s(record.trouble) - _queue_s(record.healthy) < 0.25 * added_s)


def _transfers_slowly(record: Record, _: Situation) -> bool:
    """Nobody waits longer for the engines, so that the longer way is all that is added to the TTFT."""
    no_longer = _queue_s(record.trouble) < 1.3 * _queue_s(record.healthy) + 0.005
    return no_longer and _transfer_s(record.trouble) > 2 * _transfer_s(record.healthy)


def _always(_: Record, __: Situation) -> bool:
    """The change is outside the engine, and a breach alone shows it."""
    return True


def _names(*regimes: str) -> frozenset[str]:
    return frozenset(regimes)


# A client measures that decode steps, its own prompts or connections take longer, that all streams pause, and that chunks which waited
# arrive at once. Why a first token waits inside the engine only the page shows: without one `unknown` is honest.
CAUSES: dict[str, Cause] = {
    # More requests run at once, so that steps are longer as well.
    "more_users": Cause(
        _names("queueing"),
        ("ttft",),
        _more_users,
        _waits,
        Wishes(max_batch=(12, 48)),
        true=_names("slow_decode"),
        is_visible=_shown_by("requests_waiting"),
    ),
    "bursts": Cause(
        _names("queueing"),
        ("ttft",),
        _bursts,
        _waits,
        Wishes(max_batch=(12, 40)),
        true=_names("slow_decode"),
        is_visible=_shown_by("requests_waiting"),
    ),
    # Requests wait for those prompts, and streams pause while they are computed.
    "long_prompts": Cause(
        _names("long_prompts"),
        ("ttft",),
        _long_prompts,
        _waits,
        Wishes(kv_room=(4.0, 8.0), utilization=(0.15, 0.4)),
        true=_names("queueing", "stalls"),
        is_visible=_shown_by("prompt_tokens_total"),
    ),
    # Requests queue, for space.
    "small_kv_cache": Cause(
        _names("cache_pressure"),
        ("ttft", "itl"),
        _small_kv_cache,
        _lacks_memory,
        Wishes(max_batch=(96, 200)),
        true=_names("queueing"),
        is_visible=_shown_by("kv_cache_usage_ratio_max"),
    ),
    # The batch grows until the cache is full: steps read more.
    "long_answers": Cause(
        _names("cache_pressure"),
        ("ttft", "itl"),
        _long_answers,
        _lacks_memory,
        Wishes(max_batch=(128, 256), kv_room=(0.15, 0.35)),
        true=_names("queueing", "slow_decode"),
        is_visible=_shown_by("kv_cache_usage_ratio_max"),
    ),
    # More of each prompt is computed, others wait for it, and streams pause meanwhile. Warm probes lose what they saved.
    "cache_off": Cause(
        _names("prefix_miss"),
        ("ttft",),
        _cache_off,
        _misses,
        Wishes(has_prefix_cache=True, utilization=(0.08, 0.2)),
        true=_names("queueing", "slow_prefill", "stalls"),
        is_visible=_shown_by_saving,
    ),
    # The prefix of the probes may stay in the cache, since they use it often.
    "evictions": Cause(
        _names("prefix_miss"),
        ("ttft",),
        _evictions,
        _misses,
        Wishes(has_prefix_cache=True, utilization=(0.08, 0.2)),
        true=_names("queueing", "slow_prefill", "stalls"),
        is_visible=_shown_by("prefix_cache_hits_tokens_total"),
    ),
    # A slower GPU computes prompts slowly, too.
    "throttled": Cause(
        _names("slow_decode"),
        ("tpot", "itl"),
        _throttled,
        _keeps_up,
        Wishes(utilization=(0.1, 0.3)),
        true=_names("slow_prefill"),
    ),
    "neighbour": Cause(
        _names("slow_decode"),
        ("tpot", "itl"),
        _neighbour,
        _keeps_up,
        Wishes(utilization=(0.1, 0.3)),
        true=_names("slow_prefill"),
    ),
    "slow_replica": Cause(
        _names("slow_decode"),
        ("tpot", "itl"),
        _slow_replica,
        _keeps_up,
        Wishes(replicas=2, utilization=(0.1, 0.3)),
        true=_names("slow_prefill"),
    ),
    "stalls": Cause(
        _names("stalls"), ("ttft", "itl"), _stalls, _keeps_up, Wishes(utilization=(0.1, 0.35)), quantile=0.99
    ),
    "slow_host": Cause(_names("slow_decode"), ("tpot", "itl"), _slow_host, _keeps_up, Wishes(utilization=(0.1, 0.3))),
    # Steps take as long as before and give fewer tokens. No name speaks of drafts; that decoding is slow is the nearest one.
    "fewer_accepted": Cause(
        _names("slow_decode"),
        ("tpot",),
        _fewer_accepted,
        _keeps_up,
        Wishes(has_drafts=True, utilization=(0.1, 0.3)),
        is_visible=_hidden,
    ),
    "larger_batch": Cause(
        _names("slow_decode"),
        ("tpot", "itl"),
        _larger_batch,
        _reads_more,
        Wishes(reads_much_memory=True, max_batch=(200, 257), utilization=(0.03, 0.1), kv_room=(1.2, 1.6)),
    ),
    # Long probes lose in proportion to their length.
    "slow_prefill": Cause(
        _names("slow_prefill"), ("ttft",), _slow_prefill, _computes_alone, Wishes(utilization=(0.03, 0.1))
    ),
    "tiny_chunks": Cause(
        _names("slow_prefill"), ("ttft",), _tiny_chunks, _computes_alone, Wishes(utilization=(0.03, 0.12))
    ),
    # Connections take longer, too.
    "slow_path": Cause(_names("network"), ("ttft",), _slow_path, _always),
    "slow_gateway": Cause(_names("network"), ("ttft",), _slow_gateway, _always, is_visible=_shown_by_headers),
    # What waited behind a lost chunk arrives with it, so that answers take no longer; a pause of the engine makes them longer.
    "lossy_path": Cause(_names("network"), ("itl",), _lossy_path, _always, quantile=0.99),
    # The wait is before the engine's scheduler, and it is a queue: both answer the question.
    "front_backlog": Cause(
        _names("network", "queueing"),
        ("ttft",),
        _front_backlog,
        _always,
        Wishes(has_front=True),
        is_visible=_shown_by("ttft_seconds"),
    ),
    # Prefill and decode on different machines: the link, and what else can be slow there.
    "slow_link": Cause(
        _names("kv_transfer"),
        ("ttft",),
        _slow_link,
        _transfers_slowly,
        Wishes(has_pools=True),
        is_visible=_shown_by("kv_transfer_seconds"),
    ),
    "more_users_of_pools": Cause(
        _names("queueing"),
        ("ttft",),
        _more_users,
        _waits,
        Wishes(max_batch=(12, 48), has_pools=True),
        true=_names("slow_decode"),
        is_visible=_shown_by("requests_waiting"),
    ),
    # Their caches are long as well, and those of others wait for the link.
    "long_prompts_of_pools": Cause(
        _names("long_prompts"),
        ("ttft",),
        _long_prompts,
        _waits,
        Wishes(kv_room=(4.0, 8.0), utilization=(0.15, 0.4), has_pools=True),
        true=_names("queueing", "stalls", "kv_transfer"),
        is_visible=_shown_by("prompt_tokens_total"),
    ),
    "slow_path_to_pools": Cause(_names("network"), ("ttft",), _slow_path, _always, Wishes(has_pools=True)),
}


def _failing(failure: Failure) -> Callable[[Situation, float, Case], Situation]:
    """Requests fail: all of them, or a share between 30 and 90%."""

    def apply(situation: Situation, severity: float, case: Case) -> Situation:
        share = failure.share or float(case.rng.uniform(0.3, 0.9))
        situation = replace_rate(situation, situation.users.rate_per_s * max(1 - share, 1e-3))
        return replace(situation, failure=replace(failure, share=share))

    return apply


def _full_queue(situation: Situation, severity: float, case: Case) -> Situation:
    """More requests than can be served, and a queue so short that the engine refuses many."""
    rate_per_s = (1.2 + 0.8 * severity) * capacity_per_s(situation, case.rng)
    return replace_structure(replace_rate(situation, rate_per_s), max_waiting=situation.structures[0].max_batch // 2)


def _refuses(record: Record, _: Situation) -> bool:
    """The engine itself refuses many probes."""
    refused = sum(probe.outcome is Outcome.HTTP_429 for probe in record.trouble.probes)
    return refused > 0.1 * len(record.trouble.probes)


# Trouble in which requests fail. Failures of the whole service hide its page.
FAILURES: dict[str, Cause] = {
    "rate_limit": Cause(
        _names("refusing"), (), _failing(Failure(Outcome.HTTP_429, "HTTP 429: rate limit exceeded", 0.5)), _always
    ),
    # The engine refuses since it is too busy, and what it accepts waits.
    "full_queue": Cause(
        _names("refusing", "queueing"),
        (),
        _full_queue,
        _refuses,
        Wishes(max_batch=(12, 48)),
        true=_names("slow_decode"),
    ),
    "server_errors": Cause(
        _names("failing"), (), _failing(Failure(Outcome.HTTP_5XX, "HTTP 503: no healthy upstream", 0.0)), _always
    ),
    "resets": Cause(
        _names("failing"),
        (),
        _failing(Failure(Outcome.RESET, "the connection broke inside the answer (reset by peer)", 0.0)),
        _always,
    ),
    "crash": Cause(
        _names("failing"), (), _failing(Failure(Outcome.CONNECT_REFUSED, "connection refused", 1.0, True)), _always
    ),
    "loading": Cause(
        _names("loading"), (), _failing(Failure(Outcome.HTTP_5XX, "HTTP 503: Loading model", 1.0, True)), _always
    ),
}

# The cause that changes the load comes last, since it is scaled by the capacity that the other one leaves.
PAIRS: dict[Half, tuple[tuple[str, str], ...]] = {
    "tuning": (
        ("slow_path", "more_users"),
        ("throttled", "long_prompts"),
        ("cache_off", "more_users"),
        ("slow_gateway", "cache_off"),
        ("throttled", "slow_path"),
        ("small_kv_cache", "slow_host"),
        ("stalls", "slow_prefill"),
        ("slow_gateway", "bursts"),
    ),
    "held_out": (
        ("slow_host", "more_users"),
        ("slow_gateway", "small_kv_cache"),
        ("neighbour", "cache_off"),
        ("stalls", "long_prompts"),
        ("lossy_path", "larger_batch"),
        ("throttled", "front_backlog"),
        ("slow_replica", "bursts"),
        ("slow_path", "slow_prefill"),
    ),
}


def signal_values(probes: Sequence[ProbeResult], signal: str) -> list[float]:
    """Values of an SLO's signal. A probe without a first token in time has a TTFT of the timeout."""
    timelines = [probe.timeline for probe in probes if probe.outcome in ANSWERED]
    if signal == "itl":
        return [value for timeline in timelines for value in timeline.itls_s]
    values = [timeline.ttft_s if signal == "ttft" else timeline.tpot_s for timeline in timelines]
    late = [FIRST_TOKEN_TIMEOUT_S] * sum(probe.outcome in UNANSWERED for probe in probes) if signal == "ttft" else []
    return [*late, *(value for value in values if value is not None)]

"""Parameters of a simulated engine. Times in seconds, lengths in tokens; 0 turns a mechanism off where nothing else is stated."""

from dataclasses import dataclass

ROUND_ROBIN, LEAST_BUSY, RANDOM_WORKER, PREFIX_AFFINITY = range(4)
MIXED, SEPARATE = range(2)
FCFS, SHORTEST_PROMPT, PRIORITY, LAST_FIRST = range(4)
NO_PADDING, POWER_OF_TWO, LONGEST = range(3)
UNLIMITED = 1 << 30


@dataclass(frozen=True, slots=True)
class Structure:
    """An engine: workers, front, scheduler, memory and cost of a step. The fields of the C structure, in its order.

    workers, max_workers: at first and, with autoscaling, at most
    prefill_workers: the first so many only compute prompts and transfer them to the others (disaggregation)
    balance: of workers; lockstep: all workers step together, and a step takes as long as its slowest worker
    balance_stale_s: age of the load that LEAST_BUSY sees
    scale_period_s, scale_up, scale_down, scale_start_s: of the autoscaler; requests per worker above and below which it acts
    front_s, front_token_s, front_output_s: serial front: per request, per prompt token, per token sent
    transfer_s, transfer_token_s: serial link between the pools; first_after_transfer: the first token waits for it
    scheduler: MIXED plans decodes and prompt chunks in one step, SEPARATE plans steps of prompts only, which stall decodes
    order: of waiting requests; aging_tokens_per_s: how fast a waiting long prompt catches up with SHORTEST_PROMPT
    priority_share: share of requests in the upper class with PRIORITY
    max_batch: sequences per worker; max_waiting: more are rejected; step_tokens: per step; chunk_tokens: per prompt and step
    prefill_ratio, prefill_wait_steps: SEPARATE takes prompts once waiting ≥ ratio × decoding, or after so many decode steps
    kv_tokens, kv_block: memory per worker; kv_reserve: share of the output that admission reserves; kv_watermark: share left free
    prefix_block: tokens of a block of the prefix cache
    base_s … attention_s: cost of a step, of a decoding sequence, of a token in its context, of a prompt token, and of a prompt
    token times a token before it; roofline: maximum of memory time and compute time instead of their sum
    noise: sigma of the lognormal noise of steps; host_s: scheduling per step; overlap: scheduled during the step before, so that
    a request waits a step longer and an ended one is computed once more
    draft_tokens, draft_max_batch, draft_s, acceptance, acceptance_spread: speculative decoding
    stall_every_s, stall_s: pauses of a worker; neighbour, neighbour_tau_s: sigma and time constant of the log of its slowness
    speed: factor on the duration of steps, to change during a run
    page_front: the page counts the front's backlog as waiting, and queue time from the arrival; counters_at_end: of requests
    """

    workers: int = 1
    max_workers: int = 0
    prefill_workers: int = 0
    balance: int = ROUND_ROBIN
    lockstep: int = 0
    balance_stale_s: float = 0.0
    scale_period_s: float = 0.0
    scale_up: float = 0.0
    scale_down: float = 0.0
    scale_start_s: float = 0.0
    front_s: float = 0.0
    front_token_s: float = 0.0
    front_output_s: float = 0.0
    transfer_s: float = 0.0
    transfer_token_s: float = 0.0
    first_after_transfer: int = 0
    scheduler: int = MIXED
    order: int = FCFS
    aging_tokens_per_s: float = 0.0
    priority_share: float = 0.0
    max_batch: int = 256
    max_waiting: int = 0
    step_tokens: int = 2_048
    chunk_tokens: int = UNLIMITED
    prefill_ratio: float = 0.0
    prefill_wait_steps: int = 0
    kv_tokens: int = 400_000
    kv_block: int = 16
    kv_reserve: float = 0.0
    kv_watermark: float = 0.0
    prefix_block: int = 0
    base_s: float = 0.01
    sequence_s: float = 0.0001
    context_s: float = 0.0
    prompt_s: float = 0.0001
    attention_s: float = 0.0
    roofline: int = 0
    padding: int = NO_PADDING
    noise: float = 0.03
    host_s: float = 0.0
    overlap: int = 0
    draft_tokens: int = 0
    draft_max_batch: int = UNLIMITED
    draft_s: float = 0.0
    acceptance: float = 0.0
    acceptance_spread: float = 0.0
    stall_every_s: float = 0.0
    stall_s: float = 0.0
    neighbour: float = 0.0
    neighbour_tau_s: float = 60.0
    speed: float = 1.0
    page_front: int = 0
    counters_at_end: int = 0


@dataclass(frozen=True, slots=True)
class SecondStructure(Structure):
    """An engine of the second kinds. The last fields of the C structure, in its order; records of the first kinds do not have them.

    target_step_s: MIXED plans so many prompt tokens, 64 at least, that a step takes so long; request_s: of a step for each prompt in it
    clock_fall, clock_tau_s: a worker busy all the time is slower by this share, and how long it takes to become so
    gc_tokens, gc_s: a pause after so many tokens of a worker
    admit_high, admit_low: share of the memory in use above which no request is admitted until it is below the other
    front_connections: requests from front to end at a time; others wait where no page sees them
    acceptance_fall: share of the acceptance that a full batch loses
    slow_workers, slow_factor: the first so many take so many times as long
    adapters, adapter_slots, adapter_s: of requests, loaded per worker, and to load one at admission
    static_batch: requests are admitted only when none is running
    """

    target_step_s: float = 0.0
    request_s: float = 0.0
    clock_fall: float = 0.0
    clock_tau_s: float = 30.0
    gc_tokens: int = 0
    gc_s: float = 0.0
    admit_high: float = 0.0
    admit_low: float = 0.0
    front_connections: int = 0
    acceptance_fall: float = 0.0
    slow_workers: int = 0
    slow_factor: float = 1.0
    adapters: int = 0
    adapter_slots: int = 0
    adapter_s: float = 0.0
    static_batch: int = 0

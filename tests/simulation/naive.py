"""The oracle: the same engine written as plainly as can be, a step and a token at a time, lists searched, nothing summed up."""

from dataclasses import dataclass, field
from math import ceil

from prober.simulation.parameters import Parameters
from prober.simulation.request import Request


@dataclass(eq=False)
class Sequence:
    request: Request
    out: list[float] = field(default_factory=list)  # times of its tokens
    admitted: float | None = None
    computed: int = 0  # tokens in the KV cache
    to_compute: int = 0  # of its prompt, and of its own tokens after a preemption
    shared: set[int] = field(default_factory=set)
    cached: int = 0
    preemptions: int = 0


class Naive:
    def __init__(self, parameters: Parameters) -> None:
        self.p = parameters
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.idle: list[int] = []  # prefix blocks that no one holds, the longest unused first
        self.most_used = 0
        self.steps = 0

    def held(self) -> set[int]:
        return {block for sequence in self.running for block in sequence.shared}

    def used(self, decode: bool = False) -> int:
        """Blocks that requests hold; with `decode`, after each of those that decode was given a place for one token."""
        per = self.p.prefix_block_tokens // self.p.block_tokens
        private = 0
        for sequence in self.running:
            places = max(sequence.to_compute, sequence.computed + (decode and sequence.computed >= sequence.to_compute))
            private += ceil(places / self.p.block_tokens) - per * len(sequence.shared)
        return private + per * len(self.held())

    def trim(self) -> None:
        per = self.p.prefix_block_tokens // self.p.block_tokens
        while self.idle and self.used() + per * len(self.idle) > self.p.kv_blocks:
            self.idle.pop(0)

    def release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        held = self.held()
        for block in reversed([block for block in sequence.request.prefix if block in sequence.shared]):
            if block not in held:
                self.idle.append(block)
        sequence.shared = set()

    def cached_ids(self, request: Request) -> list[int]:
        blocks = []
        for block in request.prefix[: (request.prompt_tokens - 1) // self.p.prefix_block_tokens]:
            if block not in self.held() and block not in self.idle:
                break
            blocks.append(block)
        return blocks

    def admit(self, now: float) -> bool:
        sequence = self.waiting[0]
        if len(self.running) >= self.p.max_sequences or sequence.request.arrival_s > now:
            return False
        cached_ids = self.cached_ids(sequence.request)
        sequence.shared = set(cached_ids)
        sequence.to_compute = sequence.request.prompt_tokens + len(sequence.out)
        sequence.computed = len(cached_ids) * self.p.prefix_block_tokens
        self.running.append(sequence)
        if self.used() > self.p.kv_blocks:
            self.running.pop()
            sequence.shared = set()
            return False
        self.idle = [block for block in self.idle if block not in cached_ids]
        self.trim()
        self.waiting.pop(0)
        if sequence.admitted is None:
            sequence.admitted, sequence.cached = now, sequence.computed
        return True

    def preempt(self) -> bool:
        preempted = False
        while self.running and self.used(decode=True) > self.p.kv_blocks:
            last = self.running[-1]
            self.release(last)
            last.preemptions += 1
            last.computed = last.to_compute = 0
            self.waiting.insert(0, last)
            preempted = True
        return preempted

    def step(self, now: float) -> float:
        """Run a step that begins at `now`; returns its end, or `now` if there is nothing to do."""
        preempted = self.preempt()
        decoding = [s for s in self.running if s.computed >= s.to_compute]
        for sequence in decoding:
            sequence.to_compute = sequence.computed + 1  # a place in the cache, taken before prompts are let in
        self.trim()
        budget = self.p.max_batched_tokens - len(decoding)
        prefill = 0
        prompts = [s for s in self.running if s not in decoding]
        while budget:
            if not prompts:
                if preempted or not self.waiting or not self.admit(now):
                    break
                prompts = [self.running[-1]]
            piece = min(budget, prompts[0].to_compute - prompts[0].computed)
            prompts[0].computed += piece
            budget -= piece
            prefill += piece
            if prompts[0].computed < prompts[0].to_compute:
                break
            prompts = []
        if not decoding and not prefill:
            return now
        context = sum(s.request.prompt_tokens + len(s.out) for s in decoding)
        cost = self.p.step_s + self.p.sequence_s * len(decoding)
        end = now + cost + self.p.prefill_token_s * prefill + self.p.kv_token_s * context
        self.steps += 1
        self.most_used = max(self.most_used, self.used())
        for sequence in decoding:
            sequence.computed += 1
        for sequence in [s for s in self.running if s.computed >= s.to_compute]:
            sequence.out.append(end)
            if sequence not in decoding:
                known = {*self.held(), *self.idle}
                complete_blocks = sequence.request.prompt_tokens // self.p.prefix_block_tokens
                sequence.shared |= {block for block in sequence.request.prefix[:complete_blocks] if block not in known}
            elif len(sequence.out) == sequence.request.output_tokens:
                self.release(sequence)
        for sequence in [s for s in self.running if len(s.out) == s.request.output_tokens]:
            self.release(sequence)
        return end

    def run(self, requests: list[Request]) -> list[Sequence]:
        """All of them to their end."""
        coming = sorted(requests, key=lambda request: request.arrival_s)
        sequences = [Sequence(request) for request in coming]
        future = list(sequences)
        now = 0.0
        while future or self.waiting or self.running:
            while future and future[0].request.arrival_s <= now:
                self.waiting.append(future.pop(0))
            if not self.running and not self.waiting:
                now = future[0].request.arrival_s
                continue
            end = self.step(now)
            now = end
        return sequences

"""A continuous-batching engine in virtual time, modelled on the scheduler of vLLM V1.

A step generates one token of every decoding sequence and fills the rest of its token budget with prompts, in pieces if one does
not fit. The engine does not iterate over tokens: while the batch is unchanged, steps differ only by the growing context, so it
runs many at once, up to the next end of a request, time limit, fault or lack of blocks.

Requests are served first come, first served. Therefore `_running` is in the order of arrival (the last one is preempted and
becomes the first waiting one), and at most one prompt, the last one, is in pieces.
"""

from collections import deque
from collections.abc import Iterable
from math import ceil, inf, log
from random import Random
from typing import NamedTuple

from prober.simulation.blocks import Blocks
from prober.simulation.decoding import Decoding
from prober.simulation.faults import Effect, Fault, Timetable
from prober.simulation.parameters import Parameters
from prober.simulation.request import End, Request, Truth


class State(NamedTuple):
    """Values that an engine's metrics page would show at the end of the latest begun step.

    Counters of prompts, answers and prefix cache are in tokens; a preempted request counts once.
    """

    running: int
    waiting: int
    kv_usage_ratio: float
    prefix_queries: int
    prefix_hits: int
    prompt_tokens: int
    generation_tokens: int
    preemptions: int = 0
    at_s: float = 0.0
    completed: int = 0
    steps: int = 0


class Engine:
    """A simulated engine that starts at time 0. Call `submit` in the order of arrival, and `advance`.

        engine = Engine(Parameters(), Random(1))
        truth = engine.submit(Request(arrival_s=0.5, prompt_tokens=1000, output_tokens=100))
        engine.advance(60.0)
        print(truth.ttft_s, truth.itls_s())

    A step is fixed when it begins: arrivals, cancellations and faults during a step take effect with the next one.

    rng: chooses the steps that a `Tail` slows down, and nothing else
    at_s: end of the latest begun step, or the time up to which an idle engine was advanced

    Raises ValueError for an invalid fault.
    """

    def __init__(self, parameters: Parameters, rng: Random, faults: Iterable[Fault] = ()) -> None:
        self.parameters = parameters
        self.at_s = 0.0
        self._rng = rng
        self._blocks = Blocks(parameters.kv_blocks, parameters.prefix_block_tokens // parameters.block_tokens)
        self._decoding = Decoding(parameters.block_tokens)
        self._waiting: deque[Truth] = deque()
        self._running: dict[Truth, None] = {}
        self._partial: Truth | None = None  # the request whose prompt is in pieces
        self._ended: list[Truth] = []
        self._preemptions = self._queries = self._hits = self._prompts = self._firsts = self._completed = (
            self._steps
        ) = 0
        self.set_faults(faults)

    def set_faults(self, faults: Iterable[Fault]) -> None:
        """Replace the faults from `at_s` on. Raises ValueError."""
        self._timetable = Timetable(faults, self.at_s)
        self._effect = Effect()
        self._until_tail = inf

    @property
    def busy(self) -> bool:
        """True if any request is running or waiting."""
        return bool(self._running or self._waiting)

    @property
    def running(self) -> int:
        """Number of requests in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that wait for the batch."""
        return len(self._waiting)

    @property
    def state(self) -> State:
        """State at the end of the latest begun step."""
        return State(
            at_s=self.at_s,
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage_ratio=self._blocks.usage_ratio,
            preemptions=self._preemptions,
            prefix_queries=self._queries,
            prefix_hits=self._hits,
            prompt_tokens=self._prompts,
            generation_tokens=self._firsts + self._decoding.tokens_out,
            completed=self._completed,
            steps=self._steps,
        )

    def tokens(self, truth: Truth) -> int:
        """Number of generated tokens of a request at the time `at_s`."""
        return truth.tokens if truth.finish < 0 else self._decoding.tokens(truth)

    def submit(self, request: Request) -> Truth:
        """Add a request and advance to its arrival. Raises ValueError if it could never be served."""
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"{request}: prompt and answer must have at least one token")
        needed = self.parameters.blocks(request.prompt_tokens + request.output_tokens)
        if needed > self._blocks.total:
            raise ValueError(f"{request}: it may need {needed} KV blocks of the engine's {self._blocks.total}")
        self._run(request.arrival_s)
        truth = Truth(request)
        if request.arrival_s < self._effect.down_until_s:
            self._end(truth, End.LOST, request.arrival_s)
        else:
            self._waiting.append(truth)
        return truth

    def cancel(self, truth: Truth) -> None:
        """Cancel a request, unless it has ended."""
        if truth.end is None:
            if truth in self._running:
                self._leave(truth)
            else:
                self._waiting.remove(truth)
            self._end(truth, End.CANCELLED, max(self.at_s, truth.request.arrival_s))

    def advance(self, to_s: float) -> list[Truth]:
        """Run all steps that begin before `to_s`; returns the requests that ended since the last call."""
        self._run(to_s)
        ended, self._ended = self._ended, []
        return ended

    def step(self, to_s: float) -> bool:
        """Run at most one step that begins before `to_s`, whose tokens are generated at `at_s`. Returns True if there was one."""
        while (steps := self._jump(to_s, 1)) == 0:
            pass
        return steps > 0

    def _run(self, to_s: float) -> None:
        while self._jump(to_s, inf) >= 0:
            pass
        if not self._running and self.at_s < to_s < inf:
            self.at_s = to_s

    def _jump(self, to_s: float, max_steps: float) -> int:
        """Run the next step and all equal ones after it. Returns their number, 0 if only the state changed, -1 if `to_s` is reached."""
        change_s = self._timetable.next_s
        start_s = self.at_s
        if not self._running:
            start_s = max(start_s, self._waiting[0].request.arrival_s if self._waiting else change_s)
        if start_s >= to_s:
            return -1
        if start_s >= change_s:
            self._change(max(self.at_s, change_s))
            return 0
        decoding, blocks = self._decoding, self._blocks
        growth = decoding.next_growth()
        preempted = blocks.used + growth > blocks.capacity
        if preempted:
            growth = self._preempt()
        if growth:
            blocks.take(growth)
        computed, spent = self._prefill(start_s, preempted)
        if not spent and not decoding.count:
            return self._wait_for_change(preempted, to_s)
        first_s, slope_s = self._step_s(spent)
        steps = 1
        if not (spent or preempted):
            steps = self._equal_steps(min(to_s, change_s) - start_s, first_s, slope_s, max_steps, growth)
        self.at_s = start_s + steps * first_s + slope_s * (steps * (steps - 1) / 2)
        self._steps += steps
        if not spent:
            self._until_tail = self._until_tail - steps if self._until_tail else self._draw_tail()
        if decoding.count:
            for truth in decoding.run(steps, first_s, slope_s):
                self._finish(truth)
        for truth in computed:
            self._first_token(truth)
        return steps

    def _wait_for_change(self, preempted: bool, to_s: float) -> int:
        """Advance to the next fault, as the first waiting request needs more blocks than are available. Returns like `_jump`."""
        if preempted:
            return 0
        if self._timetable.next_s >= to_s:
            return -1
        self.at_s = self._timetable.next_s
        return 0

    def _step_s(self, spent: int) -> tuple[float, float]:
        """Returns (duration of a step with `spent` prompt tokens, increase for each further step), in seconds."""
        parameters, decoding, factor = self.parameters, self._decoding, self._effect.factor
        if self._until_tail == 0 and not spent:
            factor *= self._effect.tail_factor
        first_s = (
            parameters.step_s
            + parameters.sequence_s * decoding.count
            + parameters.prefill_token_s * spent
            + parameters.kv_token_s * decoding.context
        ) * factor
        return first_s, 0.0 if spent else parameters.kv_token_s * decoding.count * factor

    def _equal_steps(self, span_s: float, first_s: float, slope_s: float, max_steps: float, growth: int) -> int:
        """Number of steps, including the next one, that differ only by the growing context. Allocates their blocks."""
        decoding, blocks = self._decoding, self._blocks
        steps = min(decoding.to_first_finish(), max_steps, self._until_tail or 1)
        # n steps take n·half + n²·slope/2. This form of the root allows a slope of 0.
        half_s = first_s - slope_s / 2
        if steps * (half_s + slope_s / 2 * steps) > span_s:
            steps = min(steps, ceil(2 * span_s / (half_s + (half_s * half_s + 2 * slope_s * span_s) ** 0.5)))
        steps = max(1, int(steps))
        if steps > 1:
            more = decoding.growth(steps) - growth
            if blocks.used + more > blocks.capacity:
                steps = decoding.rounds_in(blocks.capacity - blocks.used + growth)
                more = decoding.growth(steps) - growth
            if more:
                blocks.take(more)
        return steps

    def _draw_tail(self) -> float:
        """Returns a random number of decode-only steps before the next slow one: geometric, infinite without a `Tail`."""
        share = self._effect.tail_share
        if not 0 < share < 1:
            return 0 if share else inf
        return int(log(1.0 - self._rng.random()) / log(1.0 - share))

    def _preempt(self) -> int:
        """Preempt requests, the last one first, until the next round has enough blocks. Returns the number of blocks it needs."""
        blocks = self._blocks
        while self._running and blocks.used + self._decoding.next_growth() > blocks.capacity:
            truth = next(reversed(self._running))
            self._leave(truth)
            truth.preemptions += 1
            self._preemptions += 1
            self._waiting.appendleft(truth)
        return self._decoding.next_growth()

    def _prefill(self, start_s: float, preempted: bool) -> tuple[list[Truth], int]:
        """Admit requests and compute prompts with the remaining budget. Returns (requests whose prompt is complete, tokens spent)."""
        if self._partial is None and (preempted or not self._waiting):
            return [], 0
        budget = self.parameters.max_batched_tokens - self._decoding.count
        left, truth = budget, self._partial
        computed: list[Truth] = []
        while left:
            if truth is None:
                if preempted or not self._waiting or not self._admit(self._waiting[0], start_s):
                    break
                truth = self._waiting.popleft()
            piece = min(left, truth.left)
            truth.left -= piece
            left -= piece
            if truth.left:
                break
            computed.append(truth)
            truth = None
        self._partial = truth
        return computed, budget - left

    def _admit(self, truth: Truth, start_s: float) -> bool:
        """Admit the first waiting request if it has arrived and its prompt fits."""
        request, parameters, blocks = truth.request, self.parameters, self._blocks
        if len(self._running) >= parameters.max_sequences or request.arrival_s > start_s:
            return False
        tokens = request.prompt_tokens + truth.tokens  # after a preemption its generated tokens are part of the prompt
        needed = parameters.blocks(tokens)
        private, cached = needed, 0
        if request.prefix:
            size = parameters.prefix_block_tokens
            # The last prompt token is always computed: its output is the next token of the answer.
            cached_ids = request.prefix[: blocks.cached_count(request.prefix, (request.prompt_tokens - 1) // size)]
            cached = len(cached_ids) * size
            private -= parameters.blocks(cached)
            if blocks.used + private + blocks.cost(cached_ids) > blocks.capacity:
                return False
            blocks.hold(cached_ids)
            truth.shared = list(cached_ids)
        elif blocks.used + private > blocks.capacity:
            return False
        blocks.take(private)
        truth.blocks = needed
        truth.left = tokens - cached
        self._running[truth] = None
        if truth.admitted_s is None:
            truth.admitted_s = start_s
            truth.cached_tokens = cached
            self._queries += request.prompt_tokens
            self._hits += cached
        return True

    def _first_token(self, truth: Truth) -> None:
        """Begin to decode a request whose prompt is computed. Its first token is generated at `at_s`."""
        request = truth.request
        if request.prefix:
            complete_blocks = request.prompt_tokens // self.parameters.prefix_block_tokens
            truth.shared += self._blocks.publish(request.prefix[:complete_blocks])
        truth.tokens += 1
        self._firsts += 1
        if truth.cut_s is not None:
            truth.runs.append((1, self.at_s - truth.cut_s, 0.0))
        elif truth.first_token_s is None:
            truth.first_token_s = self.at_s
            self._prompts += request.prompt_tokens
        if truth.tokens == request.output_tokens:
            self._finish(truth)
        else:
            self._decoding.join(truth)

    def _leave(self, truth: Truth) -> None:
        """Remove a request that has not ended from the batch. If it is not decoding, it is the one whose prompt is in pieces."""
        del self._running[truth]
        if truth.finish >= 0:
            self._decoding.leave(truth)
            truth.cut_s = self.at_s
        else:
            self._partial = None
        self._blocks.release(truth.blocks, truth.shared)
        truth.shared = []

    def _finish(self, truth: Truth) -> None:
        """Remove a request that has all its tokens from the batch."""
        del self._running[truth]
        self._blocks.release(truth.blocks, truth.shared)
        self._completed += 1
        self._end(truth, End.COMPLETE, self.at_s)

    def _end(self, truth: Truth, end: End, at_s: float) -> None:
        truth.end, truth.end_s = end, at_s
        self._ended.append(truth)

    def _change(self, at_s: float) -> None:
        """Apply the begin or end of a fault."""
        self.at_s = at_s
        tail_share = self._effect.tail_share
        self._effect, flushed, crashed = self._timetable.pass_next()
        if self._effect.tail_share != tail_share:
            self._until_tail = self._draw_tail()
        self._blocks.lose(self._effect.lost_blocks)
        if crashed:
            for truth in [*self._running, *self._waiting]:
                if truth in self._running:
                    self._leave(truth)
                self._end(truth, End.LOST, at_s)
            self._waiting.clear()
        if flushed or crashed:
            self._blocks.flush()

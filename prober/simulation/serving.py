"""A service of one or several engines under a known stream of requests: the model that a sweep's record is fitted with.

Continuous batching in virtual time, reduced to what latencies show: a step generates tokens of all decoding sequences and computes
prompts within a budget; while only the context grows, equal steps run at once. `Service` says what differs between engines:
how prompts and decodes share steps, how many engines there are and who chooses among them, what stands in front.

`serve` takes the compiled loop of serving.c where it was built with the package, else the one here, which gives the same numbers to
the last bit and is much slower.
"""

import ctypes
import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

Doubles: TypeAlias = "array[float]"

NO_LIMIT = math.inf
_UNSET = -1.0
_BLOCK_SLACK = 7.0  # tokens of its last KV block that a sequence holds and does not use, on average


class Service(NamedTuple):
    """Structure and costs of a service. The flags are 0 or 1.

    step_s, sequence_s, prefill_token_s, kv_token_s: cost of a step, per decoding sequence, prompt token and token of context
    attention_s: per prompt token and token before it
    budget: tokens of a step; slots: running sequences; kv_tokens: KV cache; each of one engine
    tokens_per_step: tokens of a sequence that a step generates (speculative decoding)
    mixed: prompts are computed in steps that also decode; else decodes wait while there are prompts
    split: prompts are computed in pieces of the budget; else whole
    padded: the batch is padded to a power of two
    overlapped: a step is planned while the one before runs, so a new request waits for one more
    overlaid: reading (step, context) and computing (prompts, sequences) take place at the same time; else one after the other
    shortest_first: the shortest prompt that waits is served first; else the first
    replicas: number of engines behind one address; least_busy: the one with the fewest requests is chosen, else one after the other
    front_base_s, front_token_s: of one request and prompt token in a front that takes one request at a time
    """

    step_s: float
    sequence_s: float
    prefill_token_s: float
    kv_token_s: float
    attention_s: float = 0.0
    budget: float = 2_048
    slots: float = 2_048
    kv_tokens: float = NO_LIMIT
    tokens_per_step: float = 1.0
    mixed: float = 1
    split: float = 1
    padded: float = 0
    overlapped: float = 0
    overlaid: float = 0
    shortest_first: float = 0
    replicas: float = 1
    least_busy: float = 0
    front_base_s: float = 0.0
    front_token_s: float = 0.0


class Stream(NamedTuple):
    """Requests by arrival, each of shape (n,). with_gaps: 1 for requests whose gaps are wanted, which costs time"""

    at_s: Doubles
    prompts: Doubles
    outputs: Doubles
    with_gaps: bytes


class Course(NamedTuple):
    """Course of the requests of a stream, each of shape (n,), and of the page at given times. −1: not until the end.

    served: number of requests that arrived before the queue grew beyond its limit
    first_s, end_s: times of first and last token
    gap_s, max_gap_s: median and largest gap between tokens, of requests with gaps
    slow: gaps above the limit
    running, waiting: requests of all engines at the times of the readings
    """

    served: int
    first_s: Doubles
    end_s: Doubles
    gap_s: Doubles
    max_gap_s: Doubles
    slow: Doubles
    running: Doubles
    waiting: Doubles


def serve(
    service: Service,
    stream: Stream,
    until_s: float,
    readings_s: Doubles,
    *,
    limit_s: float = NO_LIMIT,
    max_waiting: float = NO_LIMIT,
    compiled: bool = True,
) -> Course:
    """The course of a stream up to `until_s`, or until more than `max_waiting` requests wait at one engine.

    limit_s: gaps above it are counted
    compiled: use the compiled loop if there is one
    """
    count = len(stream.at_s)
    course = Course(count, *(array("d", bytes(8 * size)) for size in (*(count,) * 5, len(readings_s), len(readings_s))))
    run = _compiled if compiled and _LIBRARY is not None else _serve
    return course._replace(served=run(service, stream, until_s, limit_s, max_waiting, readings_s, course))


def is_compiled() -> bool:
    """Whether the compiled loop was built with the package."""
    return _LIBRARY is not None


def _load() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(__file__.removesuffix("serving.py") + "_serving.so")
    except OSError:
        return None
    library.serve.restype = ctypes.c_int64
    return library


_LIBRARY = _load()


def _compiled(
    service: Service,
    stream: Stream,
    until_s: float,
    limit_s: float,
    max_waiting: float,
    readings_s: Doubles,
    course: Course,
) -> int:
    assert _LIBRARY is not None

    def pointer(values: Doubles) -> ctypes.c_void_p:
        return ctypes.c_void_p(values.buffer_info()[0])

    served: int = _LIBRARY.serve(
        (ctypes.c_double * len(service))(*service),
        ctypes.c_int64(len(stream.at_s)),
        *map(pointer, stream[:3]),
        ctypes.c_char_p(stream.with_gaps),
        ctypes.c_double(until_s),
        ctypes.c_double(limit_s),
        ctypes.c_double(max_waiting),
        ctypes.c_int64(len(readings_s)),
        pointer(readings_s),
        *map(pointer, course[1:]),
    )
    return served


def _serve(
    service: Service,
    stream: Stream,
    until_s: float,
    limit_s: float,
    max_waiting: float,
    readings_s: Doubles,
    course: Course,
) -> int:
    """The loop of `serve` in serving.c."""
    count = len(stream.at_s)
    for values in course[1:5]:
        values[:] = array("d", [_UNSET]) * count
    shared = _Requests(stream, course)
    replicas = [_Replica(service, shared, limit_s) for _ in range(int(service.replicas))]
    front_s, page, following = 0.0, 0, 0
    for i in range(count + 1):
        due_s = until_s
        if i < count:
            front_s = max(front_s, stream.at_s[i]) + service.front_base_s + service.front_token_s * stream.prompts[i]
            due_s = front_s
        while page < len(readings_s) and readings_s[page] <= due_s:
            for replica in replicas:
                replica.advance(readings_s[page])
                course.running[page] += len(replica.batch)
                course.waiting[page] += len(replica.queue)
            page += 1
        if i == count or due_s > until_s:
            break
        chosen = replicas[following]
        if service.least_busy:
            for k in range(len(replicas)):
                replica = replicas[(following + k) % len(replicas)]
                replica.advance(due_s)
                if replica.load < chosen.load:
                    chosen = replica
        else:
            chosen.advance(due_s)
        following = (following + 1) % len(replicas)
        shared.due[i] = due_s
        chosen.queue.append(i)
        if len(chosen.queue) > max_waiting:
            count, until_s = i + 1, due_s
            break
    for replica in replicas:
        replica.advance(until_s)
    return count


class _Requests:
    """State of all requests, by index.

    due: when it came to its engine
    left: prompt tokens to compute; done: generated tokens when it last joined the decoding
    joined, finish: rounds of its engine; joined is _UNSET unless it decodes
    mark: first run of its engine's log after it joined; slow_at_join: its engine's slow rounds then
    """

    def __init__(self, stream: Stream, course: Course) -> None:
        count = len(stream.at_s)
        self.prompts, self.outputs, self.with_gaps, self.course = (
            stream.prompts,
            stream.outputs,
            stream.with_gaps,
            course,
        )
        self.due = [0.0] * count
        self.left, self.done, self.joined = [0.0] * count, [0.0] * count, [_UNSET] * count
        self.finish, self.slow_at_join, self.mark = [0.0] * count, [0.0] * count, [0] * count


class _Replica:
    """An engine.

    clock, begun_s: end and begin of its latest step; stalled_s: time since the last decoding while sequences waited for prompts
    rounds: steps that decoded, of which slow_rounds took longer than limit_s; next_finish: round of the next end
    batch: running requests in the order of their admission; decoding: of them, those whose prompt is computed
    used: KV tokens; offsets: context of the decoding sequences, less what the rounds added
    log: (rounds, first, slope) of steps that differ by the growing context only
    """

    def __init__(self, service: Service, requests: _Requests, limit_s: float) -> None:
        self.service, self.requests, self.limit_s = service, requests, limit_s
        self.queue: list[int] = []
        self.batch: list[int] = []
        self.log: list[tuple[float, float, float]] = []
        self.partial = -1
        self.clock = self.stalled_s = self.rounds = self.offsets = self.used = self.slow_rounds = 0.0
        self.next_finish, self.begun_s = math.inf, _UNSET
        self.decoding = 0

    @property
    def load(self) -> int:
        """Requests that run or wait."""
        return len(self.batch) + len(self.queue)

    def advance(self, to_s: float) -> None:
        """Run all steps that begin before `to_s`."""
        while self.clock < to_s:
            if not self.load or not self._step(to_s):
                self.clock = to_s

    def _step(self, to_s: float) -> bool:
        """Run one step, or several equal ones, that begin before `to_s`; returns whether there is any to run."""
        service = self.service
        growth = self.decoding * service.tokens_per_step
        preempted = False
        while self.decoding and self.used + growth > service.kv_tokens and len(self.batch) > 1:
            self._preempt()
            preempted = True
            growth = self.decoding * service.tokens_per_step
        if preempted:
            self._find_next_finish()
        ready, spent, attended, deferred = self._prefill(preempted=preempted)
        decodes = self.decoding and (service.mixed or not spent)
        if not spent and not decodes:
            return False
        memory_s, work_s = service.step_s, service.prefill_token_s * spent + service.attention_s * attended
        slope_s, n = 0.0, 1.0
        if decodes:
            work_s += service.sequence_s * self._width()
            context = self.decoding * self.rounds * service.tokens_per_step + self.offsets
            memory_s += service.kv_token_s * context
        first_s = max(memory_s, work_s) if service.overlaid else memory_s + work_s
        if decodes and not spent:
            if not service.overlaid or memory_s >= work_s:
                slope_s = service.kv_token_s * self.decoding * service.tokens_per_step
            n = self._equal_steps(to_s, first_s, slope_s, growth, deferred=deferred)
        self.begun_s = self.clock + (n - 1) * first_s + slope_s * (n - 1) * (n - 2) / 2
        self.clock += n * first_s + slope_s * n * (n - 1) / 2
        if decodes:
            self._decode(n, first_s, slope_s, growth)
        elif self.decoding:
            self.stalled_s += first_s
        for i in ready:
            self._first_token(i)
        return True

    def _width(self) -> int:
        """Sequences of a step, with padding."""
        width = 1 if self.service.padded else self.decoding
        while width < self.decoding:
            width *= 2
        return width

    def _prefill(self, *, preempted: bool) -> tuple[list[int], float, float, bool]:
        """Admit requests and compute prompts; returns those that are complete, the number of tokens, their
        attention, and whether one is deferred."""
        service, requests = self.service, self.requests
        ready: list[int] = []
        spent, attended, deferred = 0.0, 0.0, False
        if self.partial < 0 and (preempted or not self.queue):
            return ready, spent, attended, deferred
        left = service.budget - (self.decoding if service.mixed else 0.0)
        while left > 0:
            if self.partial < 0:
                if preempted or not self.queue or len(self.batch) >= service.slots:
                    break
                if service.shortest_first:
                    shortest = min(range(len(self.queue)), key=lambda k: requests.prompts[self.queue[k]])
                    self.queue.insert(0, self.queue.pop(shortest))
                i = self.queue[0]
                if service.overlapped and self.batch and requests.due[i] > self.begun_s:
                    deferred = True
                    break
                need = requests.prompts[i] + requests.done[i]
                if self.used + need + _BLOCK_SLACK > service.kv_tokens and self.batch:
                    break
                if not service.split and spent > 0 and need > left:
                    break
                self.queue.pop(0)
                self.used += need + _BLOCK_SLACK
                requests.left[i], requests.joined[i] = need, _UNSET
                self.batch.append(i)
                self.partial = i
            i = self.partial
            piece = left if service.split and requests.left[i] > left else requests.left[i]
            attended += piece * (requests.prompts[i] + requests.done[i] - requests.left[i] + piece / 2)
            requests.left[i] -= piece
            left -= piece
            spent += piece
            if requests.left[i] > 0:
                break
            ready.append(i)
            self.partial = -1
        return ready, spent, attended, deferred

    def _first_token(self, i: int) -> None:
        """The prompt of a request is computed, and its next token with it: it decodes from now on."""
        service, requests = self.service, self.requests
        if requests.course.first_s[i] < 0:
            requests.course.first_s[i] = self.clock
        requests.done[i] += 1
        self.used += 1
        if requests.done[i] >= requests.outputs[i]:
            self._complete(i)
            return
        requests.joined[i] = self.rounds
        tokens = requests.outputs[i] - requests.done[i]
        requests.finish[i] = self.rounds + math.ceil(tokens / service.tokens_per_step)
        self.offsets += requests.prompts[i] + requests.done[i] - self.rounds * service.tokens_per_step
        self.decoding += 1
        requests.mark[i] = len(self.log)
        requests.slow_at_join[i] = self.slow_rounds
        self.next_finish = min(self.next_finish, requests.finish[i])

    def _equal_steps(self, to_s: float, first_s: float, slope_s: float, growth: float, *, deferred: bool) -> float:
        """Number of steps that differ only by the growing context."""
        n = 1.0 if deferred else self.next_finish - self.rounds
        if growth > 0 and self.service.kv_tokens < math.inf:
            n = min(n, max(1.0, math.floor((self.service.kv_tokens - self.used) / growth)))
        # n steps take n·half + n²·slope/2. This form of the root allows a slope of 0.
        span_s, half_s = to_s - self.clock, first_s - slope_s / 2
        if n * (half_s + slope_s / 2 * n) > span_s:
            n = min(n, math.ceil(2 * span_s / (half_s + math.sqrt(half_s * half_s + 2 * slope_s * span_s))))
        return max(1.0, n)

    def _decode(self, n: float, first_s: float, slope_s: float, growth: float) -> None:
        self.rounds += n
        self.used += growth * n
        if self.stalled_s > 0:
            self._append_run(1.0, self.stalled_s + first_s, 0.0)
            if n > 1:
                self._append_run(n - 1, first_s + slope_s, slope_s)
            self.stalled_s = 0.0
        else:
            self._append_run(n, first_s, slope_s)
        if self.next_finish <= self.rounds:
            requests = self.requests
            for i in [i for i in self.batch if requests.joined[i] >= 0 and requests.finish[i] <= self.rounds]:
                self._leave_decoding(i)
                self._complete(i)
            self._find_next_finish()

    def _append_run(self, rounds: float, first_s: float, slope_s: float) -> None:
        if first_s + slope_s * (rounds - 1) / 2 > self.limit_s:
            self.slow_rounds += rounds
        self.log.append((rounds, first_s, slope_s))

    def _find_next_finish(self) -> None:
        joined, finish = self.requests.joined, self.requests.finish
        self.next_finish = min((finish[i] for i in self.batch if joined[i] >= 0), default=math.inf)

    def _held(self, i: int) -> float:
        """KV tokens of a request."""
        requests = self.requests
        decoded = (self.rounds - requests.joined[i]) * self.service.tokens_per_step if requests.joined[i] >= 0 else 0.0
        return requests.prompts[i] + requests.done[i] + decoded + _BLOCK_SLACK

    def _preempt(self) -> None:
        """The request that was admitted last goes back to the queue; what it generated is computed again with its prompt."""
        requests, i = self.requests, self.batch[-1]
        self.used -= self._held(i)
        if requests.joined[i] >= 0:
            self._leave_decoding(i)
            tokens = requests.done[i] + (self.rounds - requests.joined[i]) * self.service.tokens_per_step
            requests.done[i] = min(tokens, requests.outputs[i])
            requests.joined[i] = _UNSET
        else:
            self.partial = -1
        self.batch.pop()
        self.queue.insert(0, i)

    def _leave_decoding(self, i: int) -> None:
        requests = self.requests
        requests.course.slow[i] += self.slow_rounds - requests.slow_at_join[i]
        self.offsets -= requests.prompts[i] + requests.done[i] - requests.joined[i] * self.service.tokens_per_step
        self.decoding -= 1
        if requests.with_gaps[i] and len(self.log) > requests.mark[i]:
            gap_s, max_gap_s = _gaps_s(self.log[requests.mark[i] :])
            requests.course.gap_s[i] = gap_s
            requests.course.max_gap_s[i] = max(requests.course.max_gap_s[i], max_gap_s)

    def _complete(self, i: int) -> None:
        self.used -= self._held(i)
        self.requests.course.end_s[i] = self.clock
        self.batch.remove(i)


def _gaps_s(runs: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """(mean gap of the run that contains the median gap, largest gap)."""
    largest_s = max(first_s + max(0.0, slope_s * (n - 1)) for n, first_s, slope_s in runs)
    means = sorted((first_s + slope_s * (n - 1) / 2, n) for n, first_s, slope_s in runs)
    remaining = sum(n for _, n in means) / 2
    for mean_s, n in means:
        remaining -= n
        if remaining <= 0:
            return mean_s, largest_s
    return means[-1][0], largest_s

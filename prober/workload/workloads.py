"""Workloads: named distributions of requests, and the generator of concrete requests."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean
from typing import Any, Protocol

from prober.measure.quality import Check, Expectation
from prober.workload.arrivals import derive_seed
from prober.workload.prompt_length import UNCALIBRATED, PromptCalibration, PromptLength
from prober.workload.prompts import GoldenPrompt, Message, Prompt, filler_pool
from prober.workload.requested_format import requested_format
from prober.workload.shapes import Fixed, LengthDistribution, Lognormal, Uniform
from prober.workload.trace import BLOCK_TOKENS, Trace

SAMPLE_OUTPUT_TOKENS = 16
BLOCK_ID_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Prefix:
    """A shared prompt prefix.

    reuse: share of the requests that start with it, 0 to 1 (1 = always warm)
    """

    tokens: int
    reuse: float


@dataclass(frozen=True, slots=True)
class Sessions:
    """Conversations of several turns: the prompt of a turn is all earlier ones, their answers, and a new message.

    count: sessions at a time. Requests continue those that are ready in rotation, so the time between two turns of a session is about
        count ÷ rate
    turns: of each session; then a new one begins
    think_time: in ms, from the end of an answer until the next turn is due. Then the schedule begins sessions, at its rate ÷ turns,
        and `count` is 0. None: requests continue the sessions in rotation
    """

    count: int
    turns: int
    think_time: LengthDistribution | None = None


@dataclass(frozen=True, slots=True)
class Adapters:
    """Names under which a server serves LoRA adapters, or other models. Each has its turn, round and round.

    turn: requests in a row for one of them
    """

    names: tuple[str, ...]
    turn: int = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """A named distribution of requests.

    sessions: send turns of conversations; the lengths are those of one message and of one answer
    prompts: send texts from a file instead of filler text
    trace: replay lengths and prefixes of recorded traffic, `speed` times as fast
    golden: send these prompts unchanged and in turn, and check the answers; `output_tokens` limits them, their length is not forced
    adapters: the models of the requests; None: the model of the target
    is_length_forced: answers have exactly `output_tokens`, where the engine can be told so; never where a format or a check ends them
    expectation: the check that `sampling` asks for, of the answers to all prompts but golden ones
    unchecked: why the format that `sampling` asks for is not checked, "" if it is or there is none
    """

    name: str
    prompt_tokens: LengthDistribution
    output_tokens: LengthDistribution
    prefix: Prefix | None = None
    sampling: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0})
    prompts: tuple[Prompt, ...] | None = None
    trace: Trace | None = None
    speed: float = 1.0
    golden: tuple[GoldenPrompt, ...] = ()
    sessions: Sessions | None = None
    adapters: Adapters | None = None
    is_length_forced: bool = True
    expectation: Expectation | None = field(init=False)
    unchecked: str = field(init=False)

    def __post_init__(self) -> None:
        expectation, unchecked = requested_format(self.sampling)
        object.__setattr__(self, "expectation", expectation)
        object.__setattr__(self, "unchecked", unchecked)
        object.__setattr__(self, "is_length_forced", self.is_length_forced and not self.checks and not unchecked)

    @property
    def checks(self) -> frozenset[Check]:
        """Kinds of checks of the answers."""
        if self.golden:
            return frozenset(golden.expectation.kind for golden in self.golden)
        return frozenset((self.expectation.kind,)) if self.expectation is not None else frozenset()

    @property
    def series(self) -> tuple[str, ...]:
        """The values of the `workload` label, one for each kind of request.

        Cold and warm requests have different ones, and so has each turn of sessions, and the first request of an adapter's turn.
        """
        return tuple(name for name, _, _ in self.shares())

    def shares(self) -> tuple[tuple[str, "Workload", float], ...]:
        """(series, workload, share of the requests) of each series."""
        if self.sessions is not None:
            turns = self.sessions.turns
            return tuple((f"{self.name}_turn{turn}", self, 1 / turns) for turn in range(1, turns + 1))
        suffix, share = "warm", self.prefix.reuse if self.prefix is not None else 0.0
        if self.adapters is not None and len(self.adapters.names) > 1 and self.adapters.turn > 1:
            suffix, share = "first", 1 / self.adapters.turn
        if share in (0.0, 1.0):
            return ((self.name, self, 1.0),)
        return ((self.name, self, 1 - share), (f"{self.name}_{suffix}", self, share))

    @property
    def has_think_time(self) -> bool:
        """Whether turns follow their answers after a think time."""
        return self.sessions is not None and self.sessions.think_time is not None

    @property
    def max_output_tokens(self) -> int:
        """The maximum number of requested output tokens."""
        return max(self.trace.output_tokens) if self.trace else self.output_tokens.maximum

    @property
    def prompt_words(self) -> tuple[int, ...]:
        """Words of each prompt that is golden or from a file; empty for others."""
        golden = ((("user", golden.prompt),) for golden in self.golden)
        return tuple(sum(len(text.split()) for _, text in prompt) for prompt in (*golden, *(self.prompts or ())))

    def mean_tokens(self) -> tuple[float, float]:
        """Mean prompt and output tokens of a request; for golden prompts the limit of the output tokens."""
        if self.trace:
            return fmean(self.trace.prompt_tokens), fmean(self.trace.output_tokens)
        if words := self.prompt_words:
            return fmean(words), self.output_tokens.mean()
        message, answer = self.prompt_tokens.mean(), self.output_tokens.mean()
        if self.sessions is not None:
            turns = self.sessions.turns
            return message * (turns + 1) / 2 + answer * (turns - 1) / 2, answer
        return message, answer


@dataclass(frozen=True, slots=True)
class Mix:
    """A weighted mix of workloads. Parts keep their names: percentiles of different workloads are never pooled."""

    name: str
    parts: tuple[tuple[Workload, float], ...]
    has_think_time, sessions = False, None

    @property
    def series(self) -> tuple[str, ...]:
        """The values of the `workload` label."""
        return tuple(name for part, _ in self.parts for name in part.series)

    def shares(self) -> tuple[tuple[str, Workload, float], ...]:
        """(series, workload, share of the requests) of each series."""
        total_weight = sum(weight for _, weight in self.parts)
        return tuple(
            (name, workload, share * weight / total_weight)
            for part, weight in self.parts
            for name, workload, share in part.shares()
        )

    @property
    def checks(self) -> frozenset[Check]:
        """Kinds of checks of the answers."""
        return frozenset(kind for part, _ in self.parts for kind in part.checks)

    def mean_tokens(self) -> tuple[float, float]:
        """Mean prompt and output tokens of a request."""
        total_weight = sum(weight for _, weight in self.parts)
        means = [(weight / total_weight, part.mean_tokens()) for part, weight in self.parts]
        return sum(w * m[0] for w, m in means), sum(w * m[1] for w, m in means)


class Drawer(Protocol):
    """A source of requests."""

    def draw(self, nonce: str, calibration: PromptCalibration | None, /) -> "DrawnRequest":
        """Draws the next request; see `RequestGenerator.draw`."""


@dataclass(frozen=True, slots=True)
class DrawnRequest:
    """A concrete request.

    workload: value of the `workload` label
    prompt_tokens: length that is asked for; of prompts with texts of their own an estimate
    warm: the prompt starts with text that was sent before
    expectation: the check of the answer; None if it is not checked
    is_length_forced: the answer has exactly `output_tokens`, where the engine can be told so
    has_asked_length: the prompt was composed to have `prompt_tokens` tokens
    sample_words: words of a sample prompt, whose tokens calibrate the length of the others; None for others
    adapter: name of the model that is asked, in place of the target's; "" for the target's
    session: the conversation of which it is a turn; None for other requests
    keeps_answer: the next turn of its session contains the answer
    busy: no session is ready for it, so it cannot be sent unless a turn ends in time; None: it can be sent
    """

    workload: str
    prompt_tokens: int
    output_tokens: int
    messages: tuple[Message, ...]
    warm: bool
    sampling: Mapping[str, Any]
    expectation: Expectation | None = None
    is_length_forced: bool = True
    has_asked_length: bool = False
    sample_words: int | None = None
    adapter: str = ""
    session: "Session | None" = None
    keeps_answer: bool = False
    busy: "SessionPool | None" = None

    @property
    def requested_tokens(self) -> tuple[int, int]:
        """Prompt and output tokens, as requested."""
        return self.prompt_tokens, self.output_tokens

    def draw(self, nonce: str, calibration: PromptCalibration | None, /) -> "DrawnRequest":
        """The request itself, which is drawn already."""
        return self


@dataclass(slots=True, eq=False)
class Session:
    """A conversation: each turn is drawn after the end of the one before it, and contains its answer.

    rng: of its own, so that the order of answers changes no session
    turns_left: turns that are not drawn yet
    prompt_tokens: of `messages`, as asked for; those of answers as the server counts them, where it tells
    think_s: think time after the answer to the turn that was drawn last; None: the session is continued in rotation
    """

    pool: "SessionPool"
    rng: Random
    turns_left: int
    messages: tuple[Message, ...] = ()
    prompt_tokens: int = 0
    answer_tokens: int = 0
    think_s: float | None = None

    def draw(self, nonce: str, calibration: PromptCalibration | None = None, /) -> DrawnRequest:
        """Draws the next turn. It may hit the prefix cache, so it has no salt; the nonce keeps sessions apart."""
        part, rng, turn = self.pool.part, self.rng, len(self.messages) // 2
        length = calibration.length or UNCALIBRATED if calibration is not None else UNCALIBRATED
        message, self.answer_tokens = max(1, part.prompt_tokens.draw(rng)), max(1, part.output_tokens.draw(rng))
        words = length.words(message if turn else max(1.0, message - length.constant_tokens))
        text = filler_pool().words(max(1, round(words)), rng.randrange(1 << 13))
        if self.pool.think_time is not None:
            self.think_s = self.pool.think_time.draw(rng) / 1e3
        self.messages = (*self.messages, ("user", text if turn else f"[{nonce}] {text}"))
        self.prompt_tokens, self.turns_left = self.prompt_tokens + message, self.turns_left - 1
        drawn = DrawnRequest(
            *(part.series[turn], self.prompt_tokens, self.answer_tokens, self.messages, True, part.sampling),
            has_asked_length=True,
            adapter=part.adapters.names[0] if part.adapters is not None else "",
            session=self,
            keeps_answer=self.turns_left > 0,
        )
        return _checked(drawn, part)

    def end_turn(self, answer: str | None, tokens: int | None) -> None:
        """The turn has ended. answer: its text; None ends the session; tokens: of the answer, None if they are not known."""
        if answer is None:
            self.turns_left = 0
        else:
            self.messages = (*self.messages, ("assistant", answer))
            self.prompt_tokens += self.answer_tokens if tokens is None else tokens
        self.pool.turn_ended(self)


class SessionPool:
    """The sessions of a workload. Requests continue those that are ready, the one that waits longest first.

    With think time each request begins a session, and its later turns are drawn from the session itself.

    waiting: callbacks of requests for which no session is ready; the first one is called, once, when a turn ends
    """

    def __init__(self, part: Workload, sessions: Sessions, rng: Random) -> None:
        self.part, self.think_time, self._turns, self._rng = part, sessions.think_time, sessions.turns, rng
        self.waiting: dict[object, Callable[[], None]] = {}
        # Sessions, or numbers of turns of those that have not begun. The first ones are shorter, so that not all are at the same turn.
        self._ready: deque[Session | int] = deque(self._turns - at % self._turns for at in range(sessions.count))
        self.busy_text = f"all {sessions.count} sessions of {part.name} waited for an answer (sessions.count)"

    def draw(self, nonce: str, calibration: PromptCalibration | None = None, /) -> DrawnRequest:
        """Draws the next turn of a session that is ready. If none is, the request only tells so, as a first turn."""
        if self.think_time is None and not self._ready:
            prompt, output = map(round, self.part.mean_tokens())
            return DrawnRequest(self.part.series[0], prompt, output, (), True, self.part.sampling, busy=self)
        session = self._turns if self.think_time is not None else self._ready.popleft()
        if isinstance(session, int):
            session = Session(self, Random(self._rng.getrandbits(64)), session)
        return session.draw(nonce, calibration)

    def turn_ended(self, session: Session) -> None:
        """A turn of this session has ended; in its place, or that of its successor, the next request may be sent."""
        if self.think_time is None:
            self._ready.append(session if session.turns_left else self._turns)
        if self.waiting:
            self.waiting.pop(next(iter(self.waiting)))()


class RequestGenerator:
    """Draws requests of one workload or mix. Cold prompts start with a nonce, so that they are in no prefix cache."""

    def __init__(self, workload: Workload | Mix, rng: Random) -> None:
        self._parts = workload.parts if isinstance(workload, Mix) else ((workload, 1.0),)
        self._weights = [weight for _, weight in self._parts]
        self._rng = rng
        self._pool = filler_pool()
        # The prefix of one workload must not warm up that of another.
        self._prefix_at = {part.name: derive_seed("prefix", part.name) for part, _ in self._parts}
        self._next = dict.fromkeys((part.name for part, _ in self._parts), 0)
        # With a random generator of their own, so that the order of answers changes nothing else.
        self._pools = {
            part.name: SessionPool(part, part.sessions, Random(rng.getrandbits(64)))
            for part, _ in self._parts
            if part.sessions is not None
        }
        self._turns = dict.fromkeys(self._next, 0)

    def draw(self, nonce: str, calibration: PromptCalibration | None = None) -> DrawnRequest:
        """Draws the next request.

        nonce: a text that was never used before
        calibration: of the server's tokenizer; None: a word counts as a token
        """
        rng = self._rng
        part = self._parts[0][0] if len(self._parts) == 1 else rng.choices(self._parts, self._weights)[0][0]
        is_sized = not part.golden and not part.prompts
        sample_words = calibration.next_sample_words() if calibration is not None and is_sized else None
        if sample_words is not None:
            return _checked(self._sample(part, sample_words, nonce), part)
        if part.name in self._pools:
            return self._pools[part.name].draw(nonce, calibration)
        drawn = _checked(self._drawn(part, nonce, calibration), part)
        return drawn if part.adapters is None else self._adapted(drawn, part, part.adapters)

    def _adapted(self, drawn: DrawnRequest, part: Workload, adapters: Adapters) -> DrawnRequest:
        """The request for the adapter whose turn it is."""
        turn, at = divmod(self._turns[part.name], adapters.turn)
        self._turns[part.name] += 1
        is_first = at == 0 and len(part.series) > 1
        name = part.series[-1] if is_first else drawn.workload
        return replace(drawn, workload=name, adapter=adapters.names[turn % len(adapters.names)])

    def _drawn(self, part: Workload, nonce: str, calibration: PromptCalibration | None) -> DrawnRequest:
        rng = self._rng
        length = calibration.length or UNCALIBRATED if calibration is not None else UNCALIBRATED
        if part.trace is not None:
            return self._replayed(part, part.trace, nonce, length)
        output = max(1, part.output_tokens.draw(rng))
        if part.golden:
            return self._golden(part, output, length)
        if part.prompts:
            (role, content), *rest = part.prompts[rng.randrange(len(part.prompts))]
            tokens = length.tokens(len(content.split()) + sum(len(text.split()) for _, text in rest))
            messages = ((role, f"[{nonce}] {content}"), *rest)
            return DrawnRequest(part.name, tokens, output, messages, False, part.sampling)
        prompt = max(1, part.prompt_tokens.draw(rng))
        warm = part.prefix is not None and rng.random() < part.prefix.reuse
        words = prompt if length is UNCALIBRATED else length.prompt_words(prompt, rng)
        text = f"[{nonce}] "
        shared = 0
        if part.prefix is not None and warm:
            shared = min(round(length.words(part.prefix.tokens)), words)
            text = f"{self._pool.words(shared, self._prefix_at[part.name])} {text}"
        text += self._pool.words(max(1, words - shared), rng.randrange(1 << 13))
        name = part.series[-1] if warm else part.series[0]
        return DrawnRequest(name, prompt, output, (("user", text),), warm, part.sampling, has_asked_length=True)

    def _sample(self, part: Workload, words: int, nonce: str) -> DrawnRequest:
        output = min(SAMPLE_OUTPUT_TOKENS, part.max_output_tokens)
        messages = (("user", f"[{nonce}] {self._pool.words(words, 0)}"),)
        return DrawnRequest(part.series[0], max(1, words), output, messages, False, part.sampling, sample_words=words)

    def _golden(self, part: Workload, output: int, length: PromptLength) -> DrawnRequest:
        at = self._next[part.name]
        self._next[part.name] = (at + 1) % len(part.golden)
        golden = part.golden[at]
        tokens = length.tokens(len(golden.prompt.split()))
        messages = (("user", golden.prompt),)
        return DrawnRequest(part.name, tokens, output, messages, True, part.sampling, golden.expectation)

    def _replayed(self, part: Workload, trace: Trace, nonce: str, length: PromptLength) -> DrawnRequest:
        at = self._next[part.name] % len(trace.offsets_ns)
        self._next[part.name] = at + 1
        prompt, output = trace.prompt_tokens[at], trace.output_tokens[at]
        blocks = trace.blocks[at] if trace.blocks else ()
        # Equal blocks give equal text: it contains the id (about 4 tokens), the rest depends only on the id.
        texts = []
        tokens = prompt - length.constant_tokens
        for block in blocks:
            if tokens <= 0:
                break
            words = round(length.words(min(BLOCK_TOKENS, tokens) - BLOCK_ID_TOKENS))
            texts.append(f"[{block}] {self._pool.words(max(1, words), block * 97)}")
            tokens -= BLOCK_TOKENS
        if tokens > 0 or not texts:  # tokens outside the recorded blocks are not shared
            words = max(1, round(length.words(tokens)))
            texts.append(f"[{nonce}] {self._pool.words(words, self._rng.randrange(1 << 13))}")
        messages = (("user", " ".join(texts)),)
        return DrawnRequest(part.name, prompt, output, messages, bool(blocks), part.sampling, has_asked_length=True)


def _checked(drawn: DrawnRequest, part: Workload) -> DrawnRequest:
    """The request with the check of its answer, whose length is not forced then. Answers to sample prompts are not checked."""
    if part.is_length_forced:
        return drawn
    is_ordinary = not part.golden and drawn.sample_words is None
    expectation = part.expectation if is_ordinary else drawn.expectation
    return replace(drawn, expectation=expectation, is_length_forced=False)


def unchecked_formats(workload: Workload | Mix) -> tuple[str, ...]:
    """Phrases on formats that requests ask for and that are not checked."""
    return tuple(dict.fromkeys(part.unchecked for _, part, _ in workload.shares() if part.unchecked))


def sample_lengths(workload: Workload | Mix, rng: Random, count: int) -> tuple[tuple[int, int], ...]:
    """Draws (prompt, output) tokens of about `count` requests, without composing texts."""
    lengths: list[tuple[int, int]] = []
    for name, part, share in workload.shares():
        words = part.prompt_words
        for at in range(max(1, round(count * share))):
            if part.trace is not None:
                row = at % len(part.trace.offsets_ns)
                lengths.append((part.trace.prompt_tokens[row], part.trace.output_tokens[row]))
                continue
            output = max(1, part.output_tokens.draw(rng))
            if words:
                lengths.append((words[at % len(words)], output))
            else:
                turn = part.series.index(name) if part.sessions is not None else 0
                earlier = sum(part.prompt_tokens.draw(rng) + part.output_tokens.draw(rng) for _ in range(turn))
                lengths.append((max(1, part.prompt_tokens.draw(rng)) + earlier, output))
    return tuple(lengths)


def _lognormal(median: int, low: int, high: int) -> Lognormal:
    return Lognormal(median, 0.8, low, high)


def _phase(prompt: int, output: int, prefix: Prefix | None = None) -> Workload:
    name = f"phase_{prompt}_{output}" + ("_warm" if prefix else "")
    return Workload(name, Fixed(prompt), Fixed(output), prefix)


BUILT_IN: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        # Cheap enough to send all day: about 3 M tokens a day at 0.2/s.
        Workload("probe", Lognormal(128, 0.5, 32, 512), Uniform(16, 48)),
        Workload("chat", _lognormal(500, 50, 4_000), _lognormal(200, 10, 2_000)),
        Workload("code_generation", _lognormal(1_500, 200, 8_000), _lognormal(500, 50, 4_000)),
        Workload("long_context_qa", _lognormal(16_000, 2_000, 128_000), _lognormal(300, 20, 2_000)),
        Workload("summarization", _lognormal(4_000, 500, 32_000), _lognormal(150, 50, 500)),
        _phase(256, 128),
        _phase(2048, 128),
        _phase(256, 1024),
        _phase(2048, 1024),
        _phase(4096, 256, Prefix(2048, 1.0)),
    )
}

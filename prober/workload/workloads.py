"""Workloads: named distributions of requests, and the generator of concrete requests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
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

    count: sessions at a time. Requests continue them in rotation, so the time between two turns of a session is count ÷ rate
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
        if self.sessions is not None:
            return tuple(f"{self.name}_turn{turn}" for turn in range(1, self.sessions.turns + 1))
        if self._has_first_uses:
            return (self.name, f"{self.name}_first")
        if self.prefix is None or self.prefix.reuse in (0.0, 1.0):
            return (self.name,)
        return (self.name, f"{self.name}_warm")

    def shares(self) -> tuple[tuple[str, "Workload", float], ...]:
        """(series, workload, share of the requests) of each series."""
        if self.sessions is not None:
            return tuple((name, self, 1 / self.sessions.turns) for name in self.series)
        if self.adapters is not None and self._has_first_uses:
            first = 1 / self.adapters.turn
            return ((self.series[0], self, 1 - first), (self.series[1], self, first))
        if len(self.series) == 1:
            return ((self.name, self, 1.0),)
        assert self.prefix is not None
        return ((self.series[0], self, 1 - self.prefix.reuse), (self.series[1], self, self.prefix.reuse))

    @property
    def has_think_time(self) -> bool:
        """Whether turns follow their answers after a think time."""
        return self.sessions is not None and self.sessions.think_time is not None

    @property
    def _has_first_uses(self) -> bool:
        """Some of its requests are the first of an adapter's turn, and some are not."""
        return self.adapters is not None and len(self.adapters.names) > 1 and self.adapters.turn > 1

    @property
    def max_output_tokens(self) -> int:
        """The maximum number of requested output tokens."""
        return max(self.trace.output_tokens) if self.trace else self.output_tokens.maximum

    def mean_tokens(self) -> tuple[float, float]:
        """Mean prompt and output tokens of a request; for golden prompts the limit of the output tokens."""
        if self.golden:
            words = sum(len(golden.prompt.split()) for golden in self.golden)
            return words / len(self.golden), self.output_tokens.mean()
        if self.trace:
            count = len(self.trace.offsets_ns)
            return sum(self.trace.prompt_tokens) / count, sum(self.trace.output_tokens) / count
        if self.prompts:
            words = sum(len(content.split()) for prompt in self.prompts for _, content in prompt)
            return words / len(self.prompts), self.output_tokens.mean()
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
    has_think_time = False

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


@dataclass(slots=True)
class Session:
    """A conversation under way. turns_left: before a new one begins; prompt_tokens: of `messages`, as asked for."""

    turns_left: int
    messages: tuple[Message, ...] = ()
    prompt_tokens: int = 0
    turn: int = 0


class Drawer(Protocol):
    """A source of requests."""

    def draw(self, nonce: str, calibration: PromptCalibration | None, /) -> "DrawnRequest":
        """Draws the next request; see `RequestGenerator.draw`."""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The next turn of a session with think time.

    think_s: from the end of the answer until it is due
    draw: draws its request, once
    """

    think_s: float
    draw: Callable[[str, PromptCalibration | None], "DrawnRequest"]


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
    follow_up: the next turn of its session; None without think time, or after the last turn
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
    follow_up: FollowUp | None = None


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
        self._sessions: dict[tuple[str, int], Session] = {}
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
        drawn = _checked(self._drawn(part, nonce, calibration), part)
        return drawn if part.adapters is None else self._adapted(drawn, part, part.adapters)

    def _adapted(self, drawn: DrawnRequest, part: Workload, adapters: Adapters) -> DrawnRequest:
        """The request for the adapter whose turn it is."""
        turn, at = divmod(self._turns[part.name], adapters.turn)
        self._turns[part.name] += 1
        is_first = at == 0 and len(part.series) > 1 and part.sessions is None
        name = part.series[-1] if is_first else drawn.workload
        return replace(drawn, workload=name, adapter=adapters.names[turn % len(adapters.names)])

    def _drawn(self, part: Workload, nonce: str, calibration: PromptCalibration | None) -> DrawnRequest:
        rng = self._rng
        length = calibration.length or UNCALIBRATED if calibration is not None else UNCALIBRATED
        if part.trace is not None:
            return self._replayed(part, part.trace, nonce, length)
        if part.sessions is not None and part.sessions.think_time is not None:
            own_rng = Random(rng.getrandbits(64))  # so that the order of answers changes no session
            return self._thoughtful_turn(part, Session(part.sessions.turns), own_rng, nonce, calibration)
        output = max(1, part.output_tokens.draw(rng))
        if part.golden:
            return self._golden(part, output, length)
        if part.prompts:
            (role, content), *rest = part.prompts[rng.randrange(len(part.prompts))]
            tokens = length.tokens(len(content.split()) + sum(len(text.split()) for _, text in rest))
            messages = ((role, f"[{nonce}] {content}"), *rest)
            return DrawnRequest(part.name, tokens, output, messages, False, part.sampling)
        prompt = max(1, part.prompt_tokens.draw(rng))
        if part.sessions is not None:
            return self._turn(part, part.sessions, prompt, output, nonce, length)
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

    def _turn(
        self, part: Workload, sessions: Sessions, message: int, output: int, nonce: str, length: PromptLength
    ) -> DrawnRequest:
        """The next turn of the next session. It may hit the prefix cache, so it has no salt; the nonce keeps sessions apart."""
        number = self._next[part.name] % sessions.count
        self._next[part.name] += 1
        # The first sessions are shorter, so that not all are at the same turn.
        session = self._sessions.get((part.name, number)) or Session(sessions.turns - number % sessions.turns)
        if session.turns_left == 0:
            session = Session(sessions.turns)
        self._sessions[part.name, number] = session
        return self._next_turn(part, session, message, output, nonce, length, self._rng)

    def _thoughtful_turn(
        self, part: Workload, session: Session, rng: Random, nonce: str, calibration: PromptCalibration | None
    ) -> DrawnRequest:
        """The next turn of a session with think time."""
        assert part.sessions is not None
        assert part.sessions.think_time is not None
        length = calibration.length or UNCALIBRATED if calibration is not None else UNCALIBRATED
        message, output = max(1, part.prompt_tokens.draw(rng)), max(1, part.output_tokens.draw(rng))
        drawn = _checked(self._next_turn(part, session, message, output, nonce, length, rng), part)
        adapter = part.adapters.names[0] if part.adapters is not None else ""
        follow_up = None
        if session.turns_left:
            think_s = part.sessions.think_time.draw(rng) / 1e3
            follow_up = FollowUp(think_s, partial(self._thoughtful_turn, part, session, rng))
        return replace(drawn, adapter=adapter, follow_up=follow_up)

    def _next_turn(
        self,
        part: Workload,
        session: Session,
        message: int,
        output: int,
        nonce: str,
        length: PromptLength,
        rng: Random,
    ) -> DrawnRequest:
        tokens = message if session.turn else max(1.0, message - length.constant_tokens)
        text = self._pool.words(max(1, round(length.words(tokens))), rng.randrange(1 << 13))
        answer = self._pool.words(max(1, round(length.words(output))), rng.randrange(1 << 13))
        messages = (*session.messages, ("user", text if session.turn else f"[{nonce}] {text}"))
        prompt, name = session.prompt_tokens + message, part.series[session.turn]
        session.turn, session.turns_left = session.turn + 1, session.turns_left - 1
        session.messages, session.prompt_tokens = (*messages, ("assistant", answer)), prompt + output
        return DrawnRequest(name, prompt, output, messages, True, part.sampling, has_asked_length=True)

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
        for at in range(max(1, round(count * share))):
            if part.trace is not None:
                row = at % len(part.trace.offsets_ns)
                lengths.append((part.trace.prompt_tokens[row], part.trace.output_tokens[row]))
                continue
            output = max(1, part.output_tokens.draw(rng))
            if part.golden:
                lengths.append((len(part.golden[at % len(part.golden)].prompt.split()), output))
            elif part.prompts:
                prompt = part.prompts[at % len(part.prompts)]
                lengths.append((sum(len(content.split()) for _, content in prompt), output))
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

"""Workloads: named distributions of requests (one class per kind), and the generator of requests.

Subclasses of `Workload` override how prompts are composed, their lengths, and the series.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean
from typing import Any, ClassVar

from prober.measure.quality import Check, Expectation
from prober.measure.request import AssistantMessage, Drawer, Message, Request
from prober.workload.arrivals import derive_seed
from prober.workload.prompt_length import UNCALIBRATED, PromptCalibration, PromptLength
from prober.workload.prompts import GoldenPrompt, Prompt, filler_text
from prober.workload.requested_format import requested_format
from prober.workload.shapes import Fixed, LengthDistribution
from prober.workload.trace import BLOCK_TOKENS, Trace

SAMPLE_OUTPUT_TOKENS = 16
BLOCK_ID_TOKENS = 4
TEXT_PLACES = 1 << 13  # in the pool of filler text where prompts can begin


@dataclass(frozen=True, slots=True)
class Prefix:
    """A shared prompt prefix.

    reuse: share of the requests that start with it, 0 to 1 (1 = always warm)
    """

    tokens: int
    reuse: float


@dataclass(frozen=True, slots=True)
class Adapters:
    """Names of LoRA adapters, or other models, on a server. Requests use them in rotation.

    turn: number of successive requests to the same adapter
    """

    names: tuple[str, ...]
    turn: int = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """A named distribution of requests whose prompts are filler text. Subclasses compose other prompts.

    adapters: models named by the requests; None: the target's model
    is_length_forced: force answers to exactly `output_tokens` if the engine supports it; False if a format is requested or checked
    expectation: check that follows from `sampling`, for answers to all prompts except golden ones
    unchecked: why the format requested in `sampling` is not checked; "" if it is checked, or if none is requested
    """

    name: str
    prompt_tokens: LengthDistribution
    output_tokens: LengthDistribution
    prefix: Prefix | None = None
    sampling: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0})
    adapters: Adapters | None = None
    is_length_forced: bool = True
    expectation: Expectation | None = field(init=False)
    unchecked: str = field(init=False)

    dataset: ClassVar[str] = "generated"  # origin of the prompts, for results
    has_sized_prompts: ClassVar[bool] = True  # prompts are composed to a length, calibrated by sample prompts

    def __post_init__(self) -> None:
        expectation, unchecked = requested_format(self.sampling)
        object.__setattr__(self, "expectation", expectation)
        object.__setattr__(self, "unchecked", unchecked)
        object.__setattr__(self, "is_length_forced", self.is_length_forced and not self.checks and not unchecked)

    @property
    def parts(self) -> tuple[tuple["Workload", float], ...]:
        """(workload, weight) of each part of a mix; a single workload is its only part."""
        return ((self, 1.0),)

    def with_parts(self, change: Callable[["Workload"], "Workload"]) -> "Workload":
        """Returns `change(self)`; a mix applies `change` to each of its parts."""
        return change(self)

    @property
    def checks(self) -> frozenset[Check]:
        """Kinds of checks made on the answers."""
        return frozenset((self.expectation.kind,)) if self.expectation is not None else frozenset()

    @property
    def series(self) -> tuple[str, ...]:
        """Values of the `workload` label, one per kind of request.

        These kinds are cold and warm requests, each turn of a session, and the first request of each turn of an adapter.
        """
        return tuple(name for name, _, _ in self.shares())

    def shares(self) -> tuple[tuple[str, "Workload", float], ...]:
        """(series, workload, share of the requests) of each series."""
        suffix, share = "warm", self.prefix.reuse if self.prefix is not None else 0.0
        if self.adapters is not None and len(self.adapters.names) > 1 and self.adapters.turn > 1:
            suffix, share = "first", 1 / self.adapters.turn
        if share in (0.0, 1.0):
            return ((self.name, self, 1.0),)
        return ((self.name, self, 1 - share), (f"{self.name}_{suffix}", self, share))

    @property
    def turns(self) -> int:
        """Turns per session, each with its own series; 1 without sessions."""
        return 1

    @property
    def think_time(self) -> LengthDistribution | None:
        """Time in ms from the end of an answer until the next turn is due; None without think time."""
        return None

    @property
    def max_concurrency(self) -> int | None:
        """Maximum number of requests in flight; None without a limit."""
        return None

    @property
    def max_output_tokens(self) -> int:
        """The maximum number of requested output tokens."""
        return self.output_tokens.maximum

    def mean_tokens(self) -> tuple[float, float]:
        """Mean (prompt tokens, output tokens) of a request; golden prompts count the limit of output tokens."""
        return self.prompt_tokens.mean(), self.output_tokens.mean()

    def draw_lengths(self, series: str, at: int, rng: Random) -> tuple[int, int]:
        """Draw (prompt, output) tokens of a request of this series, without composing its text. at: number of the request"""
        output = max(1, self.output_tokens.draw(rng))
        return max(1, self.prompt_tokens.draw(rng)), output

    @property
    def prompt_lengths(self) -> frozenset[object]:
        """Identifiers of the prompt lengths: one if all prompts have the same length, otherwise two or more."""
        shape = self.prompt_tokens
        return frozenset([shape.tokens] if isinstance(shape, Fixed) else [shape.text, "varied"])

    @property
    def prompt_text(self) -> str:
        """Prompt lengths and models of the requests, as text."""
        if self.adapters is None:
            return self.prompt_tokens.text
        names, turn = self.adapters.names, self.adapters.turn
        if len(names) == 1:
            return f"{self.prompt_tokens.text}, model {names[0]}"
        return (
            f"{self.prompt_tokens.text}, {len(names)} adapters in turn, {turn} request{'' if turn == 1 else 's'} each"
        )

    @property
    def output_text(self) -> str:
        """Requested output tokens, as text."""
        return self.output_tokens.text

    def opened(self, rng: Random) -> Drawer | None:
        """Create the stateful source of the requests, such as sessions; None if requests do not depend on earlier answers."""
        return None

    def compose(self, number: int, due_ns: int, at: int, rng: Random, length: PromptLength) -> Request:
        """Compose a request. at: its number within this workload; length: relates words to the server's tokens"""
        output, prompt = max(1, self.output_tokens.draw(rng)), max(1, self.prompt_tokens.draw(rng))
        warm = self.prefix is not None and rng.random() < self.prefix.reuse
        words = prompt if length is UNCALIBRATED else length.prompt_words(prompt, rng)
        text, shared = f"[{nonce(number)}] ", 0
        if self.prefix is not None and warm:
            shared = min(round(length.words(self.prefix.tokens)), words)
            # Prefixes contain the workload's name, so that one workload does not warm up another.
            text = f"{filler_text(shared, derive_seed('prefix', self.name))} {text}"
        text += filler_text(max(1, words - shared), rng.randrange(TEXT_PLACES))
        series = self.series[-1 if warm else 0]
        messages = (("user", text),)
        return self.request(number, due_ns, series, (prompt, output), messages, warm=warm, has_asked_length=True)

    def request(
        self,
        number: int,
        due_ns: int,
        series: str,
        tokens: tuple[int, int],
        messages: tuple[Message | AssistantMessage, ...],
        **fields: Any,
    ) -> Request:
        """Build a request with the workload's fields and check. fields: further fields of `Request`"""
        fields = {"expectation": self.expectation, "is_length_forced": self.is_length_forced, **fields}
        return Request(f"slo-probe-{number:016x}", due_ns, series, *tokens, messages, self.sampling, **fields)

    def sample(self, number: int, due_ns: int, words: int) -> Request:
        """A sample prompt, whose tokens calibrate the length of other prompts. Its answer is not checked."""
        tokens = max(1, words), min(SAMPLE_OUTPUT_TOKENS, self.max_output_tokens)
        messages = (("user", f"[{nonce(number)}] {filler_text(words, 0)}"),)
        return self.request(number, due_ns, self.series[0], tokens, messages, expectation=None, sample_words=words)


@dataclass(frozen=True, slots=True)
class FileWorkload(Workload):
    """Sends texts from a file instead of filler text."""

    prompts: tuple[Prompt, ...] = field(kw_only=True)

    dataset: ClassVar[str] = "file"
    has_sized_prompts: ClassVar[bool] = False

    @property
    def prompt_lengths(self) -> frozenset[object]:
        return frozenset(map(_words, self.prompts))

    @property
    def prompt_text(self) -> str:
        return _recorded_text(list(map(_words, self.prompts)), "words")

    def mean_tokens(self) -> tuple[float, float]:
        return fmean(map(_words, self.prompts)), self.output_tokens.mean()

    def draw_lengths(self, series: str, at: int, rng: Random) -> tuple[int, int]:
        return _words(self.prompts[at % len(self.prompts)]), max(1, self.output_tokens.draw(rng))

    def compose(self, number: int, due_ns: int, at: int, rng: Random, length: PromptLength) -> Request:
        output, prompt = max(1, self.output_tokens.draw(rng)), self.prompts[rng.randrange(len(self.prompts))]
        (role, content), *rest = prompt
        messages = ((role, f"[{nonce(number)}] {content}"), *rest)
        return self.request(number, due_ns, self.name, (length.tokens(_words(prompt)), output), messages)


@dataclass(frozen=True, slots=True)
class GoldenWorkload(FileWorkload):
    """Sends golden prompts unchanged, in rotation, and checks the answers. `output_tokens` limits their length without forcing it."""

    prompts: tuple[Prompt, ...] = field(init=False)
    golden: tuple[GoldenPrompt, ...] = field(kw_only=True)

    dataset: ClassVar[str] = "generated"

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", tuple((("user", golden.prompt),) for golden in self.golden))
        Workload.__post_init__(self)

    @property
    def checks(self) -> frozenset[Check]:
        return frozenset(golden.expectation.kind for golden in self.golden)

    def compose(self, number: int, due_ns: int, at: int, rng: Random, length: PromptLength) -> Request:
        golden, output = self.golden[at % len(self.golden)], max(1, self.output_tokens.draw(rng))
        prompt, tokens = (("user", golden.prompt),), (length.tokens(len(golden.prompt.split())), output)
        return self.request(number, due_ns, self.name, tokens, prompt, warm=True, expectation=golden.expectation)


@dataclass(frozen=True, slots=True)
class TraceWorkload(Workload):
    """Replays lengths and prefixes of recorded traffic. speed: factor on the recorded rate"""

    trace: Trace = field(kw_only=True)
    speed: float = field(default=1.0, kw_only=True)

    dataset: ClassVar[str] = "trace"

    @property
    def rate_per_s(self) -> float:
        """Mean rate of the replay."""
        return self.trace.rate_per_s * self.speed

    @property
    def max_output_tokens(self) -> int:
        return max(self.trace.output_tokens)

    @property
    def prompt_lengths(self) -> frozenset[object]:
        return frozenset(self.trace.prompt_tokens)

    @property
    def prompt_text(self) -> str:
        return _recorded_text(self.trace.prompt_tokens, "tokens")

    @property
    def output_text(self) -> str:
        return _recorded_text(self.trace.output_tokens, "tokens")

    def mean_tokens(self) -> tuple[float, float]:
        return fmean(self.trace.prompt_tokens), fmean(self.trace.output_tokens)

    def draw_lengths(self, series: str, at: int, rng: Random) -> tuple[int, int]:
        row = at % len(self.trace.offsets_ns)
        return self.trace.prompt_tokens[row], self.trace.output_tokens[row]

    def compose(self, number: int, due_ns: int, at: int, rng: Random, length: PromptLength) -> Request:
        row = at % len(self.trace.offsets_ns)
        prompt, output = self.trace.prompt_tokens[row], self.trace.output_tokens[row]
        blocks = self.trace.blocks[row] if self.trace.blocks else ()
        # Equal blocks give equal text: the id (about 4 tokens), then text that depends only on the id.
        texts = []
        tokens = prompt - length.constant_tokens
        for block in blocks:
            if tokens <= 0:
                break
            words = round(length.words(min(BLOCK_TOKENS, tokens) - BLOCK_ID_TOKENS))
            texts.append(f"[{block}] {filler_text(max(1, words), block * 97)}")
            tokens -= BLOCK_TOKENS
        if tokens > 0 or not texts:  # tokens outside the recorded blocks are not shared
            words = max(1, round(length.words(tokens)))
            texts.append(f"[{nonce(number)}] {filler_text(words, rng.randrange(TEXT_PLACES))}")
        messages, warm = (("user", " ".join(texts)),), bool(blocks)
        return self.request(number, due_ns, self.name, (prompt, output), messages, warm=warm, has_asked_length=True)


@dataclass(frozen=True, slots=True)
class Mix:
    """A weighted mix of workloads. Parts keep their names, because percentiles of different workloads must not be pooled."""

    name: str
    parts: tuple[tuple[Workload, float], ...]
    think_time, turns = None, 1  # as in `Workload`

    def with_parts(self, change: Callable[[Workload], Workload]) -> "Mix":
        """The mix with `change` applied to each part."""
        return replace(self, parts=tuple((change(part), weight) for part, weight in self.parts))

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
        """Kinds of checks made on the answers."""
        return frozenset(kind for part, _ in self.parts for kind in part.checks)

    def mean_tokens(self) -> tuple[float, float]:
        """Mean (prompt tokens, output tokens) of a request."""
        total_weight = sum(weight for _, weight in self.parts)
        means = [(weight / total_weight, part.mean_tokens()) for part, weight in self.parts]
        return sum(w * m[0] for w, m in means), sum(w * m[1] for w, m in means)


class RequestGenerator:
    """Generates random requests of a workload or mix. Cold prompts start with a nonce, so that no prefix cache has them."""

    def __init__(self, workload: Workload | Mix, rng: Random) -> None:
        self._parts, self._rng = [part for part, _ in workload.parts], rng
        self._weights = [weight for _, weight in workload.parts]
        self._opened = {part.name: part.opened(rng) for part in self._parts}
        self._counts: Counter[str] = Counter()

    def draw(self, number: int, due_ns: int = 0, calibration: PromptCalibration | None = None) -> Request:
        """Draw the next request.

        number: 64 bits, different for each request
        calibration: of prompt lengths on the server; None: a word counts as a token
        """
        part = self._parts[0] if len(self._parts) == 1 else self._rng.choices(self._parts, self._weights)[0]
        if calibration is not None and part.has_sized_prompts:
            words = calibration.next_sample_words()
            if words is not None:
                return part.sample(number, due_ns, words)
        if (opened := self._opened[part.name]) is not None:
            return opened.draw(number, due_ns, calibration)
        at = self._counts[part.name]
        self._counts[part.name] += 1
        request = part.compose(number, due_ns, at, self._rng, known_length(calibration))
        if part.adapters is None:
            return request
        turn, place = divmod(at, part.adapters.turn)
        series = part.series[-1] if place == 0 and len(part.series) > 1 else request.workload
        return replace(request, workload=series, adapter=part.adapters.names[turn % len(part.adapters.names)])


def _words(prompt: Prompt) -> int:
    return sum(len(text.split()) for _, text in prompt)


def _recorded_text(lengths: Sequence[int], unit: str) -> str:
    """Describe lengths that were read from a file."""
    return f"{len(lengths)} of a file, {min(lengths)} to {max(lengths)} {unit}, mean {fmean(lengths):.6g}"


def nonce(number: int) -> str:
    """Unique text for the start of a prompt. Only digits, so that nearly all tokenizers count the same number of tokens."""
    return f"{number:020d}"


def known_length(calibration: PromptCalibration | None) -> PromptLength:
    """The calibrated prompt length; until it is known, a word counts as a token."""
    return UNCALIBRATED if calibration is None or calibration.length is None else calibration.length


def unchecked_formats(workload: Workload | Mix) -> tuple[str, ...]:
    """Phrases about requested formats whose answers are not checked."""
    return tuple(dict.fromkeys(part.unchecked for _, part, _ in workload.shares() if part.unchecked))


def sample_lengths(workload: Workload | Mix, rng: Random, count: int) -> tuple[tuple[int, int], ...]:
    """Returns random (prompt tokens, output tokens) of about `count` requests, without composing texts."""
    return tuple(
        part.draw_lengths(series, at, rng)
        for series, part, share in workload.shares()
        for at in range(max(1, round(count * share)))
    )

"""Workloads: the blocks under `workloads`, and their conversion to workloads."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, TypeVar, cast

from pydantic import Field, PlainValidator, TypeAdapter, ValidationInfo, WithJsonSchema, model_validator

from prober.config.fields import (
    NUMBER,
    Block,
    Document,
    Items,
    Mistakes,
    OptionalDuration,
    Percent,
    Positive,
    PositiveCount,
    Reuse,
    mistake,
)
from prober.config.problems import no_such
from prober.measure.quality import Check, Expectation, expectation_problem
from prober.workload.built_in import BUILT_IN
from prober.workload.prompts import BadPrompts, GoldenPrompt, parse_prompts
from prober.workload.requested_format import tool_schemas
from prober.workload.sessions import Answers, SessionWorkload
from prober.workload.shapes import Empirical, Exponential, Fixed, LengthDistribution, Lognormal, Uniform
from prober.workload.trace import BadTrace, parse_trace
from prober.workload.workloads import Adapters, FileWorkload, GoldenWorkload, Mix, Prefix, TraceWorkload, Workload

if TYPE_CHECKING:
    from prober.config.document import Problems

GOLDEN_OUTPUT_TOKENS = 64
MAX_CHECKED_OUTPUT_TOKENS = 4_096
THINK_TIME_REFUSED = (
    "its sessions have a think time: turns follow their answers, which only `prober matrix` does; use `count`"
)


N = TypeVar("N")  # PositiveCount for tokens, OptionalDuration for times
Sigma = Annotated[float, Field(ge=0, le=10, strict=False), WithJsonSchema(NUMBER | {"minimum": 0, "maximum": 10})]
Share = Annotated[float, Field(ge=0, le=1, strict=False), WithJsonSchema(NUMBER | {"minimum": 0, "maximum": 1})]


class UniformSpec(Block, Generic[N]):
    min: N
    max: N


class ExponentialSpec(Block, Generic[N]):
    mean: N
    max: N


class LognormalSpec(Block, Generic[N]):
    median: N
    sigma: Sigma
    min: N | None = None
    max: N


class QuantilesSpec(Block, Generic[N]):
    quantiles: dict[Share, N]


class DistributionSpec(Block, Generic[N]):
    """A distribution of token lengths or times. Exactly one key is set."""

    fixed: N | None = None
    uniform: UniformSpec[N] | None = None
    exponential: ExponentialSpec[N] | None = None
    lognormal: LognormalSpec[N] | None = None
    empirical: QuantilesSpec[N] | None = None

    def distribution(self, scale: int, least: int) -> LengthDistribution:
        """The distribution in units of 1 / `scale`. least: its minimum, if the file has none. Raises a mistake."""
        if len(self.model_fields_set) != 1:
            raise mistake(f"no distribution; write a plain value, or one of {', '.join(DistributionSpec.model_fields)}")

        def units(value: Any) -> int:
            return round(float(value) * scale)

        if self.fixed is not None:
            return Fixed(units(self.fixed))
        if self.empirical is not None:
            pairs = tuple(sorted((share, units(value)) for share, value in self.empirical.quantiles.items()))
            values = [value for _, value in pairs]
            if pairs and (pairs[0][0], pairs[-1][0]) == (0, 1) and values == sorted(values):
                return Empirical(pairs)
            raise mistake("quantiles must go from 0 to 1 and rise, such as {0: 10, 0.5: 100, 1: 2000}")
        if (u := self.uniform) is not None and units(u.min) <= units(u.max):
            return Uniform(units(u.min), units(u.max))
        if (e := self.exponential) is not None and 0 < units(e.mean) <= units(e.max):
            return Exponential(units(e.mean), units(e.max))
        if (p := self.lognormal) is not None:
            low = least if p.min is None else units(p.min)
            if max(1, low) <= units(p.median) <= units(p.max):
                return Lognormal(units(p.median), p.sigma, low, units(p.max))
        raise mistake("min, median or mean, and max are not in order; it must be min ≤ median ≤ max")


def _distribution(
    kind: type[DistributionSpec[Any]],
    unit: TypeAdapter[Any],
    scale: int,
    least: int,
    value: object,
    info: ValidationInfo,
) -> object:
    """Parse a distribution as written. A distribution object, passed by code, is returned unchanged."""
    if isinstance(value, Fixed | Uniform | Exponential | Lognormal | Empirical):
        return value
    if isinstance(value, dict):
        return kind.model_validate(value, context=info.context).distribution(scale, least)
    return Fixed(round(unit.validate_python(value, context=info.context) * scale))


_LENGTH = DistributionSpec[PositiveCount]
Length = Annotated[
    LengthDistribution,
    PlainValidator(
        partial(_distribution, _LENGTH, TypeAdapter(PositiveCount), 1, 1),
        json_schema_input_type=PositiveCount | _LENGTH,
    ),
]
_TIME = DistributionSpec[OptionalDuration]
ThinkTime = Annotated[  # in ms
    LengthDistribution,
    PlainValidator(
        partial(_distribution, _TIME, TypeAdapter(OptionalDuration), 1000, 0),
        json_schema_input_type=OptionalDuration | _TIME,
    ),
]


class PrefixSpec(Block):
    tokens: PositiveCount = Field(description="length of the prefix")
    reuse: Reuse = Field(description="share of the requests that have the prefix; warm is 100%, cold 0%")


class SessionsSpec(Block):
    count: Annotated[int, Field(ge=1, le=1_000)] | None = Field(
        None,
        description="sessions at a time; two turns of one are about count ÷ rate apart, and never before its answer",
    )
    think_time: ThinkTime | None = Field(
        None,
        description="time from an answer to the next turn, 200ms, {uniform: {min, max}}, {exponential: {mean, max}} or "
        "{lognormal: {median, sigma, min, max}}: for rows of `prober matrix` with a rate and a duration; all else uses `count`",
    )
    answers: Answers = Field(
        "own",
        description="earlier answers in a prompt: own (the server's), or filler of `output_tokens`, equal in each run",
    )
    tool_results: Percent | None = Field(
        None,
        description="share of the later messages that are results of a tool call, which the prober adds to the answer before "
        "unless the server called tools itself",
    )
    turns: Annotated[int, Field(ge=2, le=20)] = Field(description="turns of a session, each with its own series")


class AdaptersSpec(Block):
    names: Items[Annotated[str, Field(min_length=1)]] = Field(
        description="two or more, each as the server lists it in `/v1/models`", min_length=2
    )
    turn: PositiveCount = Field(
        1, description="requests, or sessions, in a row for one adapter; then the next one has its turn"
    )


class PromptsFile(Block):
    file: str = Field(
        description="JSONL of messages, or ShareGPT's JSON; the first message of each is sent after a nonce, a number in brackets"
    )


class TraceFile(Block):
    file: str = Field(description="Mooncake JSONL, with times in milliseconds, or Azure CSV")
    speed: Positive = Field(1.0, description="2 replays twice as fast")


class Expect(Block):
    text: str | None = Field(None, description="the answer is this text, apart from white space at both ends")
    regex: str | None = Field(None, description="the answer contains a match; RE2 syntax")
    json_schema: dict[str, Any] | None = Field(None, description="the answer is JSON that is valid under this schema")
    tool_call: str | None = Field(
        None,
        description="the answer calls this tool of `sampling.tools` only, with arguments valid under its parameters",
    )


class GoldenSpec(Block):
    prompt: Annotated[str, Field(min_length=1)] = Field(description="sent unchanged as the user's message")
    expect: Expect = Field(
        default_factory=Expect, description="the right answer: one of text, regex, json_schema, tool_call"
    )


class PartSpec(Block):
    workload: str = Field(description="name of a workload")
    weight: Positive = Field(1.0, description="share of the requests, relative to the other parts")


class Shape(Block):
    """Prompt and output lengths, prefix and adapters of requests: keys shared by workloads and rows of a workload matrix."""

    prompt_tokens: Length | None = Field(
        None,
        description="a number, {uniform: {min, max}}, {lognormal: {median, sigma, min, max}} or "
        "{empirical: {quantiles: {0: 10, 0.5: 100, 1: 2000}}}",
    )
    output_tokens: Length | None = Field(None, description="the same; forced if the engine supports it")
    prefix: PrefixSpec | None = Field(
        None,
        description="a shared beginning of prompts, for the prefix cache; of `sessions` a system message before them",
    )
    model: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="model of the requests in place of the target's, such as a LoRA adapter by its served name"
    )
    adapters: AdaptersSpec | None = Field(None, description="LoRA adapters that requests, or sessions, use in turn")

    @model_validator(mode="after")
    def _check_adapters(self) -> Self:
        with Mistakes() as mistakes:
            if self.adapters is not None:
                if len(set(self.adapters.names)) < len(self.adapters.names):
                    mistakes.add("adapters.names", "has a name twice; keep one of them")
                if self.model is not None:
                    mistakes.add("model", "comes with `adapters`; remove it here, or that")
                if self.prefix is not None:
                    mistakes.add("prefix", "is cached for each adapter by itself; remove it here, or `adapters`")
        return self

    def named_workload(
        self, name: str, sampling: Mapping[str, Any] | None = None, kind: Callable[..., Workload] = Workload
    ) -> Workload:
        """The workload with these lengths. kind: class of the workload, or a partial of it with the fields that only it has"""
        models = Adapters((self.model,)) if self.model is not None else None
        if self.adapters is not None:
            models = Adapters(self.adapters.names, self.adapters.turn)
        return kind(
            name,
            prompt_tokens=self.prompt_tokens or Fixed(1),
            output_tokens=self.output_tokens or Fixed(1),
            prefix=Prefix(self.prefix.tokens, self.prefix.reuse) if self.prefix is not None else None,
            sampling=sampling if sampling is not None else {"temperature": 0},
            adapters=models,
        )


class WorkloadSpec(Shape):
    """A workload without its name."""

    sampling: dict[str, Any] | None = Field(
        None,
        description="request fields ({temperature: 0}), as the API names them; null removes one of the prober's own, such as `user`; "
        "never `seed`. With `tools` or a format, such as `response_format` or `structured_outputs`, the answers are checked, and "
        "output_tokens limits them and is not forced",
    )
    prompts: PromptsFile | None = Field(None, description="prompts from a file instead of generated ones")
    trace: TraceFile | None = Field(None, description="lengths, prefixes and times from a recorded trace")
    golden: Items[GoldenSpec] | None = Field(
        None,
        description="prompts with known answers instead of generated ones, for the signal `quality`; output_tokens limits the "
        f"answer ({GOLDEN_OUTPUT_TOKENS}) and is not forced",
    )
    sessions: SessionsSpec | None = Field(
        None, description="conversations with a growing prompt; lengths are those of one message and of one answer"
    )
    mix: Items[PartSpec] | None = Field(None, description="several workloads by weight, each with its own series")


def resolve_workloads(
    specs: Mapping[str, WorkloadSpec], problems: "Problems", document: Document
) -> dict[str, Workload | Mix]:
    """Convert blocks to {name: workload}, with the built-in ones; mixes last, as they refer to others. Bad names become broken."""
    workloads: dict[str, Workload | Mix] = dict(BUILT_IN)
    for name, spec in sorted(specs.items(), key=lambda item: item[1].mix is not None):
        before = problems.count
        if spec.mix is None:
            workloads[name] = _workload(name, spec, problems, document.read)
        else:
            path = f"workloads.{name}.mix"
            if own := sorted(spec.model_fields_set - {"mix"}):
                problems.add(path, f"a mix has no {', '.join(own)} of its own; set them in its parts")
            parts: list[tuple[Workload, float]] = []
            for index, part in enumerate(spec.mix or ()):
                workload = workloads.get(part.workload)
                if document.is_broken("workloads", part.workload):
                    document.broken.add(("workloads", name))
                elif isinstance(workload, Workload):
                    parts.append((workload, part.weight))
                    if workload.think_time is not None:
                        problems.add(
                            f"{path}[{index}].workload", "has a think time, which a mix cannot have; leave it out"
                        )
                else:
                    problems.add(
                        f"{path}[{index}].workload", no_such("workload that is no mix", part.workload, workloads)
                    )
            if not spec.mix:
                problems.add(path, "needs at least one part, such as {workload: chat, weight: 2}")
            workloads[name] = Mix(name, tuple(parts))
        if problems.count > before:
            document.broken.add(("workloads", name))
    return workloads


def _workload(name: str, spec: WorkloadSpec, problems: "Problems", read: Callable[[str], str]) -> Workload:
    path = f"workloads.{name}"
    sources = [key for key in ("prompts", "trace", "golden") if getattr(spec, key) is not None]
    if len(sources) > 1:
        problems.add(path, f"has {' and '.join(f'`{key}`' for key in sources)}; keep one of them")
    if spec.golden is not None and spec.output_tokens is None:
        spec = spec.model_copy(update={"output_tokens": Fixed(GOLDEN_OUTPUT_TOKENS)})
    for key, is_implied in (
        ("prompt_tokens", bool(sources)),
        ("output_tokens", spec.trace is not None),
        ("prefix", bool(sources)),
        ("sessions", bool(sources)),
    ):
        is_set = getattr(spec, key) is not None
        if is_implied and is_set:
            problems.add(f"{path}.{key}", f"comes with `{sources[0]}`; remove it here, or that")
        elif not is_implied and not is_set and key not in ("prefix", "sessions"):
            problems.add(f"{path}.{key}", "needed: a number of tokens or a distribution")
    if "seed" in (spec.sampling or {}):
        problems.add(f"{path}.sampling.seed", "is never sent: with a long prompt it kills some engines; remove it")
    if spec.sessions is not None and spec.sessions.count is None and spec.sessions.think_time is None:
        problems.add(f"{path}.sessions", "needs `count` or `think_time`")
    workload = spec.named_workload(name, spec.sampling, _kind(spec, path, problems, read))
    if workload.expectation is not None and (problem := expectation_problem(workload.expectation)):
        problems.add(f"{path}.sampling", problem)
    if workload.checks and workload.max_output_tokens > MAX_CHECKED_OUTPUT_TOKENS:
        problems.add(
            f"{path}.output_tokens",
            f"of answers that are checked are at most {MAX_CHECKED_OUTPUT_TOKENS:,}, as the answer is kept to be checked",
        )
    return workload


def _kind(spec: WorkloadSpec, path: str, problems: "Problems", read: Callable[[str], str]) -> Callable[..., Workload]:
    """Class of the workload that a block describes, or a partial of it with the fields that only it has."""
    key = "prompts" if spec.prompts else "trace"
    try:
        if spec.prompts:
            return partial(FileWorkload, prompts=parse_prompts(read(spec.prompts.file), spec.prompts.file))
        if spec.trace:
            trace = parse_trace(read(spec.trace.file), spec.trace.file)
            return partial(TraceWorkload, trace=trace, speed=spec.trace.speed)
    except (OSError, UnicodeDecodeError) as problem:
        problems.add(f"{path}.{key}.file", f"cannot be read: {problem}; name a file that is there")
    except (BadPrompts, BadTrace) as problem:
        problems.add(f"{path}.{key}.file", str(problem))
    if spec.golden is not None:
        tools = tool_schemas(spec.sampling or {})
        if golden := _golden(spec.golden, tools, f"{path}.golden", problems):
            return partial(GoldenWorkload, golden=golden)
    if spec.sessions is not None:
        sessions, has_count = spec.sessions, spec.sessions.count is not None
        return partial(
            SessionWorkload,
            turns=sessions.turns,
            count=sessions.count or 0,
            think_time=None if has_count else sessions.think_time,
            own_pace=sessions.think_time if has_count else None,
            answers=sessions.answers,
            tool_results=sessions.tool_results or 0.0,
        )
    return Workload


def _golden(
    specs: tuple[GoldenSpec, ...], tools: Mapping[str, Any], path: str, problems: "Problems"
) -> tuple[GoldenPrompt, ...]:
    prompts: list[GoldenPrompt] = []
    if not specs:
        problems.add(path, "is empty; give it prompts, such as [{prompt: What is 2 + 2?, expect: {regex: '4'}}]")
    for index, spec in enumerate(specs):
        place = f"{path}[{index}].expect"
        checks = spec.expect.model_dump(exclude_none=True)
        if len(checks) != 1:
            problems.add(
                place,
                "needed: one of {text: …}, {regex: …}, {json_schema: {…}} and {tool_call: …}; without it there is nothing to check",
            )
            continue
        ((kind, expected),) = checks.items()
        if kind == "tool_call" and expected not in tools:
            problems.add(f"{place}.tool_call", no_such("tool in `sampling.tools`", expected, tools))
            continue
        expectation = Expectation(cast(Check, kind), {expected: tools[expected]} if kind == "tool_call" else expected)
        if problem := expectation_problem(expectation):
            problems.add(f"{place}.{kind}", problem)
        prompts.append(GoldenPrompt(spec.prompt, expectation))
    return tuple(prompts)

"""Reads the file of a workload matrix: all its rows, or all errors at once."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import Field, PlainValidator, ValidationInfo, field_validator, model_validator

from prober.config.document import Problems
from prober.config.fields import (
    Count,
    Document,
    Duration,
    Items,
    Mistakes,
    NamedWorkload,
    OptionalDuration,
    Positive,
    PositiveCount,
    Rate,
    matching,
    mistake,
    require,
)
from prober.config.problems import unknown_key
from prober.config.server import Headers
from prober.config.slos import objective, renamed
from prober.config.target import Timeouts, threshold_problem
from prober.config.workloads import Shape, ThinkTime
from prober.measure.objective import Slo
from prober.workload.built_in import BUILT_IN
from prober.workload.sessions import SessionWorkload
from prober.workload.shapes import LengthDistribution
from prober.workload.workloads import Mix, Workload

MAX_CONCURRENCY = 2_000
MINIMAL = (
    "the least that works is `rows: [{name: a, prompt_tokens: 256, output_tokens: 64, rate: 2/s, duration: 9m, "
    "accept: ['ttft<500ms:95%']}]`"
)

_COST = re.compile(r"\s*cost\s*<=?\s*\$?([0-9]+(?:\.[0-9]+)?)\s*")  # dollars per million output tokens

_Name = Annotated[str, matching(r"[\w.-]{1,100}", "cannot be a name; use up to 100 letters, digits, '_', '.' and '-'")]
_TOO_MANY = f"{{}} in flight cannot be kept; use 1 to {MAX_CONCURRENCY:,}"
_Concurrency = Annotated[Count, require(lambda count: 1 <= count <= MAX_CONCURRENCY, _TOO_MANY)]
_NO_ACCEPT = "needed: a list of what must hold, such as ['ttft<500ms:99%', 'success:99%']"

_NOT_JUDGED = "a row `beside` another is its load and not judged; remove it here"


def _objective(text: object, info: ValidationInfo) -> Slo:
    if isinstance(text, Slo):
        return text
    slo = objective(text)
    if problem := threshold_problem(slo, Timeouts()):
        raise mistake(problem)
    return slo


class Row(Shape):
    """A row of a workload matrix: lengths of its requests, how they are sent, and the objectives to meet.

    named: a workload, which replaces lengths, model and adapters
    rate: requests per second in an open loop; concurrency: requests in flight in a closed loop; one of them is None
    think_time: in ms, from an answer to the next request of each of `concurrency` users in a closed loop. None: that of its sessions,
    or none
    requests: number of requests to send; duration: seconds of sending; one of them is None
    accept: objectives that must all hold; different objectives in a file have different names
    max_cost: most dollars per million output tokens, written `cost<2.50` in `accept`; None: no limit
    beside: name of the previous row, during which this row is sent as additional load; this row is not judged. None: sent alone
    against: name of an earlier row that was sent alike, with which this row is compared; None: no comparison
    start: begin of a row `beside` another, in seconds after the other's begin
    shed_allowed: requests that the target sheds do not end a row `beside` another
    headers: headers of this row's requests, in addition to those of the command
    """

    name: _Name
    named: NamedWorkload | None = Field(None, alias="workload")
    rate: Rate | None = None
    concurrency: _Concurrency | None = None
    think_time: ThinkTime | None = None
    requests: PositiveCount | None = None
    duration: Duration | None = None
    beside: str | None = None
    against: str | None = None
    accept: Items[Annotated[Slo, PlainValidator(_objective)]] = Field((), validate_default=True)
    max_cost: Positive | None = None
    hypothesis: str = ""
    start: OptionalDuration = 0.0
    shed_allowed: bool = False
    headers: Headers = Field(default_factory=dict, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _take_cost(cls, value: Any) -> Any:
        """Move a cost limit from `accept` to `max_cost`, because it is no objective on a share of events."""
        listed = value.get("accept") if isinstance(value, dict) else None
        if not isinstance(listed, list | tuple):
            return value
        targets = [match for text in listed if isinstance(text, str) and (match := _COST.fullmatch(text))]
        if not targets:
            return value
        if len(targets) > 1:
            raise mistake(f"has {len(targets)} cost targets; keep one", "accept")
        (cost,) = targets
        return {**value, "accept": [text for text in listed if text != cost.string], "max_cost": float(cost[1])}

    @model_validator(mode="after")
    def _check(self) -> Self:
        with Mistakes() as mistakes:
            self._check_one_of("rate", "concurrency", "an open loop has a rate, a closed one a concurrency", mistakes)
            self._check_one_of("requests", "duration", "how many, or for how long", mistakes)
            for key in Shape.model_fields:
                if self.named is not None and getattr(self, key) is not None:
                    mistakes.add(key, "comes with `workload`; remove it here, or that")
                elif self.named is None and getattr(self, key) is None and key in ("prompt_tokens", "output_tokens"):
                    mistakes.add(key, "needed: a number of tokens or a distribution")
            self._check_sessions(mistakes)
            if any(slo.signal == "quality" for slo in self.accept) and not self.workload.checks:
                mistakes.add("accept", "`quality` judges answers that are checked; name a `workload` with golden prompts, tools or a "
                                       "`response_format`")  # fmt: skip
            if self.beside is None:
                for key in ("start", "shed_allowed"):
                    if getattr(self, key):
                        mistakes.add(key, "is that of a row `beside` another; remove it, or add that")
            else:
                if self.max_cost is not None:
                    mistakes.add("accept", _NOT_JUDGED)
                for key in ("concurrency", "requests", "against"):
                    if getattr(self, key) is not None:
                        mistakes.add(key, "a row `beside` another has `rate` and `duration`; remove this")
        return self

    def _check_sessions(self, mistakes: Mistakes) -> None:
        counts = [part.max_concurrency for part, _ in self.workload.parts if part.max_concurrency is not None]
        has_think_time = self.workload.think_time is not None
        if has_think_time and self.requests is not None:
            mistakes.add("requests", "sessions with a think time are sent for a time; write `duration`")
        if self.think_time is not None and (has_think_time or self.concurrency is None):
            mistakes.add(
                "think_time", "is that of users without sessions: write `concurrency`, and no other think time"
            )
        if self.concurrency is not None and (fewest := min(counts, default=self.concurrency)) < self.concurrency:
            mistakes.add("concurrency", f"is more than `sessions.count` ({fewest}); raise that, or lower it")

    @field_validator("accept")
    @classmethod
    def _check_accept(cls, accept: tuple[Slo, ...], info: ValidationInfo) -> tuple[Slo, ...]:
        if bool(accept) is (info.data.get("beside") is not None):
            raise mistake(_NOT_JUDGED if accept else _NO_ACCEPT)
        return accept

    @property
    def ttft(self) -> Slo | None:
        """The strictest TTFT objective in `accept`; None without one."""
        return min(
            (slo for slo in self.accept if slo.signal == "ttft"), key=lambda slo: slo.threshold_s or 0.0, default=None
        )

    def _check_one_of(self, first: str, second: str, why: str, mistakes: Mistakes) -> None:
        are_set = [getattr(self, key) is not None for key in (first, second)]
        if all(are_set):
            mistakes.add("", f"has `{first}` and `{second}`; keep one of them: {why}")
        elif not any(are_set):
            mistakes.add("", f"needs `{first}` or `{second}`: {why}")

    @property
    def workload(self) -> Workload | Mix:
        """The workload of the row."""
        workload = self.named if self.named is not None else self.named_workload(self.name)
        has_schedule = self.rate is not None and self.duration is not None
        return workload.at_own_pace() if has_schedule and isinstance(workload, SessionWorkload) else workload

    @property
    def think_time_of_users(self) -> LengthDistribution | None:
        """Think time in ms of each of `concurrency` users; None in an open loop, and in a closed loop without pauses."""
        return (self.think_time or self.workload.think_time) if self.closed else None

    @property
    def closed(self) -> bool:
        """True for a closed loop, in which requests wait for answers to others."""
        return self.concurrency is not None


def load_rows(
    text: str,
    *,
    source: str,
    workloads: Mapping[str, Workload | Mix] = MappingProxyType(BUILT_IN),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Row, ...]:
    """Read the rows of a file, in order. source: name of the text in messages. Raises ConfigError with all errors.

    environ: environment variables that headers may use
    """
    problems = Problems(source, text)
    raw = problems.mapping(MINIMAL)
    for key in raw.keys() - {"rows"}:
        problems.add(str(key), unknown_key(key, ["rows"]))
    listed = raw.get("rows")
    if not isinstance(listed, list) or not listed:
        problems.add("rows", f"needed: a list of rows; {MINIMAL}")
        listed = []
    context = Document((), environ, str, workloads=dict(workloads))
    valid = (problems.validated(Row, value, f"rows[{index}]", context) for index, value in enumerate(listed))
    rows = [row for row in valid if row is not None]
    names = ((index, raw.get("name")) for index, raw in enumerate(listed) if isinstance(raw, dict))
    problems.unique("rows", {index: name for index, name in names if isinstance(name, str)})
    if len(rows) == len(listed):
        _check_beside(rows, problems)
        _check_against(rows, problems)
    problems.end()
    objectives = renamed([slo for row in rows for slo in row.accept])
    return tuple(
        row.model_copy(update={"accept": tuple(dict.fromkeys(objectives[slo] for slo in row.accept))}) for row in rows
    )


def _check_beside(rows: Sequence[Row], problems: Problems) -> None:
    for index, row in enumerate(rows):
        if row.beside is None:
            continue
        path, before = f"rows[{index}]", rows[index - 1] if index else None
        if before is None or before.name != row.beside or before.beside is not None:
            problems.add(
                f"{path}.beside", f"{row.beside!r} is not the row before this one; write this row directly after it"
            )
        elif isinstance(before.workload, Mix):
            problems.add(f"{path}.beside", f"{row.beside!r} sends a mix; give each of its parts a row")
        elif before.duration is None or before.rate is None or before.ttft is None:
            problems.add(
                f"{path}.beside",
                f"{row.beside!r} needs `rate`, `duration` and a `ttft` in `accept`, to see the effect of this load",
            )
        elif row.duration is not None and row.start + row.duration > before.duration:
            problems.add(
                path,
                f"ends {row.start + row.duration:g}s after the begin of {row.beside!r}, which is sent for {before.duration:g}s; "
                "shorten this row or lengthen that one",
            )


def _check_against(rows: Sequence[Row], problems: Problems) -> None:
    for index, row in enumerate(rows):
        if row.against is None:
            continue
        path = f"rows[{index}].against"
        other = next((other for other in rows[:index] if other.name == row.against and other.beside is None), None)
        if other is None:
            problems.add(path, f"{row.against!r} is no row before this one; name one that is not `beside` another")
        elif isinstance(row.workload, Mix) or isinstance(other.workload, Mix):
            problems.add(path, "compares requests of one kind, and one of both rows sends a mix; name its parts")
        elif (row.rate, row.concurrency) != (other.rate, other.concurrency):
            problems.add(path, f"{row.against!r} has another rate or concurrency; give both rows the same")

"""Sweeps of a target: requests, schedule and stop conditions."""

from math import inf
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, ValidationInfo, WithJsonSchema, field_validator

from prober.config.fields import (
    Block,
    Duration,
    Items,
    NamedSlo,
    NamedWorkload,
    NotNegative,
    OptionalDuration,
    Percent,
    Positive,
    PositiveCount,
    Rate,
    Workers,
    mistake,
    require,
)
from prober.measure.target_state import WarmUpLength
from prober.workload.built_in import BUILT_IN
from prober.workload.schedule import WEEK_MINUTES, WeeklySpan, due_minutes, parse_weekly_span, zone


def _span(value: object) -> WeeklySpan:
    if isinstance(value, WeeklySpan):
        return value
    return parse_weekly_span(value if isinstance(value, str) else repr(value))


WARM_UP = WarmUpLength(3, 20.0)  # of a scheduled sweep
Span = Annotated[WeeklySpan, PlainValidator(_span), WithJsonSchema({"type": "string"})]


class GuardSpec(Block):
    """Thresholds that end a sweep at once."""

    waiting: NotNegative | None = Field(
        None, description="requests in the engine's queue; absent: a wait of 1.4 TTFT thresholds, in mode gentle 0.35"
    )
    kv_cache: Percent = Field(0.98, description="usage of the KV cache")
    production_ttft: Duration | None = Field(
        None, description="TTFT that at most a tenth of the users' requests may exceed"
    )
    burn: Positive = Field(14.4, description="burn rate of the last 20 scheduled probes")


class LimitsSpec(Block):
    """Limits on what a sweep may use; None: no limit."""

    requests: PositiveCount | None = Field(None, description="most requests")
    tokens: PositiveCount | None = Field(None, description="prompt and output tokens")
    time: Duration = Field(600.0, description="longest time that it sends")
    cost: Positive | None = Field(None, description="most dollars, by `budget.price_per_million`")


MAX_SPREAD_S = 300.0
FACTORS = {"gentle": 1.15, "adaptive": 1.15, "grid": 1.1}  # ratio of consecutive rates, by mode
MOST_REQUESTS = 10_000  # of a sweep without a highest rate, so that a target without a limit costs no more
_TOO_LATE = f"{{:g}}s is above {MAX_SPREAD_S:g}s; a sweep that starts so late counts as missed"


class SweepSpec(Block):
    """Short sweeps of a target, with their schedule and limits."""

    schedule: Annotated[str, require(due_minutes, "")] | None = Field(
        None,
        description="cron expression of five fields, all of which must fit; days of the week by name, such as mon-fri; absent: on "
        "demand only",
    )
    timezone: Annotated[str, require(zone, "")] = Field("UTC", description="time zone of schedule and blackout")
    spread: Annotated[OptionalDuration, require(lambda s: s <= MAX_SPREAD_S, _TOO_LATE)] = Field(
        60.0,
        description="longest delay of a scheduled sweep; each prober and target has its own, so that replicas do not begin together",
    )
    mode: Literal["gentle", "adaptive", "grid"] = Field(
        "gentle", description="gentle ends before an SLO is breached, adaptive at the knee, grid takes fixed steps"
    )
    workload: NamedWorkload = Field(
        default_factory=lambda: BUILT_IN["probe"],
        description="workload to send; absent: requests like the users' own, by the histograms of lengths and the cached prompt "
        "tokens on the engine's page, in the same hour of the last 7 days (if few: of all the week, else since the engine's start); "
        "`probe` where the page has none",
        json_schema_extra={"default": "like the users' own"},
    )
    slos: Items[NamedSlo] = Field(
        (),
        description="SLOs to find the capacity for, `success` among them, and `quality` if answers of the workload are checked; "
        "absent: all on TTFT, TPOT, ITL and E2E",
    )
    min_rate: Rate = Field(
        1.0, description="first rate; in modes gentle and adaptive lower where a few requests fill the engine"
    )
    max_rate: Rate | None = Field(
        None, description="highest rate; absent: none, and the sweep ends after 10,000 requests (mode grid: at 50/s)"
    )
    rates: Items[Rate] = Field(
        (),
        description="mode grid: the rates to send, rising, such as [1/s, 2/s, 5/s]; absent: min_rate to max_rate by 10%",
    )
    step: Duration | None = Field(None, description="length of a stage; absent: 4s, in mode grid 60s")
    max_in_flight: PositiveCount = Field(2000, description="requests in flight at which the target counts as saturated")
    workers: Workers = Field(
        1,
        description="processes that send a sweep's requests; 1: the prober itself sends; auto: one per core but one",
    )
    min_gap: OptionalDuration = Field(
        21_600.0,
        description="shortest time from the start of a sweep to that of a scheduled one; with `--storage.path` or a lease also over "
        "restarts",
    )
    blackout: Items[Span] = Field((), description="times without sweeps, such as [Mon-Fri 08:00-20:00]")
    after_change: bool = Field(
        True,
        description="also sweep a minute after a change of engine, version, model, flags or size: within min_gap too, but at most once "
        "an hour; tried again each minute while it is refused",
    )
    demand_query: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="PromQL for the requests per second of users, such as 'sum(rate(gateway_requests_total[5m]))', evaluated by "
        "`prometheus.url`: their demand, without headroom as it has no tokens, and the load during a sweep if the engine's page does "
        "not count requests. Ranges of at most 5m, since the query may count requests of sweeps; absent: the engine's counters",
    )
    guard: GuardSpec = Field(default_factory=GuardSpec, description="thresholds that end a sweep at once")
    limits: LimitsSpec = Field(
        default_factory=LimitsSpec, description="limits of one sweep, beside the target's `budget`"
    )

    @property
    def lowest_rate(self) -> float:
        """Requests per second in the warm-up and the first stage."""
        return self.rates[0] if self.rates else self.min_rate

    @property
    def stage_s(self) -> float:
        """Planned duration of a stage, in seconds."""
        return self.step or (60.0 if self.mode == "grid" else 4.0)

    @property
    def highest_rate(self) -> float:
        """Requests per second in the last stage; infinite without a limit."""
        return self.rates[-1] if self.rates else self.max_rate or (50.0 if self.mode == "grid" else inf)

    @property
    def most_requests(self) -> float:
        """Largest number of requests; infinite without a limit."""
        return self.limits.requests or (MOST_REQUESTS if self.highest_rate == inf else inf)

    def after(self, rate_per_s: float) -> float | None:
        """Requests per second in the stage after one at `rate_per_s`; None after the highest."""
        if rate_per_s >= self.highest_rate * (1 - 1e-9):
            return None
        if self.rates:
            return next(rate for rate in self.rates if rate > rate_per_s)
        return min(self.highest_rate, rate_per_s * FACTORS[self.mode])

    @field_validator("max_rate")
    @classmethod
    def _check_rates(cls, max_rate: float | None, info: ValidationInfo) -> float | None:
        if max_rate is not None and max_rate < (min_rate := info.data.get("min_rate", 0.0)):
            raise mistake(f"{max_rate:g}/s is below min_rate ({min_rate:g}/s); raise it")
        return max_rate

    @field_validator("rates")
    @classmethod
    def _check_grid(cls, rates: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        if rates and info.data.get("mode", "grid") != "grid":
            raise mistake(
                f"only mode grid sends chosen rates, the mode is {info.data['mode']}; write grid, or remove them"
            )
        if list(rates) != sorted(set(rates)):
            raise mistake("must rise, each of them once")
        return rates

    @field_validator("blackout")
    @classmethod
    def _check_blackout(cls, blackout: tuple[WeeklySpan, ...], info: ValidationInfo) -> tuple[WeeklySpan, ...]:
        free = WEEK_MINUTES.difference(*(span.minutes for span in blackout))
        schedule = info.data.get("schedule")
        if not free:
            raise mistake("is the whole week, so that no sweep ever starts; leave some time, or remove `sweep`")
        if schedule is not None and not free & due_minutes(schedule):
            raise mistake(f"holds every time of the schedule {schedule!r}; leave one free, or change the schedule")
        return blackout

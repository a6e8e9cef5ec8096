"""The report of one result, or of several side by side: Markdown, one HTML file with charts, CSV.

    page = html([read(text, path)])

Everything is derived from the results; missing values are marked `unknown`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from prober.features.experiments.audit import audit
from prober.features.experiments.report import plots, stage_tables
from prober.features.experiments.report.document import (
    UNKNOWN,
    Cell,
    Code,
    Kind,
    Note,
    Section,
    Table,
    as_html,
    as_markdown,
)
from prober.features.experiments.report.plots import NamedResults
from prober.features.experiments.report.stage_tables import Row, TableOf, table_of
from prober.features.experiments.report.trade_offs import TRADE_OFFS_NOTE, changes, trade_offs
from prober.measure.objective import Slo, format_percent
from prober.measure.timeline import format_duration
from prober.results import conditions, cost
from prober.results.capacity import Capacity, binding, undecided, words
from prober.results.conditions import contracted
from prober.results.context import REPLICA_NOTE, disagreement_text, label
from prober.results.context import sentences as context_sentences
from prober.results.facets import FACETS
from prober.results.facts import CONTEXT_NAMES
from prober.results.result import CONTENT_AT_ONCE, LATENCIES, Result, Stage
from prober.results.stop_reason import ending


def markdown(results: Sequence[Result]) -> str:
    """The report without its charts."""
    return as_markdown(_title(results), _sections(_named(results)))


def html(results: Sequence[Result]) -> str:
    """The report as one HTML file that needs no network and no script."""
    return as_html(_title(results), _sections(_named(results)))


def _title(results: Sequence[Result]) -> str:
    models = dict.fromkeys(result.target.model or "unknown model" for result in results)
    kinds = dict.fromkeys(result.kind for result in results)
    return f"{' and '.join(kinds).capitalize()}: {', '.join(models)}"


def _named(results: Sequence[Result]) -> NamedResults:
    """The results with unique names."""
    ids = [result.id for result in results]
    return [
        (result.id if ids.count(result.id) == 1 else f"{result.id} ({position})", result)
        for position, result in enumerate(results, 1)
    ]


def _sections(results: NamedResults) -> list[Section]:
    def of_all(table: Callable[[Result], Table | None]) -> Table | None:
        """A single table for all results; if there are several, with the columns of all and a first column with the result's name."""
        tables = [(name, of_result) for name, result in results if (of_result := table(result)) is not None]
        if len(results) == 1 or not tables:
            return tables[0][1] if tables else None
        head = list(dict.fromkeys(column for _, of_result in tables for column in of_result.head))
        named = ((name, dict(zip(part.head, row, strict=True))) for name, part in tables for row in part.rows)
        return Table(["result", *head], [[name, *(cells.get(column, "–") for column in head)] for name, cells in named])

    def notes(sentences: Callable[[Result], Iterable[str]], *, lead: bool = False) -> list[Note]:
        """A note per sentence, which names its result if there are several."""
        return [
            Note(f"{name}: {sentence}" if len(results) > 1 else sentence, lead)
            for name, result in results
            for sentence in sentences(result)
        ]

    main = plots.main_curve(results)
    of_decisive = plots.decisive_latency(results)
    is_unread = not all(stage_tables.is_read(stage) for _, result in results for stage in result.stages)
    differences = dict.fromkeys(f"{result.tool}: {text}" for _, result in results for text in result.differs)
    is_of_replica = any(source.startswith("/") for _, result in results for source in result.context_sources.values())
    capacities, users, use = of_all(_CAPACITIES.table), of_all(_USERS.table), of_all(stage_tables.USE.table)
    sections = [
        Section(
            "Verdict",
            [
                *notes(lambda result: filter(None, [" ".join(_verdict(result))]), lead=True),
                *([capacities] if capacities else []),
                *([users] if users else []),
                *([main] if main else []),
            ],
        ),
        _section("Changes and trade-offs", *map(Note, changes(results)), trade_offs(results), Note(TRADE_OFFS_NOTE)),
        Section("Throughput against latency", plots.frontiers(results)),
        Section(
            "Cost", notes(lambda r: cost.sentences(r) if r.prices.gpu_per_hour is not None or r.decode_limit else ())
        ),
        Section(
            "Comparisons within the run",
            [
                Note(f"{name}, {stage.name}: {part.text()}." if len(results) > 1 else f"{stage.name}: {part.text()}.")
                for name, result in results
                for stage in result.stages
                for facet in FACETS
                for part in (() if facet.columns else facet.of(stage))
            ],
        ),
        _section("Parts of the load", *(of_all(partial(stage_tables.part, facet)) for facet in FACETS)),
        _section(
            "Repeats", stage_tables.capacities(results), stage_tables.repeats(results), Note(stage_tables.REPEATS_NOTE)
        ),
        _section(
            "Target and load",
            _by_result(results, _FACTS),
            of_all(stage_tables.SHAPES.table),
            stage_tables.apart(results),
        ),
        Section(
            "Context",
            [
                _by_result(results, _known_context(results)),
                *notes(context_sentences),
                *([Note(f"{REPLICA_NOTE[0].upper()}{REPLICA_NOTE[1:]}.")] if is_of_replica else []),
            ],
        ),
        Section("How it was measured", [_audits(results), *map(Note, differences)]),
    ]
    raw = [
        _section("Bad events by stage", of_all(_bad_events)),
        _section("Latency", of_all(stage_tables.latencies), Note(stage_tables.LATENCY_NOTE)),
        Section("Latency over load", plots.curves(results, [name for name in LATENCIES if name != of_decisive])),
        _section("Throughput", of_all(stage_tables.THROUGHPUT.table), Note(stage_tables.THROUGHPUT.note)),
        _section("Cost by stage", of_all(stage_tables.COSTS.table), Note(stage_tables.COSTS.note)),
        Section("Engine and GPUs", [*([use] if use else []), *([Note(stage_tables.USE.note)] if is_unread else [])]),
        _section("Outcomes", of_all(stage_tables.OUTCOMES.table)),
        Section("Distributions", plots.distributions(results)),
        Section("Over time", plots.timelines(results)),
        Section("Configuration", [Code(r.configuration) for _, r in results if r.configuration is not None]),
    ]
    sections += [replace(section, is_folded=True) for section in raw]
    return [section for section in sections if section.blocks]


def _section(title: str, *blocks: Table | Note | None) -> Section:
    """A section with the blocks that are not None; an empty section if all of them are notes."""
    present = [block for block in blocks if block is not None]
    return Section(title, present if any(not isinstance(block, Note) for block in present) else [])


def _verdict(result: Result) -> Iterator[str]:
    if result.decision is not None:
        yield f"{'Accepted' if result.decision.accepted else 'Rejected'}: {result.decision.why.rstrip('.')}."
        yield f"Rollback: {(result.decision.rollback_risk or 'its needs and risks are not stated').rstrip('.')}."
    if result.capacities or result.refused.is_too_many or result.shedding is not None:
        highest_per_s = _highest_rate(result)
        yield f"{result.capacity_words()}."
        if any(0 < highest_per_s < (capacity.estimate or 0) and not capacity.users for capacity in result.capacities):
            yield f"No rate above {highest_per_s:.3g}/s was sent: a knee above it is an extrapolation."
    first = binding(result.capacities)
    open_slos = undecided(result.capacities)
    if first is not None and (first.verdict == "below" or not open_slos):
        basis = "" if first.verdict == "below" or len(result.capacities) == 1 else ", by the estimates"
        yield f"The SLO {first.slo} gives way first{basis}."
    elif first is not None:
        yield f"Not enough data to judge {', '.join(open_slos)}, so the capacity at all SLOs is not known."
    if result.kind in ("run", "gate") and result.decision is None and result.stop_detail:
        yield f"Not decided: {result.stop_detail.rstrip('.')}."
    elif result.stop is not None:
        yield f"Why it ended: {ending(result.stop, result.stop_detail).rstrip('.')}."
    for sentence in stage_tables.contradictions(result):
        yield f"{sentence}."
    if result.content_came_at_once:
        yield f"{CONTENT_AT_ONCE}."
    if not result.slos:
        yield "There is no contract to judge it by: the result names no SLO."


def _highest_rate(result: Result) -> float:
    """Highest total rate of a stage; 0 if unknown."""
    return max((plots.rate_of(stage) or 0.0 for stage in result.stages), default=0.0)


def _meaning(capacity: Capacity, result: Result) -> str:
    if capacity.verdict == "found" and not capacity.users:
        highest_per_s, fit = _highest_rate(result), {"model": "engine model", "fractions": "shares of bad events"}
        is_beyond = 0 < highest_per_s < (capacity.estimate or 0)
        beyond = f"; an extrapolation, as no rate above {highest_per_s:.3g}/s was sent" if is_beyond else ""
        return f"an estimate of the knee by the {fit[capacity.fit]}{beyond}"
    return words([capacity]).removeprefix(capacity.slo).lstrip(": ")


_VERDICTS = {
    "found": Cell("estimated", "good"),
    "not_reached": Cell("not reached", "few"),
    "between": Cell("between", "few"),
    "below": Cell("below", "bad"),
    "not_enough_data": Cell("not enough data", "unknown"),
}
_CAPACITIES = TableOf(
    lambda result: ((capacity, result) for capacity in result.capacities if not capacity.users),
    {
        "SLO": lambda capacity, _: capacity.slo,
        "capacity": lambda capacity, _: _VERDICTS[capacity.verdict],
        "#lower /s": lambda capacity, _: capacity.lower,
        "#estimate /s": lambda capacity, _: capacity.estimate,
        "#upper /s": lambda capacity, _: capacity.upper,
        "#alone /s": lambda capacity, _: capacity.alone_per_s,
        "#interval": lambda capacity, _: f"{capacity.confidence:.0%}",
        "#requests": lambda capacity, _: capacity.samples,
        "meaning": _meaning,
    },
)
_USERS = TableOf(
    lambda result: ((capacity,) for capacity in result.capacities if capacity.users),
    {
        "SLO": lambda capacity: capacity.slo,
        "#users that fit": lambda capacity: capacity.lower,
        "#users that do not": lambda capacity: capacity.upper,
        "#requests": lambda capacity: capacity.samples,
    },
)


def _bad_events(result: Result) -> Table | None:
    """Table of each SLO's share of bad events by stage, without verdicts, as a verdict covers all stages."""

    def bad(slo: Slo, stage: Stage) -> Cell:
        events, bad_events = stage.slos.get(slo.name, (0, 0))
        if slo not in contracted(result, stage):
            return Cell("–")
        if not events:
            return Cell("no event", "unknown")
        return Cell(f"{100 * bad_events / events:.3g}% bad", "", f"{bad_events:,} of {events:,}")

    columns: dict[str, Callable[[Stage], Cell | str]] = {"stage": lambda stage: stage.name}
    for slo in result.slos:
        within = f" within {format_duration(slo.threshold_s)}" if slo.threshold_s is not None else ""
        columns[f"{slo.name}: {format_percent(slo.objective)} of {slo.signal}{within}"] = partial(bad, slo)
    return table_of(columns, ((stage,) for stage in result.stages)) if result.slos else None


Fact = Callable[[Result], Cell | str | None]  # None: unknown


def _by_result(results: NamedResults, facts: Mapping[str, Fact]) -> Table:
    """Table with a row per fact and a column per result. facts: {name: function that returns a result's value}"""
    rows: list[Row] = []
    for name, fact in facts.items():
        values = (fact(result) for _, result in results)
        rows.append([name, *(UNKNOWN if value is None else value for value in values)])
    return Table(["", *(name for name, _ in results)], rows)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _condition(name: str, result: Result) -> str | None:
    return conditions.FACTS[name](result, result.load)


_FACTS: Mapping[str, Fact] = {
    "measured by": lambda r: r.tool,
    "kind": lambda r: r.kind,
    "started": lambda r: (
        f"{datetime.fromtimestamp(r.started_unix_s, UTC):%Y-%m-%d %H:%M:%S} UTC" if r.started_unix_s > 1e6 else None
    ),
    "duration": lambda r: f"{r.ended_unix_s - r.started_unix_s:,.0f} s" if r.ended_unix_s > r.started_unix_s else None,
    **{name: partial(_condition, name) for name in conditions.FACTS},
    "requests in flight at most": lambda r: _text(r.load.max_in_flight),
    "seed": lambda r: _text(r.load.seed),
    "warm-up": lambda r: _text(r.warm_up),
}


def _known_context(results: NamedResults) -> dict[str, Fact]:
    """Context values known for at least one result, with source, or if sources disagree with all values."""

    def fact(name: str, result: Result) -> Cell | None:
        for disagreement in result.disagreements:
            if disagreement.name == name:
                return Cell(disagreement_text(disagreement), "bad")
        value, source = getattr(result.context, name), result.context_sources.get(name)
        return None if value is None else Cell(value, "", f"({source})" if source else "")

    def interference(result: Result) -> Cell | None:
        if result.interference is None:
            return None
        return Cell("; ".join(result.interference), "bad") if result.interference else Cell("none seen")

    names = [name for name in CONTEXT_NAMES if any(getattr(result.context, name) is not None for _, result in results)]
    return {label(name): partial(fact, name) for name in names} | {"interference": interference}


def _audits(results: NamedResults) -> Table:
    marks: dict[bool | None, tuple[str, Kind]]
    marks = {None: ("unknown", "unknown"), True: ("done", "good"), False: ("not done", "bad")}
    checklists = zip(*(audit(result) for _, result in results), strict=True)
    rows = [[checks[0].name, *(Cell(*marks[check.done], check.why) for check in checks)] for checks in checklists]
    return Table(["", *(name for name, _ in results)], rows)

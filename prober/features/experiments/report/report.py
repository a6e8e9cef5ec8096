"""The report of one result or of several side by side: Markdown, one HTML file with its charts, CSV.

    page = html([read(text, path)])

Everything in it is derived from the results; missing values are marked `unknown`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from prober.features.experiments.audit import audit
from prober.features.experiments.report import plots, stage_tables
from prober.features.experiments.report.document import UNKNOWN, Cell, Code, Note, Section, Table, as_html, as_markdown
from prober.features.experiments.report.plots import NamedResults
from prober.features.experiments.report.stage_tables import Row, number
from prober.features.experiments.report.trade_offs import TRADE_OFFS_NOTE, changes, trade_offs
from prober.measure.objective import Slo, format_percent
from prober.measure.timeline_text import format_duration
from prober.results import cost
from prober.results.capacity import Capacity, binding, undecided, words
from prober.results.conditions import contracted
from prober.results.context import REPLICA_NOTE, disagreement_text, label
from prober.results.context import sentences as context_sentences
from prober.results.facts import CONTEXT_NAMES
from prober.results.result import CONTENT_AT_ONCE, LATENCIES, Result, Stage, Use
from prober.results.stop_reason import ending


def markdown(results: Sequence[Result]) -> str:
    """The report without its charts."""
    return as_markdown(_title(results), _sections(_named(results)))


def html(results: Sequence[Result]) -> str:
    """The report as one file that needs no network and no script."""
    return as_html(_title(results), _sections(_named(results)))


def _title(results: Sequence[Result]) -> str:
    models = dict.fromkeys(result.target.model or "unknown model" for result in results)
    kinds = dict.fromkeys(result.kind for result in results)
    return f"{' and '.join(kinds).capitalize()}: {', '.join(models)}"


def _named(results: Sequence[Result]) -> NamedResults:
    """Results with names that tell them apart."""
    ids = [result.id for result in results]
    return [
        (result.id if ids.count(result.id) == 1 else f"{result.id} ({position})", result)
        for position, result in enumerate(results, 1)
    ]


def _sections(results: NamedResults) -> list[Section]:
    def of_all(table: Callable[[Result], Table | None]) -> Table | None:
        return _joined([(name, table(result)) for name, result in results])

    main = plots.main_curve(results)
    of_decisive = plots.decisive_latency(results)
    is_unread = any(stage.use == Use() for _, result in results for stage in result.stages)
    unread = [Note(stage_tables.USE_NOTE)] if is_unread else []
    differences = dict.fromkeys(f"{result.tool}: {text}" for _, result in results for text in result.differs)
    sections = [
        Section("Verdict", [*_decisions(results), *_present(of_all(_capacities)), *([main] if main else [])]),
        _section("Changes and trade-offs", *map(Note, changes(results)), trade_offs(results), Note(TRADE_OFFS_NOTE)),
        Section("Throughput against latency", plots.frontiers(results)),
        Section(
            "Cost",
            [
                Note(f"{name}: {sentence}" if len(results) > 1 else sentence)
                for name, result in results
                if result.prices.gpu_per_hour is not None or result.decode_limit
                for sentence in cost.sentences(result)
            ],
        ),
        Section("Comparisons within the run", _comparisons(results)),
        _section(
            "Parts of the load",
            of_all(stage_tables.series),
            of_all(stage_tables.reasoning),
            of_all(stage_tables.tool_calls),
        ),
        _section(
            "Repeats", stage_tables.capacities(results), stage_tables.repeats(results), Note(stage_tables.REPEATS_NOTE)
        ),
        _section("Target and load", _facts(results), of_all(stage_tables.shapes), stage_tables.apart(results)),
        Section("Context", [_context(results), *_context_notes(results)]),
        Section("How it was measured", [_audits(results), *map(Note, differences)]),
    ]
    raw = [
        _section("Bad events by stage", of_all(_bad_events)),
        _section("Latency", of_all(stage_tables.latencies), Note(stage_tables.LATENCY_NOTE)),
        Section("Latency over load", plots.curves(results, [name for name in LATENCIES if name != of_decisive])),
        _section("Throughput", of_all(stage_tables.throughput), Note(stage_tables.THROUGHPUT_NOTE)),
        _section("Cost by stage", of_all(stage_tables.costs), Note(stage_tables.COST_NOTE)),
        Section("Engine and GPUs", [*_present(of_all(stage_tables.use)), *unread]),
        _section("Outcomes", of_all(stage_tables.outcomes)),
        Section("Distributions", plots.distributions(results)),
        Section("Over time", plots.timelines(results)),
        Section("Configuration", [Code(r.configuration) for _, r in results if r.configuration is not None]),
    ]
    sections += [replace(section, is_folded=True) for section in raw]
    return [section for section in sections if section.blocks]


def _joined(tables: Sequence[tuple[str, Table | None]]) -> Table | None:
    """Table of all results, with the result's name as first column if there are several."""
    present = [(name, table) for name, table in tables if table is not None]
    if not present:
        return None
    if len(tables) == 1:
        return present[0][1]
    rows = [[name, *row] for name, table in present for row in table.rows]
    return Table(["result", *present[0][1].head], rows)


def _section(title: str, *blocks: Table | Note | None) -> Section:
    """A section without blocks that are None; empty if only notes remain."""
    present = [block for block in blocks if block is not None]
    return Section(title, present if any(not isinstance(block, Note) for block in present) else [])


def _present(*tables: Table | None) -> list[Table]:
    return [table for table in tables if table is not None]


def _comparisons(results: NamedResults) -> list[Note]:
    """A load beside a stage, first uses of adapters, and stages that are compared with each other."""
    return [
        Note(f"{name}, {stage.name}: {part.text()}." if len(results) > 1 else f"{stage.name}: {part.text()}.")
        for name, result in results
        for stage in result.stages
        for part in (stage.disturbance, stage.adapters, stage.contrast)
        if part is not None
    ]


def _decisions(results: NamedResults) -> list[Note]:
    return [
        Note(f"{name}: {text}" if len(results) > 1 else text, lead=True)
        for name, result in results
        if (text := " ".join(_sentences(result)))
    ]


def _sentences(result: Result) -> Iterator[str]:
    if result.decision is not None:
        yield f"{'Accepted' if result.decision.accepted else 'Rejected'}: {result.decision.why.rstrip('.')}."
        yield f"Rollback: {(result.decision.rollback_risk or 'its needs and risks are not stated').rstrip('.')}."
    if result.capacities or result.refused.is_too_many:
        yield _answer(result)
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


def _answer(result: Result) -> str:
    """The capacities, and whether they are beyond what was sent."""
    highest_per_s = _highest_rate(result)
    is_beyond = any(0 < highest_per_s < (c.estimate or 0) for c in result.capacities)
    beyond = f" No rate above {highest_per_s:.3g}/s was sent: a knee above it is an extrapolation." if is_beyond else ""
    return f"{result.capacity_words()}.{beyond}"


def _highest_rate(result: Result) -> float:
    """Highest total rate of a stage; 0 if none is known."""
    return max((plots.rate_of(stage) or 0.0 for stage in result.stages), default=0.0)


def _capacities(result: Result) -> Table | None:
    if not result.capacities:
        return None
    rows: list[Row] = [
        [
            capacity.slo,
            _VERDICTS[capacity.verdict],
            number(capacity.lower),
            number(capacity.estimate),
            number(capacity.upper),
            number(capacity.own.per_s if capacity.own is not None else None),
            f"{capacity.confidence:.0%}",
            f"{capacity.samples:,}",
            _meaning(capacity, result),
        ]
        for capacity in result.capacities
    ]
    head = [
        "SLO",
        "capacity",
        "#lower /s",
        "#estimate /s",
        "#upper /s",
        "#alone /s",
        "#interval",
        "#requests",
        "meaning",
    ]
    return Table(head, rows)


_VERDICTS = {
    "found": Cell("estimated", "good"),
    "not_reached": Cell("not reached", "few"),
    "between": Cell("between", "few"),
    "below": Cell("below", "bad"),
    "not_enough_data": Cell("not enough data", "unknown"),
}


def _meaning(capacity: Capacity, result: Result) -> str:
    if capacity.verdict == "not_reached":
        return f"it holds at {capacity.lower or 0:.3g}/s, as its events show; no knee was reached"
    if capacity.verdict == "below":
        return f"it fails at {capacity.upper or 0:.3g}/s, and no lower rate is shown to hold"
    if capacity.verdict == "found":
        highest_per_s = _highest_rate(result)
        is_beyond = 0 < highest_per_s < (capacity.estimate or 0)
        beyond = f"; an extrapolation, as no rate above {highest_per_s:.3g}/s was sent" if is_beyond else ""
        return f"an estimate of the knee by the {_FITS[capacity.fit]}{beyond}"
    return words([capacity]).removeprefix(f"{capacity.slo}: ")


_FITS = {"model": "engine model", "fractions": "shares of bad events"}


def _bad_events(result: Result) -> Table | None:
    """The events of each SLO by stage. They are judged once: in the verdict."""
    if not result.slos or not result.stages:
        return None
    rows: list[Row] = [[stage.name, *(_bad(slo, stage, result) for slo in result.slos)] for stage in result.stages]
    return Table(["stage", *(_objective(slo) for slo in result.slos)], rows)


def _objective(slo: Slo) -> str:
    within = f" within {format_duration(slo.threshold_s)}" if slo.threshold_s is not None else ""
    return f"{slo.name}: {format_percent(slo.objective)} of {slo.signal}{within}"


def _bad(slo: Slo, stage: Stage, result: Result) -> Cell:
    events, bad = stage.slos.get(slo.name, (0, 0))
    if slo not in contracted(result, stage):
        return Cell("–")
    return (
        Cell(f"{100 * bad / events:.3g}% bad", "", f"{bad:,} of {events:,}") if events else Cell("no event", "unknown")
    )


def _facts(results: NamedResults) -> Table:
    facts = ((label, [fact(result) for _, result in results]) for label, fact in _FACTS)
    rows: list[Row] = [[label, *(UNKNOWN if text is None else text for text in texts)] for label, texts in facts]
    return Table(["", *(name for name, _ in results)], rows)


def _utc_time(unix_s: float) -> str | None:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if unix_s > 1e6 else None


def _settings(values: object) -> str | None:
    if not isinstance(values, dict) or not values:
        return None
    return ", ".join(f"{key}={value}" for key, value in values.items())


_FACTS: tuple[tuple[str, Callable[[Result], str | None]], ...] = (
    ("measured by", lambda r: r.tool),
    ("kind", lambda r: r.kind),
    ("started", lambda r: _utc_time(r.started_unix_s)),
    (
        "duration",
        lambda r: f"{r.ended_unix_s - r.started_unix_s:,.0f} s" if r.ended_unix_s > r.started_unix_s else None,
    ),
    ("target", lambda r: r.target.url),
    ("model", lambda r: r.target.model),
    ("engine", lambda r: " ".join(filter(None, (r.target.engine, r.target.engine_version))) or None),
    ("engine's flags", lambda r: _settings(dict(r.target.flags))),
    ("API", lambda r: r.target.api),
    ("workload", lambda r: r.load.workload),
    ("prompt tokens", lambda r: r.load.prompt_tokens),
    ("output tokens", lambda r: r.load.output_tokens),
    ("data set", lambda r: r.load.dataset),
    ("sampling", lambda r: _settings(dict(r.load.sampling)) if r.load.sampling is not None else None),
    ("arrivals", lambda r: r.load.arrivals),
    ("requests in flight at most", lambda r: str(r.load.max_in_flight) if r.load.max_in_flight is not None else None),
    ("seed", lambda r: str(r.load.seed) if r.load.seed is not None else None),
    ("warm-up", lambda r: str(r.warm_up) if r.warm_up is not None else None),
    ("repeats of each rate", lambda r: str(r.repeats)),
)


def _context(results: NamedResults) -> Table:
    """The facts that at least one result knows, each with its source, or with all values where sources disagree."""
    names = [name for name in CONTEXT_NAMES if any(getattr(result.context, name) is not None for _, result in results)]
    rows: list[Row] = [[label(name), *(_fact(name, result) for _, result in results)] for name in names]
    rows.append(["interference", *(_interference(result) for _, result in results)])
    return Table(["", *(name for name, _ in results)], rows)


def _fact(name: str, result: Result) -> Cell:
    for disagreement in result.disagreements:
        if disagreement.name == name:
            return Cell(disagreement_text(disagreement), "bad")
    value = getattr(result.context, name)
    source = result.context_sources.get(name)
    return UNKNOWN if value is None else Cell(value, "", f"({source})" if source else "")


def _context_notes(results: NamedResults) -> list[Note]:
    notes = [
        Note(f"{name}: {sentence}" if len(results) > 1 else sentence)
        for name, result in results
        for sentence in context_sentences(result)
    ]
    sources = {source for _, result in results for source in result.context_sources.values()}
    if any(source.startswith("/") for source in sources):
        notes.append(Note(f"{REPLICA_NOTE[0].upper()}{REPLICA_NOTE[1:]}."))
    return notes


def _interference(result: Result) -> Cell:
    if result.interference is None:
        return UNKNOWN
    return Cell("; ".join(result.interference), "bad") if result.interference else Cell("none seen")


def _audits(results: NamedResults) -> Table:
    audits = [audit(result) for _, result in results]
    rows: list[Row] = [
        [checks[0].name, *(_check(check.done, check.why) for check in checks)] for checks in zip(*audits, strict=True)
    ]
    return Table(["", *(name for name, _ in results)], rows)


def _check(done: bool | None, why: str) -> Cell:
    if done is None:
        return Cell("unknown", "unknown", why)
    return Cell("done", "good", why) if done else Cell("not done", "bad", why)

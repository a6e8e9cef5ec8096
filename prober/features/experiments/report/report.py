"""The report of one result or of several side by side: Markdown, one HTML file with its charts, CSV.

    page = html([read(text, path)])

Everything in it is derived from the results; what nobody knows is marked `unknown`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime

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
from prober.features.experiments.report.stage_tables import Row, number
from prober.measure.objective import Slo, format_percent
from prober.measure.timeline_text import format_duration
from prober.results.capacity import Capacity, binding, words
from prober.results.conditions import contracted
from prober.results.result import Context, Result, Use
from prober.results.verdict import StageSlo, State, stage_slos

Named = list[tuple[str, Result]]
LABELS = {
    "gpu": "GPU",
    "gpu_count": "GPUs",
    "gpu_memory": "GPU memory",
    "cuda": "CUDA",
    "cpu": "CPU",
    "host_ram": "host RAM",
    "max_batch": "largest batch",
}


def markdown(results: Sequence[Result]) -> str:
    """The report without its charts."""
    return as_markdown(_title(results), _sections(_named(results)))


def html(results: Sequence[Result]) -> str:
    """The report as one file that needs no network and no script."""
    return as_html(_title(results), _sections(_named(results)))


def _title(results: Sequence[Result]) -> str:
    models = dict.fromkeys(each.target.model or "unknown model" for each in results)
    kinds = dict.fromkeys(each.kind for each in results)
    return f"{' and '.join(kinds).capitalize()}: {', '.join(models)}"


def _named(results: Sequence[Result]) -> Named:
    """Results with names that tell them apart."""
    names = [each.id for each in results]
    return [
        (name if names.count(name) == 1 else f"{name} ({place})", each)
        for place, (name, each) in enumerate(zip(names, results, strict=True), 1)
    ]


def _sections(results: Named) -> list[Section]:
    several = len(results) > 1

    def each(table: Callable[[Result], Table | None]) -> Table | None:
        """One table of all results, with their names in front if there are several."""
        found = [(name, made) for name, result in results if (made := table(result)) is not None]
        if not found:
            return None
        if not several:
            return found[0][1]
        return Table(["result", *found[0][1].head], [[name, *row] for name, made in found for row in made.rows])

    def section(title: str, *blocks: Table | Note | Code | None) -> Section:
        kept = [block for block in blocks if block is not None]
        return Section(title, kept if any(not isinstance(block, Note) for block in kept) else [])

    found = [
        Section("Verdict", [*_decisions(results), *_tables(each(_capacities), each(_contract))]),
        section("What was measured", _facts(results), each(stage_tables.shapes), _apart(results)),
        Section("Load and latency", [*plots.curves(results), *plots.frontiers(results)]),
        section("Latency", each(stage_tables.latencies), Note(stage_tables.LATENCY_NOTE)),
        section("Throughput", each(stage_tables.throughput), Note(stage_tables.THROUGHPUT_NOTE)),
        Section("What engine and GPUs said", [*_tables(each(stage_tables.use)), *_unread(results)]),
        section("Outcomes", each(stage_tables.outcomes)),
        section("Cost", each(stage_tables.costs), Note(stage_tables.COST_NOTE)),
        section(
            "Repeats", stage_tables.capacities(results), stage_tables.repeats(results), Note(stage_tables.REPEATS_NOTE)
        ),
        Section("Distributions", plots.distributions(results)),
        Section("Over time", plots.timelines(results)),
        section("Context", _context(results)),
        Section("How it was measured", [_audits(results), *_differences(results)]),
        Section("Configuration", [Code(r.configuration) for _, r in results if r.configuration is not None]),
    ]
    return [each for each in found if each.blocks]


def _tables(*tables: Table | None) -> list[Table]:
    return [each for each in tables if each is not None]


def _unread(results: Named) -> list[Note]:
    unread = any(each.use == Use() for _, result in results for each in result.stages)
    return [Note(stage_tables.USE_NOTE)] if unread else []


def _apart(results: Named) -> Note | None:
    why = stage_tables.apart(results)
    return Note(why) if why is not None else None


def _decisions(results: Named) -> list[Note]:
    return [
        Note(f"{name}: {said}" if len(results) > 1 else said, lead=True)
        for name, result in results
        if (said := " ".join(_decided(result)))
    ]


def _decided(result: Result) -> Iterator[str]:
    if result.decision is not None:
        yield f"{'Accepted' if result.decision.accepted else 'Rejected'}: {result.decision.why.rstrip('.')}."
        yield f"Rollback risk: {(result.decision.rollback_risk or 'unknown').rstrip('.')}."
    first = binding(result.capacities)
    if first is not None:
        yield f"The SLO {first.slo} gives way first."
    if result.stop is not None:
        yield f"Why it ended: {result.stop}{f', {result.stop_detail}' if result.stop_detail else ''}."
    if not result.slos:
        yield "There is no contract to judge it by: the result names no SLO."


def _capacities(result: Result) -> Table | None:
    if not result.capacities:
        return None
    rows: list[Row] = [
        [
            each.slo,
            _VERDICTS[each.verdict],
            number(each.lower),
            number(each.estimate),
            number(each.upper),
            number(each.tokens_per_s),
            f"{each.confidence:.0%}",
            f"{each.samples:,}",
            _held(each),
        ]
        for each in result.capacities
    ]
    head = [
        "SLO",
        "capacity",
        "#lower /s",
        "#estimate /s",
        "#upper /s",
        "#tokens/s",
        "#interval",
        "#requests",
        "meaning",
    ]
    return Table(head, rows)


_VERDICTS = {
    "found": Cell("found", "good"),
    "not_reached": Cell("not reached", "few"),
    "below_lowest": Cell("below the lowest rate", "bad"),
    "not_enough_data": Cell("not enough data", "unknown"),
}


def _held(each: Capacity) -> str:
    if each.verdict == "not_reached":
        return f"it holds at {each.lower or 0:.3g}/s, as its events show; no knee was reached"
    if each.verdict == "below_lowest":
        return f"it failed at the lowest rate, {each.upper or 0:.3g}/s"
    if each.verdict == "found":
        return f"it holds up to about {each.estimate or 0:.3g}/s, by the {_FITS[each.fit]}"
    return words([each]).removeprefix(f"{each.slo}: ")


_FITS = {"model": "engine model", "fractions": "shares of bad events"}


def _contract(result: Result) -> Table | None:
    judged = stage_slos(result)
    if not result.slos or not judged:
        return None
    head = ["stage", *(_promise(slo) for slo in result.slos)]
    rows: list[Row] = []
    for stage, found in judged:
        held = contracted(result, stage)
        rows.append([stage.name, *(_kept(each) if each.slo in held else "–" for each in found)])
    return Table(head, rows)


def _promise(slo: Slo) -> str:
    within = f" within {format_duration(slo.threshold_s)}" if slo.threshold_s is not None else ""
    return f"{slo.name}: {format_percent(slo.objective)} of {slo.signal}{within}"


def _kept(found: StageSlo) -> Cell:
    if found.good_ratio is None:
        return Cell("no data", "unknown")
    return Cell(found.state, _KINDS[found.state], f"{found.good_ratio * 100:.4g}% of {found.events:,}")


_KINDS: dict[State, Kind] = {"met": "good", "missed": "bad", "undecided": "few", "no_data": "unknown"}


def _facts(results: Named) -> Table:
    rows: list[Row] = [[label, *(_cell(tell(result)) for _, result in results)] for label, tell in _FACTS]
    return Table(["", *(name for name, _ in results)], rows)


def _when(unix_s: float) -> str | None:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if unix_s > 1e6 else None


def _settings(values: object) -> str | None:
    if not isinstance(values, dict) or not values:
        return None
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _warm_up(result: Result) -> str | None:
    if result.warm_up is None:
        return None
    seconds = f" in {result.warm_up.seconds:.3g} s" if result.warm_up.seconds is not None else ""
    return f"{result.warm_up.requests:,} requests{seconds}"


_FACTS: tuple[tuple[str, Callable[[Result], str | None]], ...] = (
    ("measured by", lambda r: r.tool),
    ("kind", lambda r: r.kind),
    ("started", lambda r: _when(r.started_unix_s)),
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
    ("warm-up", _warm_up),
    ("repeats of each rate", lambda r: str(r.repeats)),
)


def _context(results: Named) -> Table:
    rows: list[Row] = [
        [
            LABELS.get(each.name, each.name.replace("_", " ")),
            *(_cell(getattr(result.context, each.name)) for _, result in results),
        ]
        for each in fields(Context)
    ]
    rows.append(["interference", *(_interference(result) for _, result in results)])
    return Table(["", *(name for name, _ in results)], rows)


def _interference(result: Result) -> Cell:
    if result.interference is None:
        return UNKNOWN
    return Cell("; ".join(result.interference), "bad") if result.interference else Cell("none seen")


def _audits(results: Named) -> Table:
    found = [audit(result) for _, result in results]
    rows: list[Row] = [
        [checks[0].name, *(_checked(each.done, each.why) for each in checks)] for checks in zip(*found, strict=True)
    ]
    return Table(["", *(name for name, _ in results)], rows)


def _checked(done: bool | None, why: str) -> Cell:
    return (
        Cell("unknown", "unknown", why)
        if done is None
        else Cell("done", "good", why)
        if done
        else Cell("not done", "bad", why)
    )


def _differences(results: Named) -> list[Note]:
    told = dict.fromkeys((result.tool, text) for _, result in results for text in result.differs)
    return [Note(f"{tool}: {text}") for tool, text in told]


def _cell(value: str | None) -> Cell | str:
    return UNKNOWN if value is None else value

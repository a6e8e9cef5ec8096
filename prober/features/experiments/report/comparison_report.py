"""The report of a comparison: a table a rate, and beside it what the figures do not say."""

from collections.abc import Sequence
from datetime import UTC, datetime

from prober.features.experiments.report.document import UNKNOWN, Cell, Code, Note, Section, Table, as_html, as_markdown
from prober.measure.timeline_text import format_duration
from prober.results.comparison import Compared, Comparison
from prober.statistics.quantiles import Quantile

HEAD = ("A", "B", "B against A", "95% interval", "p", "better")
P_NOTE = "p is corrected for the number of axes (Holm). *: too few samples for this quantile by itself."


def markdown(comparisons: Sequence[Comparison]) -> str:
    """One after the other."""
    return "\n".join(as_markdown(_title(each), _sections(each)) for each in comparisons)


def html(comparisons: Sequence[Comparison]) -> str:
    """The same as one file that needs no network and no script."""
    title = _title(comparisons[0]) if len(comparisons) == 1 else f"{len(comparisons)} comparisons"
    found = [
        Section(section.title if len(comparisons) == 1 else f"{each.id}: {section.title}", section.blocks)
        for each in comparisons
        for section in _sections(each)
    ]
    return as_html(title, found)


def by_rate(compared: Sequence[Compared]) -> list[tuple[str, list[Compared]]]:
    """The axes of each rate and workload, under a heading such as `at 4/s`."""
    groups: dict[str, list[Compared]] = {}
    for each in compared:
        of_it = f"{each.workload} " if each.workload else ""
        groups.setdefault(f"{of_it}at {each.rate_per_s:g}/s", []).append(each)
    return list(groups.items())


def cells(each: Compared) -> tuple[str, ...]:
    """An axis and its figures, under HEAD."""
    unit = "%" if each.ratio else " points"
    interval = "–"
    if each.lower is not None and each.upper is not None:
        interval = f"{100 * each.lower:+.1f} to {100 * each.upper:+.1f}{unit}"
    return (
        each.axis,
        _quantile(each.a),
        _quantile(each.b),
        f"{100 * each.effect:+.1f}{unit}",
        interval,
        f"{each.p_adjusted:.2g}",
        each.better.upper() if each.better else "–",
    )


def _title(found: Comparison) -> str:
    return f"A: {found.a.url or found.a.model or 'unknown'}, B: {found.b.url or found.b.model or 'unknown'}"


def _sections(found: Comparison) -> list[Section]:
    tables = [Table([heading, *HEAD], [cells(each) for each in rows]) for heading, rows in by_rate(found.compared)]
    context = [
        Table(["", "A", "B"], [(what, one or UNKNOWN, other or UNKNOWN) for what, one, other in found.differs])
        if found.differs
        else Note("Engine, version, flags and model are the same on both sides, as far as they tell.")
    ]
    configuration = [Code(found.configuration)] if found.configuration is not None else []
    sections = [
        Section("Figures", [*tables, *([Note(P_NOTE)] if tables else [])]),
        Section("What they do not say", [Note(each, lead=True) for each in found.said]),
        Section("What differs", context),
        Section("How it was measured", [_facts(found), *configuration]),
    ]
    return [each for each in sections if each.blocks]


def _facts(found: Comparison) -> Table:
    rows: list[tuple[str, str | Cell]] = [
        ("measured by", found.tool),
        ("started", datetime.fromtimestamp(found.started_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")),
        ("any claim errs with", f"{found.error:.3g}"),
    ]
    if found.load is not None:
        told = {"workload": found.load.workload, "prompt tokens": found.load.prompt_tokens}
        told |= {"output tokens": found.load.output_tokens, "arrivals": found.load.arrivals}
        rows += [(what, UNKNOWN if text is None else text) for what, text in told.items()]
    return Table(["", found.id], rows)


def _quantile(found: Quantile | None) -> str:
    return "" if found is None else format_duration(found.estimate) + ("" if found.has_enough_samples else "*")

"""Report of comparisons: verdict, one table per rate, risk of either choice, and limits of the figures."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

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
from prober.results.comparison import Compared, Comparison, Risk, amount, margins, rollback_sentence
from prober.results.stage_parts import quantile_text
from prober.statistics.sequential_test import Evidence

HEAD = ("A", "B", "B against A", "95% interval", "p", "better")
P_NOTE = (
    "A and B are of all requests, B against A is the typical difference of a round: the two may disagree. "
    "p is corrected for the number of axes (Holm). *: too few samples for this quantile by itself."
)


def markdown(comparisons: Sequence[Comparison]) -> str:
    """All comparisons in Markdown."""
    return "\n".join(as_markdown(_title(comparison), _sections(comparison)) for comparison in comparisons)


def html(comparisons: Sequence[Comparison]) -> str:
    """All comparisons as one HTML file that needs no network and no script."""
    title = _title(comparisons[0]) if len(comparisons) == 1 else f"{len(comparisons)} comparisons"
    sections = [
        Section(section.title if len(comparisons) == 1 else f"{comparison.id}: {section.title}", section.blocks)
        for comparison in comparisons
        for section in _sections(comparison)
    ]
    return as_html(title, sections)


def by_rate(compared: Sequence[Compared]) -> list[tuple[str, list[Compared]]]:
    """Group the compared axes by rate and workload: (heading such as `at 4/s`, axes)."""
    groups: dict[str, list[Compared]] = {}
    for axis in compared:
        workload = f"{axis.workload} " if axis.workload else ""
        groups.setdefault(f"{workload}at {axis.rate_per_s:g}/s", []).append(axis)
    return list(groups.items())


def cells(axis: Compared) -> tuple[str, ...]:
    """An axis's cells in the comparison table, for the columns of HEAD."""
    unit = "%" if axis.ratio else " points"
    interval = "–"
    if axis.lower is not None and axis.upper is not None:
        interval = f"{100 * axis.lower:+.1f} to {100 * axis.upper:+.1f}{unit}"
    return (
        axis.axis,
        "" if axis.a is None else quantile_text(axis.a),
        "" if axis.b is None else quantile_text(axis.b),
        f"{100 * axis.effect:+.1f}{unit}",
        interval,
        f"{axis.p_adjusted:.2g}",
        axis.better.upper() if axis.better else "–",
    )


def _title(comparison: Comparison) -> str:
    return f"A: {comparison.a.url or comparison.a.model or 'unknown'}, B: {comparison.b.url or comparison.b.model or 'unknown'}"


def _sections(comparison: Comparison) -> list[Section]:
    head = [*(f"#{name}" for name in HEAD[:-1]), HEAD[-1]]
    tables = [Table([heading, *head], [cells(axis) for axis in axes]) for heading, axes in by_rate(comparison.compared)]
    context = [
        Table(["", "A", "B"], [(name, a or UNKNOWN, b or UNKNOWN) for name, a, b in comparison.differs])
        if comparison.differs
        else Note("Engine, version, flags and model are the same on both sides, as far as they tell.")
    ]
    configuration = [Code(comparison.configuration)] if comparison.configuration is not None else []
    sections = [
        Section("Verdict", [Note(text, lead=True) for text in _verdict(comparison)]),
        Section("Figures", [*tables, *([Note(P_NOTE)] if tables else [])]),
        Section("Risk and rollback", _risks(comparison)),
        Section("Per GPU and per dollar", [Note(_sentence(text)) for text in comparison.shares]),
        Section("Limits of the figures", [Note(_sentence(text)) for text in comparison.remarks]),
        Section("Differences", context),
        Section("How it was measured", [_facts(comparison), *configuration]),
    ]
    return [section for section in sections if section.blocks]


def _verdict(comparison: Comparison) -> Iterator[str]:
    """Sentences about the axes on which a side is better, and those without a significant difference."""
    if not comparison.compared:
        why = "; ".join(comparison.not_judged)
        yield f"Not judged: {why}." if why else "The two sides do not compare."
        return
    for side in ("a", "b"):
        if better := [axis for axis in comparison.compared if axis.better == side]:
            texts = (f"{axis.place} ({cells(axis)[3]} from A to B)" for axis in better)
            yield f"{side.upper()} is better in {', '.join(texts)}."
    if even := [axis.place for axis in comparison.compared if axis.better is None]:
        yield f"No difference is shown in {', '.join(even)}."
    yield from (_sentence(row.text()) for row in comparison.answers)
    of_answers = " for the axes, and as much for the answers" if comparison.answers else ""
    yield f"Where there is no difference at all, one is claimed with a chance of at most {amount(comparison.error)}{of_answers}."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _risks(comparison: Comparison) -> list[Table | Note]:
    """Table of risks (a row per axis, a column per move), and notes on what a rollback needs."""
    by_axis: dict[str, dict[str, Risk]] = {}
    for risk in comparison.risks:
        by_axis.setdefault(risk.place, {})[risk.move] = risk
    if not by_axis:
        return []
    rows = [(axis, _worsening(moves["adopt"]), _worsening(moves["go_back"])) for axis, moves in by_axis.items()]
    return [
        Table(["worse by at most the margin", "adopting B", "rollback to A"], rows),
        Note(
            f"In brackets the interval of the worsening; a negative one is an improvement. The margin is {margins(comparison.risks)}. "
            f"All intervals of this table together err with at most {amount(comparison.error)}."
        ),
        Note(rollback_sentence(comparison), lead=True),
    ]


def _worsening(risk: Risk) -> Cell:
    kinds: dict[Evidence, Kind] = {"fails": "bad", "holds": "good", "undecided": "few"}
    return Cell(risk.evidence, kinds[risk.evidence], f"[{risk.interval()}]")


def _facts(comparison: Comparison) -> Table:
    rows: list[tuple[str, str | Cell]] = [
        ("measured by", comparison.tool),
        ("started", datetime.fromtimestamp(comparison.started_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")),
        ("any claim of a difference errs with", amount(comparison.error)),
    ]
    if comparison.load is not None:
        load = {
            "workload": comparison.load.workload,
            "prompt tokens": comparison.load.prompt_tokens,
            "output tokens": comparison.load.output_tokens,
            "arrivals": comparison.load.arrivals,
        }
        rows += [(name, UNKNOWN if text is None else text) for name, text in load.items()]
    return Table(["", comparison.id], rows)

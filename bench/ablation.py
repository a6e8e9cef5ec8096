"""Which constants and branches does a method need? Each is changed alone, and judged by the same recorded inputs.

    python -m bench.ablation SUBJECT [--only CHANGE]... [--set DOTTED.NAME=VALUE]... [--folder FOLDER] [--processes N] [--traces FOLDER]

A subject has inputs with a known truth, which are recorded once into the folder, rows that judge its answers, and a list of changes.
The program prints each row without and with a change, and whether they differ by more than their noise: the 90% interval of the
difference over random samples of the same cases (bootstrap, paired). A change that moves no row is a constant or a branch that
nothing here needs. `--set` changes a constant by its dotted name, such as `prober.features.capacity.fitting.BLOCK_S=8`.
The change "another seed" changes nothing but random numbers: how far it moves a row is luck.
"""

import argparse
import ast
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import Pool
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any, NamedTuple
from unittest.mock import patch

from bench.report import part, percentile, show

SAMPLES, LEVEL = 2_000, 0.9  # of the bootstrap
Figures = dict[str, float]


class Row(NamedTuple):
    """A row: a statistic of one figure over the cases that have it."""

    title: str
    figure: str
    statistic: Callable[[Sequence[float]], float]


class Change(NamedTuple):
    """A change. values: {dotted name of a constant or function: what takes its place}"""

    name: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """A method whose constants and branches are changed.

    cases: record the inputs into a folder where they are missing (second argument: folder of production traces, None: none), and
        return the cases, which can be pickled and have a name as text
    figures: figures of a case by the program as it is now
    """

    cases: Callable[[Path, Path | None], Sequence[Any]]
    figures: Callable[[Any], Figures]
    rows: Sequence[Row]
    changes: Sequence[Change]


def rows_of(figure: str) -> tuple[Row, ...]:
    """The rows of an error."""
    return (
        Row(f"{figure}, median", figure, median),
        Row(f"{figure}, p90", figure, lambda values: percentile(values, 0.9)),
        Row(f"{figure}, mean", figure, fmean),
    )


@contextmanager
def changed(values: Mapping[str, Any]) -> Iterator[None]:
    """Replace constants and functions by their dotted names, in every module that imported them."""
    with ExitStack() as stack:
        for dotted, value in values.items():
            home, _, name = dotted.rpartition(".")
            before = getattr(import_module(home), name)
            for module in list(sys.modules.values()):
                if module.__name__.startswith(("prober.", "bench.")) and getattr(module, name, None) is before:
                    stack.enter_context(patch.object(module, name, value))
        yield


def judged(subject: Subject, cases: Sequence[Any], change: Change, processes: int) -> dict[str, Figures]:
    """{case: figures} with a change. The processes are started after it."""
    with changed(change.values), Pool(processes) as pool:
        return dict(zip(map(str, cases), pool.imap(subject.figures, cases), strict=True))


def compared(rows: Sequence[Row], base: Mapping[str, Figures], other: Mapping[str, Figures]) -> list[dict[str, Any]]:
    """The rows without and with a change, and the interval of their difference."""
    rng, names = Random(0), [name for name in base if name in other]
    samples = [rng.choices(names, k=len(names)) for _ in range(SAMPLES)]
    results = []
    for row in rows:

        def statistic(figures: Mapping[str, Figures], chosen: Sequence[str], row: Row = row) -> float | None:
            values = [figures[name][row.figure] for name in chosen if row.figure in figures[name]]
            return row.statistic(values) if values else None

        without, with_change = statistic(base, names), statistic(other, names)
        pairs = [(statistic(base, sample), statistic(other, sample)) for sample in samples]
        differences = sorted(after - before for before, after in pairs if before is not None and after is not None)
        if without is None or with_change is None or not differences:
            continue
        bounds = [differences[round(q * (len(differences) - 1))] for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)]
        results.append(
            {
                "row": row.title,
                "without": round(without, 4),
                "with": round(with_change, 4),
                "difference": [round(bound, 4) for bound in bounds],
                "moved": bounds[0] > 0 or bounds[1] < 0,
            }
        )
    return results


def saved(path: Path) -> dict[str, dict[str, Figures]]:
    """{change: {case: figures}} of earlier runs with this folder."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {line["change"]: line["figures"] for line in lines}


def subjects() -> dict[str, Subject]:
    """The subjects by name."""
    from bench import ablated_detection, ablated_sweeps

    return {**ablated_sweeps.SUBJECTS, **ablated_detection.SUBJECTS}


def main() -> None:
    """Measure and print."""
    known = subjects()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=known)
    parser.add_argument("--only", action="append", help="a change by its name")
    parser.add_argument("--set", action="append", default=[], help="a constant and its value: these changes only")
    parser.add_argument(
        "--folder", type=Path, default=Path("ablation"), help="of recorded inputs, and of figures that are known"
    )
    parser.add_argument("--traces", type=Path, help="folder of production traces, for the cases that draw from them")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    subject = known[options.subject]
    folder = options.folder / options.subject
    folder.mkdir(parents=True, exist_ok=True)
    cases = subject.cases(folder, options.traces)
    changes = [change for change in subject.changes if not options.only or change.name in options.only]
    if options.set:
        pairs = [text.partition("=") for text in options.set]
        changes = [Change(f"{name}={text}", {name: ast.literal_eval(text)}) for name, _, text in pairs]
    path = folder / "figures.jsonl"
    figures = saved(path)
    for change in [Change("", {}), *changes]:
        if change.name not in figures:
            figures[change.name] = judged(subject, cases, change, options.processes)
            with path.open("a") as file:
                file.write(json.dumps({"change": change.name, "figures": figures[change.name]}) + "\n")
        if change.name:
            part(change.name, compared(subject.rows, figures[""], figures[change.name]))
    results = {change.name: compared(subject.rows, figures[""], figures[change.name]) for change in changes}
    moves = {name: [row["row"] for row in rows if row["moved"]] for name, rows in results.items()}
    show(f"ablation {options.subject}", [], cases=len(cases), moves=moves, changes=results)


if __name__ == "__main__":
    main()

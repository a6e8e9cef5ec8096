"""Diagnosis of scenes that were written apart from it, on engines of other structures: how often is a wrong cause named?

A scene has half an hour of a healthy service and a quarter of an hour with one cause or two; the true names were written with the
scene, before any diagnosis saw it (`bench/independent/causes.py`). Rules and thresholds were looked at on the tuning half only.
`unknown` is not wrong, but where an expert with the same readings could tell it is not right either. Of two causes one name is
right, two names only if both are.

python -m bench.diagnosis_independent [--held-out] [--indices FIRST LAST]
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from bench.independent.causes import Scene, scene, scenes
from bench.independent.causes_catalogue import CAUSES, PAIRS, Truth
from bench.independent.causes_engines import Half
from bench.report import goal, part, show
from prober.features.diagnosis.diagnosis import diagnose

KINDS = ("right", "true", "unknown", "wrong")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The causes that act in a scene, their names, the names that were given, and what these are. page: whether one was read."""

    acting: str
    truth: Truth
    names: tuple[str, ...]
    page: bool

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        return self.truth.verdict(self.names)


def further_scenes(half: Half, first: int, last: int) -> Iterator[Scene]:
    """Scenes of each cause and pair with other indices than `scenes` has; those without a breach are left out."""
    for names in (*((name,) for name in CAUSES), *PAIRS[half]):
        for index in range(first, last + 1):
            with suppress(LookupError):
                yield scene(half, names, index)


def verdicts(of: Iterable[Scene]) -> list[Verdict]:
    """Diagnoses of scenes."""
    return [
        part(
            scene.name,
            Verdict(scene.name.split("/")[1], scene.truth, diagnose(scene.evidence).regimes, scene.page is not None),
        )
        for scene in of
    ]


def shares(rows: Sequence[Verdict]) -> dict[str, float]:
    """Shares of each kind of verdict, and of scenes for which two causes were named."""
    counts = Counter(row.kind for row in rows)
    by_kind = {kind: round(counts[kind] / len(rows), 4) for kind in KINDS}
    return {"scenes": len(rows), **by_kind, "two_named": round(sum(len(row.names) == 2 for row in rows) / len(rows), 4)}


def confusion(rows: Sequence[Verdict]) -> dict[str, dict[str, int]]:
    """Names given, by the causes that act; `hidden` where no expert could tell."""
    table: dict[str, Counter[str]] = {}
    for row in rows:
        title = f"{row.acting} ({' or '.join(sorted(row.truth.right))}){'' if row.truth.is_visible else ' hidden'}"
        table.setdefault(title, Counter())[" and ".join(row.names)] += 1
    return {title: dict(counts.most_common()) for title, counts in sorted(table.items())}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--held-out", action="store_true", help="the half that no rule was looked at on")
    parser.add_argument(
        "--indices", type=int, nargs=2, metavar=("FIRST", "LAST"), help="scenes of other indices, such as 100 101"
    )
    options = parser.parse_args()
    half: Half = "held_out" if options.held_out else "tuning"
    rows = verdicts(further_scenes(half, *options.indices) if options.indices else scenes(half))
    single, double = ([row for row in rows if row.truth.causes == number] for number in (1, 2))
    visible = [row for row in single if row.truth.is_visible]
    goals = [
        goal(f"wrongly named, one cause, {half} scenes", shares(single)["wrong"], 0.02, "share"),
        goal(f"wrongly named, two causes, {half} scenes", shares(double)["wrong"], 0.03, "share"),
        goal(f"not named right, one visible cause, {half} scenes", 1 - shares(visible)["right"], 0.1, "share"),
    ]
    show(
        "diagnosis_independent",
        goals,
        half=half,
        one_cause=shares(single),
        one_visible_cause=shares(visible),
        one_cause_with_a_page=shares([row for row in single if row.page]),
        two_causes=shares(double),
        confusion=confusion(rows),
    )


if __name__ == "__main__":
    main()

"""Why is it slow? The regime that the evidence of a breach fits, with that evidence, or `unknown`.

The knowledge is a table (`regimes`): what must be seen to name a regime, what speaks for it, what rules it out, which others
are only its consequences. `diagnose` applies it: a regime stands if of each line of its needs one clue holds and nothing
contradicts it; the verdict is the one that stands and explains all others that do. None, or two that do not explain each other,
is `unknown`: a wrong name costs more than none. What was not measured is missing: it neither holds nor fails.

    diagnosis = diagnose(Evidence(now=seen(...), before=seen(...), breached={"ttft": 0.5}, engine="vllm"))
    print(diagnosis.text())
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from prober.features.diagnosis.clues import Advice, Clue, Evidence, Name, Regime
from prober.features.diagnosis.knobs import KNOBS
from prober.features.diagnosis.regimes import REGIMES

Role = Literal["needed", "supports", "does not support", "contradicts"]


class Finding(NamedTuple):
    """A clue that was measured. role: a need that holds, a support that holds or does not, a contradiction that holds.

    unit: that of the value; `ratio` is of shares, which people are told in percent
    """

    figure: str
    value: float
    unit: str
    role: Role
    detail: str = ""

    @property
    def amount(self) -> str:
        """The value with its unit: `7.2`, `98.8%`, `0.2/s`, `1.6 ×`."""
        if self.unit == "ratio":
            return f"{self.value * 100:.3g}%"
        return f"{self.value:.3g} {self.unit}".rstrip().replace(" /", "/")

    def text(self) -> str:
        """`requests waiting: 7.2 (mean of the readings) [needed]`."""
        return f"{self.figure}: {self.amount}{f' ({self.detail})' if self.detail else ''} [{self.role}]"


class RunnerUp(NamedTuple):
    """A regime that was not named, and what kept it from it."""

    regime: Name
    why: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict. missing: what was not measured of the regime's clues, or, if unknown, of those that might have stood."""

    regime: Name
    means: str
    evidence: tuple[Finding, ...]
    missing: tuple[str, ...]
    next_measurement: str
    advice: tuple[Advice, ...]
    runners_up: tuple[RunnerUp, ...]

    def text(self) -> str:
        """A paragraph for people."""
        lines = [f"{self.regime}: {self.means}", *(f"  {each.text()}" for each in self.evidence)]
        lines += [f"  not measured: {', '.join(self.missing)}"] if self.missing else []
        lines += [f"  instead? {each.regime}: {each.why}" for each in self.runners_up]
        lines.append(f"next: {self.next_measurement}")
        lines += [f"- {a.do}{f' ({a.knob})' if a.knob else ''}; the price: {a.trades}" for a in self.advice]
        return "\n".join(lines)


def diagnose(evidence: Evidence, regimes: Sequence[Regime] = REGIMES) -> Diagnosis:
    """Name the regime, or say why none is named."""
    standing = [regime for regime in regimes if _stands(regime, evidence)]
    verdict = next((one for one in standing if all(o is one or o.name in one.explains for o in standing)), None)
    runners_up = _runners_up(evidence, regimes, standing, verdict)
    if verdict is None:
        return _unknown(evidence, regimes, standing, runners_up)
    return Diagnosis(
        verdict.name,
        verdict.means,
        _findings(verdict, evidence),
        _unmeasured(_open(verdict, evidence), evidence),
        verdict.next_measurement,
        advice(verdict, evidence.engine),
        runners_up,
    )


def advice(regime: Regime, engine: str | None) -> tuple[Advice, ...]:
    """What to do, with the engine's own knobs; a lever the engine is not known to have is named without one."""
    knobs: dict[str, str] = {str(lever): knob for lever, knob in KNOBS.get(engine or "", {}).items()}
    return tuple(each._replace(knob=knobs.get(each.lever or "")) for each in regime.advice)


def _stands(regime: Regime, evidence: Evidence) -> bool:
    return all(any(clue.holds(evidence) for clue in line) for line in regime.needs) and not any(
        clue.holds(evidence) for clue in regime.contradicts
    )


def _might(regime: Regime, evidence: Evidence) -> bool:
    """Its symptom is seen, and of the lines that do not hold each has a clue that was not measured."""
    lines = [[clue.holds(evidence) for clue in line] for line in regime.needs]
    ruled_out = any(clue.holds(evidence) for clue in regime.contradicts)
    return not ruled_out and any(lines[0]) and all(any(line) or None in line for line in lines)


def _unknown(
    evidence: Evidence, regimes: Sequence[Regime], standing: Sequence[Regime], runners_up: tuple[RunnerUp, ...]
) -> Diagnosis:
    """Several stand, or none does; what is missing is what would let one of the others stand."""
    if standing:
        names = " and ".join(regime.name for regime in standing)
        means = f"{names} fit, and neither explains the other"
        todo = "; ".join(regime.next_measurement for regime in standing)
        return Diagnosis("unknown", means, (), (), todo, (), runners_up)
    open_clues = [clue for regime in regimes if _might(regime, evidence) for clue in _lacking(regime, evidence)]
    missing = _unmeasured(open_clues, evidence)
    means = "nothing that was measured fits a regime known here"
    todo = "measure: what was not" if missing else "compare the engine's log, its host and its neighbours by time"
    return Diagnosis("unknown", means, (), missing, todo, (), runners_up)


def _findings(regime: Regime, evidence: Evidence) -> tuple[Finding, ...]:
    """Clues that were measured: needs that hold, and all supports; a figure that was needed is not told again as a support."""
    held = dict.fromkeys(clue for line in regime.needs for clue in line if clue.holds(evidence))
    found = [_finding(clue, evidence, "needed") for clue in held]
    found += [
        _finding(clue, evidence, "supports" if holds else "does not support")
        for clue in regime.supports
        if clue not in held and (holds := clue.holds(evidence)) is not None
    ]
    return tuple(found)


def _finding(clue: Clue, evidence: Evidence, role: Role) -> Finding:
    value = clue.figure.of(evidence)
    assert value is not None, "only clues that were measured are found"
    return Finding(clue.figure.name, value.value, clue.figure.unit, role, value.detail)


def _lacking(regime: Regime, evidence: Evidence) -> list[Clue]:
    """The clues of the lines that do not hold."""
    return [clue for line in regime.needs if not any(clue.holds(evidence) for clue in line) for clue in line]


def _open(regime: Regime, evidence: Evidence) -> list[Clue]:
    """Clues that could still speak; of a line that holds the others are not missed."""
    return [*_lacking(regime, evidence), *regime.supports, *regime.contradicts]


def _unmeasured(clues: Iterable[Clue], evidence: Evidence) -> tuple[str, ...]:
    return tuple(dict.fromkeys(clue.figure.name for clue in clues if clue.holds(evidence) is None))


def _runners_up(
    evidence: Evidence, regimes: Sequence[Regime], standing: Sequence[Regime], verdict: Regime | None
) -> tuple[RunnerUp, ...]:
    """Those that stand too, then those that only a contradiction keeps out, then those that lack what was not measured."""
    found: list[tuple[int, RunnerUp]] = []
    for regime in regimes:
        if regime is verdict:
            continue
        if regime in standing:
            why = "fits as well" if verdict is None else f"follows from {verdict.name}"
            found.append((0, RunnerUp(regime.name, why)))
        elif all(any(clue.holds(evidence) for clue in line) for line in regime.needs):
            held = [clue for clue in regime.contradicts if clue.holds(evidence)]
            against = "; ".join(_finding(clue, evidence, "contradicts").text() for clue in held)
            found.append((1, RunnerUp(regime.name, against)))
        elif _might(regime, evidence):
            lacking = _unmeasured(_lacking(regime, evidence), evidence)
            # An unknown verdict lists as missing what all of these lack: once is enough.
            why = (
                "it may be: it needs what was not measured"
                if verdict is None
                else f"not measured: {', '.join(lacking)}"
            )
            found.append((2, RunnerUp(regime.name, why)))
    return tuple(each for _, each in sorted(found, key=lambda each: each[0]))

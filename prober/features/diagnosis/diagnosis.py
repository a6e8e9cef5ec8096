"""The likely cause of a breach: the regime that fits the evidence, with that evidence, or `unknown`.

`regimes` is a table of causes. `diagnose` applies it: a regime fits if one clue of each line of its needs holds and no clue
contradicts it. The diagnosis is the regime that fits and explains all other regimes that fit. If none fits, or two that do not explain
each other, it is `unknown`: a wrong cause costs more than none. A clue that was not measured neither holds nor fails.

    evidence = Evidence(now=window_features(...), before=window_features(...), breached={"ttft": 0.5}, engine="vllm")
    print(diagnose(evidence).text())
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from prober.features.diagnosis.clues import Advice, Clue, Evidence, Name, Regime
from prober.features.diagnosis.knobs import KNOBS
from prober.features.diagnosis.regimes import REGIMES, doubts

HYSTERESIS = 0.1  # share of its bounds by which the clues of a diagnosed regime may fail before it no longer fits
Role = Literal["needed", "supports", "does not support", "contradicts"]


class Finding(NamedTuple):
    """A measured clue.

    unit: of the value; `ratio` for shares, which are printed in percent.
    role: whether a need, a support (holding or not) or a contradiction.
    """

    figure: str
    value: float
    unit: str
    role: Role
    detail: str = ""

    @property
    def amount(self) -> str:
        """Value with unit: `7.2`, `98.8%`, `0.2/s`, `1.6 ×`."""
        if self.unit == "ratio":
            return f"{self.value * 100:.3g}%"
        return f"{self.value:.3g} {self.unit}".rstrip().replace(" /", "/")

    def text(self) -> str:
        """Line of text, such as `requests waiting: 7.2 (mean of the readings) [needed]`."""
        return f"{self.figure}: {self.amount}{f' ({self.detail})' if self.detail else ''} [{self.role}]"


class RunnerUp(NamedTuple):
    """A regime that was not diagnosed, and the reason."""

    regime: Name
    why: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosed regime, or two.

    second: the other one of two causes, both of which are evident.
    missing: figures of the regime's clues that were not measured; if unknown, those of regimes that might fit.
    doubts: measurements that contradict each other and were therefore not used.
    """

    regime: Name
    means: str
    evidence: tuple[Finding, ...]
    missing: tuple[str, ...]
    next_measurement: str
    advice: tuple[Advice, ...]
    runners_up: tuple[RunnerUp, ...]
    second: Name | None = None
    doubts: tuple[str, ...] = ()

    @property
    def regimes(self) -> tuple[Name, ...]:
        """The diagnosed regime, or both."""
        return (self.regime,) if self.second is None else (self.regime, self.second)

    def text(self) -> str:
        """Several lines for people."""
        title = self.regime if self.second is None else f"two causes: {self.regime} and {self.second}"
        lines = [f"{title}: {self.means}", *(f"  {finding.text()}" for finding in self.evidence)]
        lines += [f"  not measured: {', '.join(self.missing)}"] if self.missing else []
        lines += [f"  not used: {doubt}" for doubt in self.doubts]
        lines += [f"  also considered: {other.regime}: {other.why}" for other in self.runners_up]
        lines.append(f"next: {self.next_measurement}")
        lines += [f"- {do}{f' ({knob})' if knob else ''}; trade-off: {trades}" for do, trades, _, knob in self.advice]
        return "\n".join(lines)


def diagnose(evidence: Evidence, regimes: Sequence[Regime] = REGIMES, diagnosed: Collection[str] = ()) -> Diagnosis:
    """The regime that fits and explains all others that fit, two that are evident, or `unknown`.

    diagnosed: names of the present diagnosis of the same target, whose clues may fail by HYSTERESIS.
    """
    fitting = [regime for regime in regimes if _fits(regime, evidence, diagnosed)]
    named = _causes(regimes, evidence, fitting, diagnosed)
    runners_up = _runners_up(evidence, regimes, fitting, named)
    if not named:
        return _unknown(evidence, regimes, fitting, runners_up)
    findings: dict[str, Finding] = {}
    for regime in named:
        for finding in _findings(regime, evidence, diagnosed):
            findings.setdefault(finding.figure, finding)
    return Diagnosis(
        named[0].name,
        " – and ".join(regime.means for regime in named),
        tuple(findings.values()),
        tuple(dict.fromkeys(name for regime in named for name in _unmeasured(_open(regime, evidence), evidence))),
        "; ".join(regime.next_measurement for regime in named),
        tuple(dict.fromkeys(action for regime in named for action in advice(regime, evidence.engine))),
        runners_up,
        named[1].name if len(named) == 2 else None,
        doubts(evidence),
    )


def _causes(
    regimes: Sequence[Regime], evidence: Evidence, fitting: Sequence[Regime], diagnosed: Collection[str]
) -> list[Regime]:
    """The cause, two causes, or none."""
    sole = [one for one in fitting if _explain([one], fitting)]
    cause = sole[0] if len(sole) == 1 else None
    evident = [regime for regime in regimes if _is_evident(regime, evidence, diagnosed)]
    causes = [one for one in evident if not any(one.name in other.explains for other in evident)]
    if len(causes) == 2 and _explain(causes, fitting) and (cause is None or cause in causes):
        return causes
    if cause is None or any(one is not cause and not _is_consequence(one, cause) for one in evident):
        return []  # another cause is as evident
    return [cause]


def _is_consequence(one: Regime, other: Regime) -> bool:
    """Whether one of them can be the consequence of the other."""
    return one.name in other.explains or other.name in one.explains


def _explain(causes: Sequence[Regime], fitting: Sequence[Regime]) -> bool:
    """Whether every regime that fits is one of the causes or the consequence of one."""
    return all(one in causes or any(one.name in cause.explains for cause in causes) for one in fitting)


def undecided(diagnosis: Diagnosis, settle_s: float) -> Diagnosis:
    """`unknown`, as long as this diagnosis has not held for `settle_s` seconds."""
    names = " and ".join(diagnosis.regimes)
    return replace(
        diagnosis,
        regime="unknown",
        second=None,
        means=f"{names} {'fits' if diagnosis.second is None else 'fit'} now; a cause is named once it has fitted for {settle_s:.0f} s",
        evidence=(),
        advice=(),
        runners_up=(
            *(RunnerUp(name, "fits, but not for long enough") for name in diagnosis.regimes),
            *diagnosis.runners_up,
        ),
    )


def advice(regime: Regime, engine: str | None) -> tuple[Advice, ...]:
    """Advice with the engine's own flags where they are known."""
    knobs: dict[str, str] = {str(lever): knob for lever, knob in KNOBS.get(engine or "", {}).items()}
    return tuple(action._replace(knob=knobs.get(action.lever or "")) for action in regime.advice)


def _fits(regime: Regime, evidence: Evidence, diagnosed: Collection[str] = ()) -> bool:
    widening = HYSTERESIS if regime.name in diagnosed else 0.0
    return _hold(regime.needs, evidence, widening) and not any(
        clue.holds(evidence, -widening) for clue in regime.contradicts
    )


def _is_evident(regime: Regime, evidence: Evidence, diagnosed: Collection[str]) -> bool:
    widening = HYSTERESIS if regime.name in diagnosed else 0.0
    return bool(regime.evident) and _hold(regime.evident, evidence, widening)


def _hold(lines: tuple[tuple[Clue, ...], ...], evidence: Evidence, widening: float = 0.0) -> bool:
    """Whether one clue of each line holds."""
    return all(any(clue.holds(evidence, widening) for clue in line) for line in lines)


def _might_fit(regime: Regime, evidence: Evidence) -> bool:
    """Whether the symptom holds and each line that does not hold has a clue that was not measured."""
    lines = [[clue.holds(evidence) for clue in line] for line in regime.needs]
    ruled_out = any(clue.holds(evidence) for clue in regime.contradicts)
    return not ruled_out and any(lines[0]) and all(any(line) or None in line for line in lines)


def _unknown(
    evidence: Evidence, regimes: Sequence[Regime], fitting: Sequence[Regime], runners_up: tuple[RunnerUp, ...]
) -> Diagnosis:
    """Diagnosis if none fits, or several that do not explain each other."""
    if fitting:
        names = " and ".join(regime.name for regime in fitting)
        means = f"{names} fit, and it is not evident which is the cause"
        todo = "; ".join(regime.next_measurement for regime in fitting)
        return Diagnosis("unknown", means, (), (), todo, (), runners_up, doubts=doubts(evidence))
    open_clues = [clue for regime in regimes if _might_fit(regime, evidence) for clue in _lacking(regime, evidence)]
    missing = _unmeasured(open_clues, evidence)
    means = "no known regime fits what was measured"
    todo = (
        "measure what is missing"
        if missing
        else "compare the logs of the engine, its host and its neighbours at that time"
    )
    return Diagnosis("unknown", means, (), missing, todo, (), runners_up, doubts=doubts(evidence))


def _findings(regime: Regime, evidence: Evidence, diagnosed: Collection[str]) -> tuple[Finding, ...]:
    """Needs that hold (of one of two causes perhaps only those that make it evident), and measured supports that are not needs."""
    widening = HYSTERESIS if regime.name in diagnosed else 0.0
    lines = regime.needs if _fits(regime, evidence, diagnosed) else regime.evident
    held = dict.fromkeys(clue for line in lines for clue in line if clue.holds(evidence, widening))
    findings = [_finding(clue, evidence, "needed") for clue in held]
    findings += [
        _finding(clue, evidence, "supports" if holds else "does not support")
        for clue in regime.supports
        if clue not in held and (holds := clue.holds(evidence)) is not None
    ]
    return tuple(findings)


def _finding(clue: Clue, evidence: Evidence, role: Role) -> Finding:
    value = clue.figure.of(evidence)
    assert value is not None, "findings are measured"
    return Finding(clue.figure.name, value.value, clue.figure.unit, role, value.detail)


def _lacking(regime: Regime, evidence: Evidence) -> list[Clue]:
    """Clues of the lines that do not hold."""
    return [clue for line in regime.needs if not any(clue.holds(evidence) for clue in line) for clue in line]


def _open(regime: Regime, evidence: Evidence) -> list[Clue]:
    """Clues that could still change the diagnosis; other clues of a line that holds could not."""
    return [*_lacking(regime, evidence), *regime.supports, *regime.contradicts]


def _unmeasured(clues: Iterable[Clue], evidence: Evidence) -> tuple[str, ...]:
    return tuple(dict.fromkeys(clue.figure.name for clue in clues if clue.holds(evidence) is None))


def _runners_up(
    evidence: Evidence, regimes: Sequence[Regime], fitting: Sequence[Regime], named: Sequence[Regime]
) -> tuple[RunnerUp, ...]:
    """Regimes that fit as well, then those with a contradiction, then those that lack measurements."""
    ranked: list[tuple[int, RunnerUp]] = []
    for regime in regimes:
        if regime in named:
            continue
        if regime in fitting:
            why = "fits as well"
            if named:
                why = f"follows from {next(cause.name for cause in named if regime.name in cause.explains)}"
            ranked.append((0, RunnerUp(regime.name, why)))
        elif _hold(regime.needs, evidence):
            held = [clue for clue in regime.contradicts if clue.holds(evidence)]
            against = "; ".join(_finding(clue, evidence, "contradicts").text() for clue in held)
            ranked.append((1, RunnerUp(regime.name, against)))
        elif _might_fit(regime, evidence):
            lacking = _unmeasured(_lacking(regime, evidence), evidence)
            # If unknown, `missing` already lists what these lack.
            why = f"not measured: {', '.join(lacking)}" if named else "possible: it needs what was not measured"
            ranked.append((2, RunnerUp(regime.name, why)))
    return tuple(runner_up for _, runner_up in sorted(ranked, key=lambda pair: pair[0]))

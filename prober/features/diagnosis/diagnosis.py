"""Diagnosis of a breach: the mechanism shown by the symptoms, with figures, or `unknown`.

    symptoms = Symptoms(now=window_features(...), before=window_features(...), breached={"ttft": 0.5}, engine="vllm")
    print(diagnose(symptoms).text())

`mechanisms` returns the findings for each. A mechanism explained by another is not named; independent ones are all named.
If mechanisms look alike the result is `unknown`: a wrong name costs more than none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prober.features.diagnosis.advice import Advice, with_knobs
from prober.features.diagnosis.clues import Finding, Name, Symptoms
from prober.features.diagnosis.mechanisms import (
    CALM_TIME,
    MECHANISM_OF,
    MECHANISMS,
    Mechanism,
    failures,
    unmet,
    why_decode_is_slow,
)
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE

NOTHING_VISIBLE = "no mechanism is visible in what was measured"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Diagnosis of a target: what happens, and why, as far as known.

    regimes: names of the mechanisms, or only `unknown`
    why: cause of slow decode steps; "" for other mechanisms
    missing: measurements that were not made and could show more
    probable: names not yet confirmed; `regimes` is `unknown` until then
    bad: what is bad, and how much, such as `TTFT 1.1 s, 300 ms allowed`; "" if nothing was judged
    since_unix_s: begin of the trouble, None for a single measurement; until_unix_s: its end, None while it lasts
    """

    regimes: tuple[Name, ...]
    means: str
    evidence: tuple[Finding, ...] = ()
    why: str = ""
    missing: tuple[str, ...] = ()
    next_measurement: str = ""
    advice: tuple[Advice, ...] = ()
    probable: tuple[Name, ...] = ()
    bad: str = ""
    since_unix_s: float | None = None
    until_unix_s: float | None = None

    @property
    def title(self) -> str:
        """Text for the headline: `slow decode`, `probably slow decode, confirming` or `cause unknown`."""
        names = " and ".join(name.replace("_", " ") for name in self.probable or self.regimes)
        if self.probable:
            return f"probably {names}" + (", confirming" if self.until_unix_s is None else "")
        return "cause unknown" if names == "unknown" else names

    @property
    def headline(self) -> str:
        """The title with the first finding, such as `slow decode (decode step: 1.6 ×)`; an unknown cause follows what is bad."""
        if self.regimes == ("unknown",):
            return f"{self.bad}, {self.title}" if self.bad else self.title
        first = next((f" ({finding.figure}: {finding.amount})" for finding in self.evidence), "")
        return self.title + first

    @property
    def times(self) -> str:
        """Begin and end of the trouble, such as `since 2026-01-31 02:40 UTC`; "" for a single measurement."""
        if self.since_unix_s is None:
            return ""
        if self.until_unix_s is None:
            return f"since {moment(self.since_unix_s)}"
        return f"from {moment(self.since_unix_s)} until {moment(self.until_unix_s)}"

    def text(self) -> str:
        """The whole diagnosis as several lines of text."""
        lines = [f"{self.title}: {self.means}", *([f"  why: {self.why}"] if self.why else [])]
        lines += [f"  {words}" for words in (self.bad, self.times) if words]
        lines += [f"  {finding.text()}" for finding in self.evidence]
        lines += [f"  would tell more: {', '.join(self.missing)}"] if self.missing else []
        lines += [f"next: {self.next_measurement}"] if self.next_measurement else []
        for do, trades, _, knob in self.advice:
            trade_off = f"; trade-off: {trades}" if trades != "nothing" else ""
            lines.append(f"- {do}{f' ({knob})' if knob else ''}{trade_off}")
        return "\n".join(lines)


def diagnose(symptoms: Symptoms) -> Diagnosis:
    """Find the mechanisms that the symptoms show, without those explained by others; `unknown` if there are none."""
    named: list[tuple[Mechanism, tuple[Finding, ...]]] = []
    for mechanism in MECHANISMS:
        is_explained = any(mechanism.name in cause.explains for cause, _ in named)
        if not is_explained and mechanism.needs(symptoms) and (findings := mechanism.shows(symptoms)):
            named.append((mechanism, findings))
    if not named and (timeouts := failures(symptoms)):
        named = [(MECHANISM_OF["failing"], timeouts)]
    if not named:
        return _unknown(symptoms)
    causes = [cause for cause, _ in named]
    is_decode = any(cause.name == "slow_decode" for cause in causes)
    why, missing = why_decode_is_slow(symptoms) if is_decode else ("", ())
    return Diagnosis(
        tuple(cause.name for cause in causes),
        " – and ".join(cause.means for cause in causes),
        tuple({finding.figure: finding for _, findings in named for finding in findings}.values()),
        why,
        missing,
        "; ".join(cause.next_measurement for cause in causes),
        with_knobs(dict.fromkeys(action for cause in causes for action in cause.advice), symptoms.engine),
    )


def diagnosis_of(name: Name) -> Diagnosis:
    """Diagnosis of an engine that reports that it loads its model or shuts down; nothing is sent meanwhile."""
    mechanism = MECHANISM_OF[name]
    return Diagnosis((name,), mechanism.means, next_measurement=mechanism.next_measurement, advice=mechanism.advice)


def restored(document: Mapping[str, Any]) -> Diagnosis:
    """Read a diagnosis from its JSON. Raises TypeError if the fields differ."""
    parts: dict[str, Callable[[Any], Any]] = {"evidence": Finding._make, "advice": Advice._make}
    lists = {
        name: tuple(map(parts.get(name, str), value)) for name, value in document.items() if isinstance(value, list)
    }
    return Diagnosis(**{**document, **lists})


def moment(unix_s: float) -> str:
    """Format a time for people, to the minute."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"


def _unknown(symptoms: Symptoms) -> Diagnosis:
    now = symptoms.now
    missing = unmet(
        ("more probes since the trouble began", now.probes >= MIN_SAMPLES_BY_QUANTILE[0.5]),
        (CALM_TIME, symptoms.has_usual),
        ("the engine's metrics page", now.running is not None or now.waiting is not None),
        (
            "queue time or waiting requests on its page",
            (now.waiting, now.engine_queue_s, now.queue_part_s) != (None,) * 3,
        ),
        ("KV cache usage on its page", now.kv_usage_ratio is not None),
        ("probes of different prompt lengths", now.ttft_per_prompt_token_s is not None),
    )
    todo = "the logs of the engine, its host and its neighbours at that time"
    return Diagnosis(("unknown",), NOTHING_VISIBLE, missing=missing, next_measurement=todo)

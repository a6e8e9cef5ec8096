"""Watches the checked answers of all targets: takes probe results, exports series and events, saves the states."""

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import sha256

from prober.config.configuration import Configuration, DriftSpec
from prober.exposition.families import Registry
from prober.features.answers import series
from prober.features.answers.change import AnswerChange, Event, threshold
from prober.measure.engine_signals import EngineChange
from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetEvent
from prober.probing.feature import SavedTargets
from prober.probing.history import EventLog
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.results.strict_json import Reader, dumps
from prober.storage.saved_rows import SavedRows, moment

CheckKey = tuple[str, str]  # workload, check
log = logging.getLogger(__name__)
_READER = cache(partial(Reader, AnswerChange))  # reads states; takes 50 ms to build


class AnswersMonitor(SavedTargets["TargetAnswers"]):
    """The checked answers of all targets."""

    def __init__(self, registry: Registry, events: EventLog, spec: DriftSpec, saved: SavedRows) -> None:
        super().__init__(saved)
        self.registry, self.events, self.spec = registry, events, spec

    def observe(self, observed: ObservedTarget) -> "TargetAnswers":
        """Watch one target, continuing from its saved baselines."""
        return self.add(TargetAnswers(self, observed))

    def configured(self, configuration: Configuration) -> None:
        self.spec = configuration.drift


class TargetAnswers(TargetObserver):
    """The checked answers of one target. checks: states by workload and check"""

    def __init__(self, monitor: AnswersMonitor, observed: ObservedTarget) -> None:
        def read(data: bytes) -> AnswerChange:
            return _READER().read(json.loads(data), "state")  # type: ignore[no-any-return]

        self.name, self.checks = observed.name, dict[CheckKey, AnswerChange]()
        self._monitor, self._observed = monitor, observed
        self._rates: dict[CheckKey, float] = {}  # answers per second of the workload
        for probe in observed.spec.probes:
            for workload, part, rate, _ in probe.judged():
                asked = sha256(repr(part).encode()).hexdigest()[:16] if part.checks else ""
                for check in part.checks:
                    key: CheckKey = workload, check
                    saved_name = json.dumps((self.name, *key))
                    consequence = f"target={self.name} workload={workload} check={check}: its baseline is learned again"
                    state = monitor.saved.pop(saved_name, read, consequence)
                    if state is not None and state.asked != asked:
                        log.info("%s, as prompts or checks have changed", consequence)
                        state = None
                    self.checks[key], self._rates[key] = state or AnswerChange(asked), rate
                    self._show(key)

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(name, state) of every check, to save."""
        for key, state in list(self.checks.items()):
            yield json.dumps((self.name, *key)), dumps(state)

    def probe_ended(self, result: ProbeResult) -> None:
        key = result.workload, result.check or ""
        if result.outcome not in ANSWERED or (state := self.checks.get(key)) is None:
            return
        spec = self._monitor.spec
        at = moment(result.timeline.intended_ns, result.unix_s)
        is_wrong, before = result.outcome is Outcome.WRONG_ANSWER, state.baseline
        event = state.step(is_wrong, at, threshold(self._rates[key], spec.false_alarms), spec.accept_after)
        if event is not None:
            text = f"{key[1]} of {key[0]}: {_words(state, event)}"
            self._monitor.events.record(log, TargetEvent(at.unix_s, self.name, "answers", text), f"answers: {text}")
        if event is not None or state.alarm is not None or before is not state.baseline:
            self._show(key)

    def engine_changed(self, change: EngineChange) -> None:
        clock = self._observed.target.clock
        now = moment(clock.now_ns(), clock.unix_s())
        for key, state in self.checks.items():
            state.engine_changed(change.text(), now, is_restart=change.kind in ("restart", "size"))
            self._show(key)

    def removed(self) -> None:
        self._monitor.forget(self)

    def _show(self, key: CheckKey) -> None:
        """Export the verdict; the start and the engine's change only during an alarm."""
        registry, labels = self._monitor.registry, (self.name, *key)
        state = self.checks.get(key) or AnswerChange()
        alarm, baseline = state.alarm, state.baseline
        change = alarm.change if alarm is not None else None
        cause = None if alarm is None else "unknown" if change is None else "engine_change"
        registry.show_one(series.ANSWERS_CHANGED, cause, series.ANSWERS_CAUSES, *labels)
        registry.show(series.ANSWERS_SINCE, alarm.since_unix_s if alarm is not None else None, *labels)
        registry.show(series.ANSWERS_ENGINE_CHANGE, change[0] if change is not None else None, *labels)
        for period, counted in (("baseline", baseline), ("since", alarm)):
            ratio = counted.wrong / counted.count if counted is not None else None
            registry.show(series.ANSWERS_WRONG, ratio, *labels, period)


def _words(state: AnswerChange, event: Event) -> str:
    """Describe an event with the numbers of wrong answers."""
    baseline, alarm = state.baseline, state.alarm
    assert baseline is not None
    before = f"{baseline.wrong:,} of {baseline.count:,}"
    if event == "alarm" and alarm is not None:
        change = (
            f"; it began about when the engine changed at {_clock(alarm.change[0])} ({alarm.change[1]})"
            if alarm.change
            else ""
        )
        return (
            f"wrong more often than before: {alarm.wrong:,} of {alarm.count:,} answers since {_clock(alarm.since_unix_s)}, "
            f"{before} in the baseline{change}"
        )
    return {
        "learnt": f"baseline learnt, {before} answers were wrong",
        "recovered": f"no longer wrong more often than in the baseline, {before}",
        "improved": f"wrong less often than in the baseline, {before}: it is learned anew",
        "accepted": f"the present share of wrong answers is the baseline now, {before}",
    }[event]


def _clock(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"

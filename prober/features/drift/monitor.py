"""Watches the latencies of all targets for drift: results in, series out, and a state that can be kept and taken up again."""

import asyncio
import json
import logging
import math
from collections.abc import Iterator, Mapping

from prober.config.specs import DriftSpec, TargetSpec
from prober.features.drift.detector import (
    Drift,
    Observation,
    Phase,
    Settings,
    Shift,
    Verdict,
    fresh,
    seed,
    shifts,
    step,
)
from prober.features.drift.serialization import dump, restore
from prober.measure.event import Event
from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.metrics import Recorder
from prober.probing.history import History

PATIENCE_S = 30.0  # with a disk that hangs, then it is told all the same

Key = tuple[str, str, str]  # target, workload, signal
log = logging.getLogger(__name__)


class Watch:
    """One detector a signal of each workload of each target that streams.

    kept: states as `states` gave them to an earlier process, by its keys; changed: set when one is no longer what was kept of it.
    keeps: somebody keeps what has changed, and says `told` then: a baseline or an alarm that a kill could lose is not told before.
    """

    def __init__(
        self,
        recorder: Recorder,
        history: History,
        spec: DriftSpec,
        kept: Mapping[str, bytes],
        *,
        keeps: bool = False,
    ) -> None:
        self._recorder, self._history, self._spec, self._keeps = recorder, history, spec, keeps
        self._kept = dict(kept)
        self._detectors: dict[Key, Drift] = {}
        self._keys: dict[str, set[Key]] = {}  # of each target
        self._rates: dict[Key, float] = {}
        self._active: set[Key] = set()
        self._verdicts: dict[Key, tuple[Verdict, tuple[Shift, ...]]] = {}
        self._turned: set[Key] = set()
        self._writing: set[Key] = set()
        self._untold: dict[Key, list[tuple[float, Verdict, tuple[Shift, ...]]]] = {}
        self.changed = asyncio.Event()

    def declare(self, name: str, spec: TargetSpec) -> None:
        """Watch what is probed of a target; what was watched already goes on, and what is not probed any more is forgotten."""
        wanted = {
            (name, workload, signal): rate
            for probe in spec.probes
            for workload, _, rate, _ in probe.judged()
            for signal in ("ttft", "itl")
            if spec.stream
        }
        for key in self._keys.get(name, set()) - wanted.keys():
            self._forget(key)
        self._keys[name] = set(wanted)
        for key, rate in wanted.items():
            self._rates[key] = rate
            self._detectors[key] = self._taken_up(key)
            self._recorder.declare_drift(*key)

    def configure(self, spec: DriftSpec) -> None:
        """Another setting: the baselines stay, the evidence is judged by the new one."""
        if spec != self._spec:
            self._spec = spec
            for key in self._detectors:
                self._detectors[key] = self._taken_up(key)

    def remove(self, name: str) -> None:
        """Forget a target."""
        for key in self._keys.pop(name, ()):
            self._forget(key)

    def observe(self, result: ProbeResult, load: float | None) -> None:
        """A probe has ended, sent under `load` (requests in the engine; None: not known).

        Its TTFT, and its own p99 of ITL (of fewer than 100 gaps the longest), are one sample each.
        """
        if result.outcome not in ANSWERED or result.warm_up or result.cached:
            return
        ttft, gaps = result.timeline.ttft_s, sorted(result.timeline.itls_s)
        if ttft is not None:
            self._step((result.target, result.workload, "ttft"), Observation(result.unix_s, ttft, load))
        if gaps:
            p99 = gaps[math.ceil(0.99 * len(gaps)) - 1]
            self._step((result.target, result.workload, "itl"), Observation(result.unix_s, max(p99, 1e-9), load))

    def active(self, name: str) -> list[Key]:
        """Which signals of a target have drifted."""
        return [key for key in self._active if key[0] == name]

    def verdicts(self, name: str) -> list[tuple[Key, Verdict, tuple[Shift, ...]]]:
        """What is thought of each signal of a target, and how far it has moved."""
        return [
            (key, *self._verdicts.get(key, (Verdict(_phase(state), 0.0), ())))
            for key, state in self._detectors.items()
            if key[0] == name
        ]

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(key, state) of every detector."""
        for key in list(self._detectors):
            yield from self._state(key)

    def turned(self) -> Iterator[tuple[str, bytes]]:
        """(key, state) of those with a baseline made, or given up, or an alarm begun or ended, since they were last asked for."""
        self.changed.clear()
        while self._turned:
            yield from self._state(next(iter(self._turned)))

    def told(self) -> None:
        """What was asked for is kept, or cannot be: tell of it."""
        for key in self._writing - self._turned:
            self._release(key)
        self._writing.clear()

    def without_baseline(self, signal: str) -> list[Key]:
        """Whose past would help."""
        return [key for key, state in self._detectors.items() if key[2] == signal and state.baseline is None]

    def seed(self, key: Key, samples: list[Observation]) -> None:
        """Begin from samples that another prober took. Raises ValueError if they are too few."""
        state = self._detectors.get(key)
        if state is not None and state.baseline is None:
            self._detectors[key] = seed(state, samples)
            self._turned.add(key)
            self.changed.set()

    def _step(self, key: Key, observation: Observation) -> None:
        state = self._detectors.get(key)
        if state is None:
            return
        self._detectors[key], verdict = step(state, observation)
        moved = tuple(shifts(state)) if verdict.active else ()
        if verdict.event:
            self._turned.add(key)
            self.changed.set()
        if self._keeps and (verdict.event or key in self._untold):
            waiting = self._untold.setdefault(key, [])
            waiting.append((observation.unix_s, verdict, moved))
            if observation.unix_s - waiting[0][0] > PATIENCE_S:
                self._release(key)
        else:
            self._tell(key, observation.unix_s, verdict, moved)

    def _release(self, key: Key) -> None:
        for each in self._untold.pop(key, ()):
            self._tell(key, *each)

    def _tell(self, key: Key, unix_s: float, verdict: Verdict, moved: tuple[Shift, ...]) -> None:
        self._verdicts[key] = verdict, moved
        self._recorder.drift(*key, verdict, moved)
        (self._active.add if verdict.active else self._active.discard)(key)
        if verdict.event:
            target, workload, signal = key
            text = f"{signal} of {workload}: {verdict.event}" + (f", cause {verdict.cause}" if verdict.active else "")
            log.info("target=%s drift: %s", target, text)
            self._history.happened(Event(unix_s, target, "drift", text))

    def _state(self, key: Key) -> Iterator[tuple[str, bytes]]:
        self._turned.discard(key)
        if (state := self._detectors.get(key)) is not None:
            self._writing.add(key)
            yield json.dumps(key), dump(state)

    def _taken_up(self, key: Key) -> Drift:
        spec = self._spec
        settings = Settings(self._rates[key], 1 / spec.false_alarms_per_s, spec.material, spec.accept_after_s)
        state = self._detectors.get(key)
        kept = self._kept.get(json.dumps(key)) if state is None else None
        if kept is not None:
            try:
                return restore(settings, kept)
            except ValueError as problem:
                log.error("target=%s workload=%s signal=%s: the kept baseline is learnt anew: %s", *key, problem)
        if state is None:
            return fresh(settings)
        return state if state.settings == settings else restore(settings, dump(state))

    def _forget(self, key: Key) -> None:
        del self._detectors[key], self._rates[key]
        self._active.discard(key)
        self._verdicts.pop(key, None)
        self._untold.pop(key, None)


def _phase(state: Drift) -> Phase:
    """Of a detector that has seen no sample since the prober's start."""
    return "learning" if state.baseline is None else "settled" if state.settled else "provisional"

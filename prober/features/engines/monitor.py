"""Reads the metrics page of each target's engine while the target is probed, exports its signals as series, and detects when answers
name another model.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from prober.config.target import TargetSpec
from prober.exposition.families import Registry
from prober.features.engines import series
from prober.features.engines.continuity import Continuity, CounterState, EngineIdentity
from prober.features.engines.page_reader import PageReader, is_expected
from prober.measure.engine_signals import FINISH_REASONS, EngineChange, EngineHistogram, EngineInfo, PageReading
from prober.measure.gpu_reading import GpuReading
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetEvent
from prober.probing.feature import SavedTargets
from prober.probing.history import EventLog
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.probing.supervisor import Supervisor
from prober.storage.saved_rows import SavedRows

SETTLING_ANSWERS = 3  # in a row by another model, which then replaces the previous one
ALONE_S = 3600.0  # after several models answered in turn, one must answer alone for this long to count as the only one
# Of the model within ALONE_S; at the next change, the models count as answering in turn. Further changes of the size are not logged.
MAX_CHANGES = 3
MAX_NAMES = 4  # of models that answer in turn
MAX_IDENTITIES = 50  # exported per target and process
UNREADABLE_S = 60.0  # without a readable page until this is an event: a restart of the engine has its own event
OTHER = "other"
_TOO_MANY = f"its engine has had more than {MAX_IDENTITIES} versions and names of models since the start"
log = logging.getLogger(__name__)


class AnsweringModel:
    """Detects changes of the model, or the service tier, named by successive answers: at most `MAX_CHANGES` + 2 within `ALONE_S`.

    Three answers in a row by another model are a change of the model. If the previous one answers again sooner, or the model changes
    too often, as behind a gateway that falls back or balances, several models answer in turn. That is one change; the next one comes
    when one of them has been the only one for `ALONE_S`.

    model: the only model, or the last one before several answered in turn; "" before the first answer
    """

    def __init__(self, model: str = "") -> None:
        self.model = model
        self._in_turn: tuple[str, ...] = ()
        self._challenger = ""  # another model, with fewer than SETTLING_ANSWERS answers
        self._last, self._run, self._since_s = "", 0, 0.0  # answers in a row by one model
        self._sent_s = 0.0
        self._changed_s: deque[float] = deque(maxlen=MAX_CHANGES)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the models that answer, at most `MAX_NAMES` + 1; none before the first answer."""
        return self._in_turn or (self.model,)[: bool(self.model)]

    @property
    def text(self) -> str:
        """The name of the model; several that answer in turn are joined by `|`, with `…` for those beyond `MAX_NAMES`."""
        names = self._in_turn[:MAX_NAMES] + ("…",) * (len(self._in_turn) > MAX_NAMES)
        return "|".join(names) or self.model

    def take(self, model: str, sent_s: float) -> EngineChange | None:
        """Process an answer by `model` to a request sent at `sent_s`; return a change, if any. The first model is none.

        A late answer changes nothing: it is ignored if its request was sent before that of the last processed answer.
        """
        if sent_s < self._sent_s:
            return None
        self._sent_s = sent_s
        self.model = self.model or model
        if model != self._last:
            self._last, self._run, self._since_s = model, 0, sent_s
        self._run += 1
        before = self.text
        is_changed = self._is_alone_again(model) if self._in_turn else self._is_replaced(model)
        return EngineChange("model", before, self.text) if is_changed else None

    def _is_alone_again(self, model: str) -> bool:
        """True if this model, one of several that answered in turn, has now been the only one for long enough."""
        if model not in self._in_turn and len(self._in_turn) <= MAX_NAMES:
            self._in_turn += (model,)
        if self._run < SETTLING_ANSWERS or self._sent_s - self._since_s < ALONE_S:
            return False
        self.model, self._in_turn = model, ()
        return True

    def _is_replaced(self, model: str) -> bool:
        """True if another model has replaced the last one, or if several answer in turn."""
        challenger, self._challenger = self._challenger, ""
        if model == self.model:
            if challenger:
                self._in_turn = (model, challenger)
        elif challenger not in ("", model):
            self._in_turn = (self.model, challenger, model)
        elif self._run < SETTLING_ANSWERS:
            self._challenger = model
            return False
        elif len(self._changed_s) == MAX_CHANGES and self._sent_s - self._changed_s[0] < ALONE_S:
            self._in_turn = (self.model, model)
        else:
            self._changed_s.append(self._sent_s)
            self.model = model
            return True
        return bool(self._in_turn)


class EngineMonitor(SavedTargets["TargetEngine"]):
    """Engines of all targets."""

    def __init__(self, registry: Registry, events: EventLog, saved: SavedRows) -> None:
        self.registry, self.events, self.supervisor = registry, events, Supervisor(registry)
        super().__init__(saved)

    def observe(self, observed: ObservedTarget) -> "TargetEngine":
        """Observe the engine of one target, continuing from its saved state."""
        name = observed.name
        consequence = f"target={name}: the saved facts of its engine cannot be read"
        saved = self.saved.pop(name, partial(_restored, observed.spec), consequence)
        facts = saved or (Continuity().of_other_page(), AnsweringModel(), AnsweringModel())
        return self.add(TargetEngine(self, observed, *facts))


class _SavedEngine(BaseModel):
    """Saved state of an engine.

    asked: digest of the URL and the model to which `answered_model` and `tier` belong; page: digest of the page's address
    """

    model_config = ConfigDict(allow_inf_nan=False)
    facts: dict[str, str]
    size: dict[str, float] = {}
    asked: str
    answered_model: str
    tier: str | None = None
    page: str
    counters: CounterState | None = None


def _restored(spec: TargetSpec, data: bytes) -> tuple[Continuity, AnsweringModel, AnsweringModel]:
    """Read (facts, model, service tier) of a saved engine state, if they fit the target's configuration. Raises ValueError."""
    try:
        saved = _SavedEngine.model_validate_json(data)
    except ValidationError:
        raise ValueError("this is no state of an engine") from None
    continuity = Continuity(EngineIdentity(saved.facts, saved.size), before=saved.counters)
    model, tier = (saved.answered_model, saved.tier or "") if saved.asked == _asked(spec) else ("", "")
    continuity = continuity if _page(spec) == saved.page else continuity.of_other_page()
    return continuity, AnsweringModel(model), AnsweringModel(tier)


class TargetEngine(TargetObserver):
    """Engine of one target. Signals that its metrics page lacks have no series.

    page_problem: why the page has been unreadable for UNREADABLE_S; "" if it is readable, or the engine need not have one
    """

    page_problem = ""

    def __init__(
        self,
        monitor: EngineMonitor,
        observed: ObservedTarget,
        continuity: Continuity,
        answering: AnsweringModel,
        tier: AnsweringModel,
    ) -> None:
        self.name, self.continuity, self.answering, self.tier = observed.name, continuity, answering, tier
        self._monitor, self._registry = monitor, monitor.registry
        self._observed, self._spec = observed, observed.spec
        self._reader: PageReader | None = None
        self._reading: asyncio.Task[None] | None = None
        self._missed_since_s: float | None = None
        self._page_info: EngineInfo | None = None
        self._requested_model = self._engine = ""  # from the last answer that named a model
        self._changed_to = ""  # new model of the last change
        self._resized_s: deque[float] = deque(maxlen=MAX_CHANGES)  # logged changes of the size
        self._misnamed: set[str] = set()  # adapters with an answer that names another model
        self._identities: set[tuple[str, str, str]] = set()  # exported so far
        self._is_told_of_identities = False
        self._declare()

    @property
    def other_model(self) -> str:
        """Models named by the answers, if any differs from the requested one; else ""."""
        answered = self.answering.text
        return answered if self._requested_model not in ("", answered) else ""

    def summary(self) -> dict[str, Any]:
        return {"other_model": self.other_model, "page_problem": self.page_problem, "service_tier": self.tier.text}

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(target name, engine state) to save, so that changes are found and counters continue; nothing before the first fact."""
        identity, model = self.continuity.identity, self.answering.model
        facts = identity.facts
        counters = self.continuity.state(series.SIGNALS)
        if facts or model or self.tier.model or counters:
            page = _page(self._spec) if counters else ""
            saved = _SavedEngine(
                facts=facts,
                size=identity.size.size,
                asked=_asked(self._spec),
                answered_model=model,
                tier=self.tier.model or None,
                page=page,
                counters=counters,
            )
            yield self.name, saved.model_dump_json(exclude_none=True).encode()

    def started(self) -> None:
        target = self._observed.target
        if target.spec.metrics is not None and self._reading is None:
            reader = PageReader(
                target, target.spec.metrics, target.clock, self._observed, lambda: self.name, self.continuity
            )
            self._reading = self._monitor.supervisor.start("engine_page", reader.run, f"target={self.name}")
            self._reader = reader

    def stopped(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def removed(self) -> None:
        self.stopped()
        self._monitor.forget(self)

    def page_read(self, reading: PageReading | None) -> None:
        registry, name = self._registry, self.name
        signals = reading.signals if reading else None
        is_missed = signals is None and is_expected(self._spec.metrics, self.continuity)
        registry.show(series.ENGINE_UP, 0.0 if is_missed else None if signals is None else 1.0, name)
        if is_missed:
            now_s = self._observed.target.clock.now_ns() / 1e9
            self._missed_since_s = now_s if self._missed_since_s is None else self._missed_since_s
            if not self.page_problem and now_s - self._missed_since_s >= UNREADABLE_S:
                problem = self._reader.problem if self._reader else ""
                self.page_problem = problem or "its address is not known, as the engine is not identified"
                self._record(f"its metrics page cannot be read: {self.page_problem}")
        else:
            if self.page_problem and signals is not None:
                self._record("its metrics page is readable again")
            self.page_problem, self._missed_since_s = "", None
        for field, declared in series.SIGNALS.items():
            value = getattr(signals, field, None)
            if isinstance(value, EngineHistogram):
                registry.histogram(declared, value.bounds, name).take_over(value.counts, value.sum or 0.0)
            else:
                registry.show(declared, value, name)
        for reason in FINISH_REASONS:
            finished = getattr(signals, f"finished_{reason}_total", None)
            registry.show(series.ENGINE_FINISHED, finished, name, reason)
        self._observed.target.sleeps(signals is not None and signals.sleeping == 1.0)
        self._page_info = signals.info if signals else None
        self._show_info()

    def probe_ended(self, result: ProbeResult) -> None:
        answered, sent_ns = result.timeline.answered_model, result.timeline.sent_ns
        if result.timeline.service_tier and sent_ns is not None:
            self._take_tier(result.timeline.service_tier, sent_ns / 1e9)
        if not answered or sent_ns is None:
            return
        if result.adapter:
            parts = (part for probe in self._spec.probes for _, part, _ in probe.workload.shares())
            other = result.named_instead({name for part in parts if part.adapters for name in part.adapters.names})
            if other and result.adapter not in self._misnamed:
                self._misnamed.add(result.adapter)
                self._record(f"answers to requests for {result.adapter} name the model {other}")
            return
        is_first, before = not self.answering.model, (self._requested_model, self._engine, self.answering.text)
        self._requested_model, self._engine = result.model, result.engine
        change = self.answering.take(answered, sent_ns / 1e9)
        if change is not None and change.new != self._changed_to:  # otherwise the page has reported the change
            self._observed.engine_changed(change)
        if is_first and answered != result.model:
            self._record(f"answers name the model {answered}, requested is {result.model}")
        if before != (self._requested_model, self._engine, self.answering.text):
            self._show_info()

    def _take_tier(self, tier: str, sent_s: float) -> None:
        """Process the service tier that an answer names; an answer that names none is no change."""
        change = self.tier.take(tier, sent_s)
        if change is not None:
            now, before = (name.replace("|", " and ") for name in (change.new, change.old))
            turn = " in turn" if now != change.new else ""
            self._record(f"answers name the service tier {now}{turn}, before it was {before}")
        shown = {(self.name, name) for name in self.tier.names}
        self._registry.keep(series.SERVICE_TIER_INFO, shown, self.name)
        for labels in shown:
            self._registry.show(series.SERVICE_TIER_INFO, 1.0, *labels)

    def gpus_read(self, devices: Sequence[GpuReading], driver: str) -> None:
        if devices and driver:
            for change in self.continuity.identity.update({"driver": driver}):
                self._observed.engine_changed(change)

    def engine_changed(self, change: EngineChange) -> None:
        kind = change.kind if change.kind in series.ENGINE_CHANGE_KINDS else "flags"
        self._registry.value(series.ENGINE_CHANGES, self.name, kind).inc()
        self._registry.show(series.ENGINE_LAST_CHANGE, self._observed.target.clock.unix_s(), self.name, kind)
        now_s = self._observed.target.clock.now_ns() / 1e9
        is_often = len(self._resized_s) == MAX_CHANGES and now_s - self._resized_s[0] < ALONE_S
        self._record(change.text(), is_logged=kind != "size" or not is_often)
        if kind == "size" and not is_often:
            self._resized_s.append(now_s)
        if kind == "model":
            self._changed_to = change.new

    def _record(self, text: str, *, is_logged: bool = True) -> None:
        event = TargetEvent(self._observed.target.clock.unix_s(), self.name, "engine", text)
        if is_logged:
            self._monitor.events.record(log, event, f"engine: {text}")
        else:
            self._monitor.events.append(event)

    def _show_info(self) -> None:
        """Export the identity on the metrics page, with the answering model if it is not the requested one."""
        info, answered = self._page_info, self.answering.text
        if info is None and answered:
            info = EngineInfo(self._engine, model=answered)
        model = self.other_model or (info.model if info else None) or ""
        labels = (self.name, *self._bounded(info.engine, info.version or "", model)) if info else None
        self._registry.keep(series.ENGINE_INFO, {labels} if labels else (), self.name)
        if labels:
            self._registry.show(series.ENGINE_INFO, 1.0, *labels)

    def _bounded(self, *identity: *tuple[str, str, str]) -> tuple[str, str, str]:
        """The identity as label values: beyond MAX_IDENTITIES it becomes `other`, because each creates a series."""
        if identity not in self._identities and len(self._identities) >= MAX_IDENTITIES:
            if not self._is_told_of_identities:
                self._is_told_of_identities = True
                log.warning("target=%s: %s; the label is `other` from now on", self.name, _TOO_MANY)
            return identity[0], OTHER, OTHER
        self._identities.add(identity)
        return identity

    def _declare(self) -> None:
        if is_expected(self._spec.metrics, self.continuity):
            self._registry.value(series.ENGINE_UP, self.name)
        for kind in series.ENGINE_CHANGE_KINDS if self._spec.metrics is not None else ("model",):
            self._registry.value(series.ENGINE_CHANGES, self.name, kind)


def _page(spec: TargetSpec) -> str:
    """Digest of the address of a target's metrics page, or of its URL and engine; "" if no page is read.

    The address itself is not used, as it may contain secrets.
    """
    if spec.metrics is None:
        return ""
    return _digest(spec.metrics.url or f"{spec.url} {spec.engine or ''}")


def _asked(spec: TargetSpec) -> str:
    """Digest of the target's URL and model."""
    return _digest(f"{spec.url} {spec.model or ''}")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]

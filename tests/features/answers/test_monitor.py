"""Checked answers of all targets: what is fed, what is kept, what is shown."""

from prober.config.configuration import DriftSpec
from prober.config.load import load
from prober.config.target import TargetSpec
from prober.daemon.registry import registry
from prober.features.answers import series
from prober.features.answers.monitor import AnswersMonitor
from prober.measure.engine_signals import EngineChange
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.probing.history import EventLog
from prober.storage.saved_rows import SavedRows
from tests.observed import StoppedClock, observed, reconfigured

TEXT = """
targets: [{name: t, url: 'http://h', probes: [{workload: golden, rate: 10/h}]}]
workloads:
  golden:
    golden:
      - {prompt: The capital of France?, expect: {text: %s}}
      - {prompt: A colour?, expect: {regex: "red|blue"}}
"""
INTERVAL_NS = 360 * 10**9  # between answers
DAYS = 300  # answers of 30 hours: a first baseline
KEY = ("golden", "text")


def spec(answer: str = "Paris") -> TargetSpec:
    return load(TEXT % answer, source="c", engines=(), environment={}, read=lambda path: path).targets[0]


class Stage:
    """The targets `t` and `neighbour`, each with its answers, and a clock that both share."""

    def __init__(self, saved: dict[str, bytes] | None = None, begin_ns: int = 0) -> None:
        self.registry, self.events, self.clock = registry(), EventLog(), StoppedClock()
        self.clock.ns = begin_ns
        self.monitor = AnswersMonitor(self.registry, self.events, DriftSpec(), SavedRows(saved or {}))
        self.target, self.neighbour = (
            observed(spec(), self.monitor.observe, name=name, clock=self.clock) for name in ("t", "neighbour")
        )

    def feed(self, *outcomes: Outcome, check: str = "text", others: Outcome = Outcome.OK) -> None:
        """Answers of `t`; the neighbour gives the answer `others` to each."""
        for outcome in outcomes:
            self.clock.ns += INTERVAL_NS
            for target, end in ((self.target, outcome), (self.neighbour, others)):
                target.probe_ended(
                    ProbeResult(
                        target.name, "golden", "id", self.clock.unix_s(), end, "", Timeline(self.clock.ns), check=check
                    )
                )

    def changed(self, cause: str, target: str = "t", check: str = "text") -> float | None:
        return self.registry.value(series.ANSWERS_CHANGED, target, "golden", check, cause).value

    def has_baseline(self, target: str) -> bool:
        ratios = self.registry.family(series.ANSWERS_WRONG).of(target)
        return any(labels[1:] == (*KEY, "baseline") for labels in ratios)

    def texts(self) -> list[str]:
        return [
            f"{event.target} {event.kind}: {event.text}" for event in self.events.latest() if "learnt" not in event.text
        ]


def test_a_model_that_answers_worse_is_told_with_its_engines_change() -> None:
    """Series, event; the other check of the target and the neighbour stay silent, and all of it goes when answers are right again."""
    stage = Stage()
    stage.feed(*[Outcome.OK] * DAYS, check="regex")
    stage.feed(*[Outcome.OK] * (DAYS + 1))
    stage.target.engine_changed(EngineChange("version", "0.9", "0.10"))
    at_unix_s = stage.clock.unix_s()
    stage.feed(*[Outcome.OK, Outcome.WRONG_ANSWER] * 20)
    assert (stage.changed("engine_change"), stage.changed("unknown")) == (1, 0)
    assert stage.registry.value(series.ANSWERS_ENGINE_CHANGE, "t", *KEY).value == at_unix_s
    assert abs(stage.registry.value(series.ANSWERS_SINCE, "t", *KEY).value - at_unix_s) < 1800
    assert stage.registry.value(series.ANSWERS_WRONG, "t", *KEY, "baseline").value == 0
    assert 0.4 < stage.registry.value(series.ANSWERS_WRONG, "t", *KEY, "since").value < 0.7
    assert stage.changed("engine_change", check="regex") == 0
    assert [stage.changed(cause, "neighbour") for cause in ("engine_change", "unknown")] == [0, 0]
    (text,) = stage.texts()
    assert text.startswith("t answers: text of golden: wrong more often than before: ")
    assert "0 of 301 in the baseline; it began about when the engine changed at 2001-09-" in text
    assert text.endswith(" UTC (version was 0.9, is 0.10)")
    stage.feed(*[Outcome.OK] * 500)
    assert stage.changed("engine_change") == 0
    assert not stage.registry.family(series.ANSWERS_SINCE).of("t")
    assert not stage.registry.family(series.ANSWERS_ENGINE_CHANGE).of("t")
    assert "no longer wrong more often" in stage.texts()[0]


def test_failures_of_the_way_are_no_answers() -> None:
    """Neither learned nor judged, however many."""
    stage = Stage()
    stage.feed(*[Outcome.RESET, Outcome.HTTP_5XX, Outcome.REJECTED, Outcome.TRUNCATED] * (DAYS // 4))
    assert (stage.has_baseline("t"), stage.has_baseline("neighbour")) == (False, True)
    stage.feed(*[Outcome.OK] * (DAYS + 1))
    stage.feed(*[Outcome.RESET] * 500)
    assert (stage.changed("unknown"), stage.texts()) == (0, [])


def test_states_continue_after_a_restart_of_the_prober() -> None:
    """The baseline, and an alarm with its engine's change; a row that cannot be read is learned again and stops nothing."""
    stage = Stage()
    stage.feed(*[Outcome.OK] * (DAYS + 1))
    stage.target.engine_changed(EngineChange("model", "a", "b"))
    stage.feed(*[Outcome.OK, Outcome.WRONG_ANSWER] * 20)
    rows = dict(stage.monitor.states())
    again = Stage(rows, stage.clock.ns)
    assert again.changed("engine_change") == 1
    assert dict(again.monitor.states()) == rows
    broken = Stage(rows | {'["t", "golden", "text"]': b'{"asked": 1}'}, stage.clock.ns)
    assert (broken.has_baseline("t"), broken.has_baseline("neighbour")) == (False, True)


def test_another_prompt_or_check_begins_a_new_baseline() -> None:
    """By a reload, or between two runs; a reload without such a change keeps it."""
    stage = Stage()
    stage.feed(*[Outcome.OK] * (DAYS + 1))
    stage.target = reconfigured(stage.target, spec(), stage.registry)
    assert stage.has_baseline("t")
    stage.target = reconfigured(stage.target, spec("Lyon"), stage.registry)
    assert (stage.has_baseline("t"), stage.has_baseline("neighbour")) == (False, True)


def test_a_check_that_is_no_longer_configured_has_no_series() -> None:
    """Not even the alarm that it had, which would stay for ever."""
    stage = Stage()
    stage.feed(*[Outcome.OK] * DAYS, *[Outcome.WRONG_ANSWER] * 40)
    assert stage.changed("unknown") == 1
    text = (TEXT % "Paris").replace("{text: Paris}", "{regex: Paris}")
    regex = load(text, source="c", engines=(), environment={}, read=lambda path: path).targets[0]
    reconfigured(stage.target, regex, stage.registry)
    assert {labels[2] for labels in stage.registry.family(series.ANSWERS_CHANGED).of("t")} == {"regex"}

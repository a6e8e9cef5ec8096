"""Why is it slower? Days of a simulated engine, probed and read as the daemon does it, in virtual time."""

from collections import deque
from collections.abc import Iterator
from heapq import merge
from random import Random

import pytest

from prober.config.configuration import DriftSpec
from prober.config.load import load
from prober.daemon.registry import registry
from prober.exposition.families import Value
from prober.features.drift.monitor import DriftMonitor
from prober.measure.engine_signals import EngineInfo, EngineSignals, PageReading
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.probing.history import EventLog
from prober.simulation.engine import Engine
from prober.simulation.faults import Fault, Slow
from prober.simulation.load import AzureConversation
from prober.simulation.parameters import Parameters
from prober.simulation.probe_samples import OUTPUT, PROMPT
from prober.simulation.request import End, Request, Truth
from prober.storage.saved_rows import SavedRows
from tests.observed import observed

HOUR_S = 3600.0
LEARNT_S = 76 * HOUR_S  # three days and what the baseline takes beyond
READ_EVERY_S = 5.0  # the default of `metrics.interval`

TEXT = "targets: [{name: t, url: 'http://h', rate: 0.2/s}]"


class Watched:
    """A target, and the causes of drift that were ever shown of its TTFT."""

    def __init__(self) -> None:
        self.families = registry()
        self.monitor = DriftMonitor(self.families, EventLog(), DriftSpec(), SavedRows())
        self.target = observed(
            load(TEXT, source="c", engines=(), environment={}, read=lambda path: path).targets[0], self.monitor.observe
        )
        self.causes: dict[str, float] = {}
        self.settled_s: float | None = None

    def is_active(self, name: str, label: str) -> bool:
        child = self.families[name].children[("t", "probe", "ttft", label)]
        return isinstance(child, Value) and child.value == 1

    def read(self, at_s: float, finished: int, running: int, waiting: int) -> None:
        """The page was read."""
        signals = EngineSignals(
            EngineInfo("vllm"),
            requests_running=float(running),
            requests_waiting=float(waiting),
            requests_finished_total=float(finished),
        )
        self.target.page_read(PageReading(round(at_s * 1e9), 0, signals))

    def take(self, truth: Truth) -> None:
        """A probe has ended."""
        at_s = truth.request.arrival_s
        stamps = tuple(round(t * 1e9) for t in truth.token_times_s())
        timeline = Timeline(round(at_s * 1e9), first_ns=stamps[0], content_ns=stamps, end_ns=stamps[-1])
        self.target.probe_ended(ProbeResult("t", "probe", "id", at_s, Outcome.OK, "", timeline))
        if self.settled_s is None and self.is_active("llmslo_drift_phase", "settled"):
            self.settled_s = at_s
        for cause in ("regression", "unknown"):
            if self.is_active("llmslo_drift_active", cause):
                self.causes.setdefault(cause, at_s)


def background(rng: Random, more_per_s: float) -> Iterator[Request]:
    """A request a second by day and night, and `more_per_s` beside it for the last hours."""
    usual = AzureConversation(1.0).requests(Random(rng.getrandbits(64)), 0.0, LEARNT_S + 6 * HOUR_S)
    if not more_per_s:
        return usual
    more = AzureConversation(more_per_s).requests(Random(rng.getrandbits(64)), LEARNT_S, 6 * HOUR_S)
    return merge(usual, (one._replace(arrival_s=one.arrival_s + LEARNT_S) for one in more))


def probes(rng: Random) -> Iterator[Request]:
    at_s = rng.expovariate(0.2)
    while at_s < LEARNT_S + 6 * HOUR_S:
        yield Request(at_s, PROMPT.draw(rng), max(2, OUTPUT.draw(rng)))
        at_s += rng.expovariate(0.2)


def story(faults: tuple[Fault, ...], more_per_s: float) -> Watched:
    rng = Random(5)
    engine = Engine(Parameters(), Random(rng.getrandbits(64)), faults)
    watched, underway, read_s = Watched(), deque[Truth](), 0.0
    for arrived, request in enumerate(merge(probes(Random(rng.getrandbits(64))), background(rng, more_per_s))):
        while read_s <= request.arrival_s:
            engine.advance(read_s)
            running, waiting = engine.state.running, engine.state.waiting
            watched.read(read_s, arrived - running - waiting, running, waiting)
            read_s += READ_EVERY_S
        truth = engine.submit(request)
        if not request.background:
            underway.append(truth)
        while underway and underway[0].end is not None:
            truth = underway.popleft()
            assert truth.end is End.COMPLETE
            watched.take(truth)
    return watched


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "more_per_s", "causes"),
    [((Slow(1.3, LEARNT_S),), 0.0, ["regression"]), ((Slow(2.0, LEARNT_S),), 0.0, ["regression"]), ((), 2.0, [])],
    ids=["steps cost 1.3 times as much", "steps cost twice as much", "three times the load"],
)
def test_more_load_and_a_slower_engine_are_told_apart(
    faults: tuple[Fault, ...], more_per_s: float, causes: list[str]
) -> None:
    """The one is a regression that lasts, the other a load that was not learnt, and no drift; nothing before.

    A slower engine holds more requests at the same arrivals: they are no load that could explain the slowdown.
    """
    watched = story(faults, more_per_s)
    assert watched.settled_s is not None
    assert watched.settled_s < LEARNT_S
    assert list(watched.causes)[:1] == causes
    assert all(LEARNT_S < watched.causes[cause] < LEARNT_S + 3 * HOUR_S for cause in causes)
    assert causes or not watched.causes
    assert all(watched.is_active("llmslo_drift_active", cause) for cause in causes), "a regression stays active"
    assert watched.is_active("llmslo_drift_load", "outside" if more_per_s else "within")

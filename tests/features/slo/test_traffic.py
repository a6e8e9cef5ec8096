"""Events of an SLO among all requests of an engine, from pages that the Prometheus client writes, and from captured ones."""

import random
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from prober.config.load import load
from prober.config.target import TargetSpec
from prober.daemon.registry import registry
from prober.exposition.parse import Parser
from prober.features.engines.continuity import Continuity
from prober.features.engines.page_reading import read_signals as read
from prober.features.engines.page_reading import recognise
from prober.features.slo import series
from prober.features.slo.monitor import SloMonitor, TargetSlos
from prober.features.slo.traffic import bound_text, histogram_of, judged_text
from prober.measure.engine_signals import EngineSignals, PageReading
from prober.measure.engines import TABLES
from prober.probing.history import EventLog
from tests.observed import observed, reconfigured

PAGES = Path(__file__).parents[2] / "pages"
# TTFT of vLLM 0.32, as on its captured page.
BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
CONFIG = """
slos:
  ttft: {signal: ttft, threshold: 500ms, objective: 99%}
  ok: {signal: success, objective: 99%}
targets: [{name: t, url: http://h, metrics: {slos: [ttft]}}]
"""
NEAR = CONFIG.replace("500ms", "300ms")


class Engine:
    """The page of a vLLM server with two data-parallel ranks; `latencies`: TTFT of its requests, as they were drawn."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self._draw = random.Random(7)
        self.restart()

    def restart(self) -> None:
        """Begin with a page of zeros, as another process does."""
        self._page = CollectorRegistry()
        labels = ("model_name", "engine")
        running = Gauge("vllm:num_requests_running", "Running", labels, registry=self._page)
        self._ttft = Histogram("vllm:time_to_first_token_seconds", "TTFT", labels, registry=self._page, buckets=BOUNDS)
        self._requests = Counter("vllm:request_success", "Requests", (*labels, "finished_reason"), registry=self._page)
        self._ranks = (running, self._ttft)
        for rank in ("0", "1"):
            running.labels("m", rank).set(1)
            self._ttft.labels("m", rank)

    def serve(self, count: int, rank: str) -> "Engine":
        """Serve requests, some 10% of which wait longer than 500 ms."""
        for _ in range(count):
            self.latencies.append(self._draw.lognormvariate(-1.4, 0.6))
            self._ttft.labels("m", rank).observe(self.latencies[-1])
            self._requests.labels("m", rank, "stop").inc()
        return self

    def lose(self, rank: str) -> None:
        """A rank leaves with its series."""
        for metric in self._ranks:
            metric.remove("m", rank)

    def signals(self) -> EngineSignals:
        return signals_of(generate_latest(self._page))


class Prober:
    """Reads an engine's pages, and counts."""

    def __init__(self, config: str = CONFIG) -> None:
        self.registry = registry()
        self.events = EventLog()
        self.target = observed(specification(config), SloMonitor(self.registry, events=self.events).observe)
        self._continuity = Continuity()

    def read(self, engine: Engine | None) -> None:
        """Read the page; None: it does not answer."""
        found = self._continuity.take(engine.signals()).signals if engine else None
        self.target.page_read(PageReading(0, self._continuity.epoch, found) if found else None)

    @property
    def counted(self) -> tuple[float, float]:
        """(events, bad events)."""
        events, bad = (
            self.registry.value(counter, "t", "ttft").value
            for counter in (series.TRAFFIC_EVENTS, series.TRAFFIC_BAD_EVENTS)
        )
        return events, bad

    @property
    def bounds(self) -> list[tuple[tuple[str, ...], float]]:
        """Labels and value of the bound in use."""
        family = self.registry.family(series.TRAFFIC_THRESHOLD)
        return [(labels, family.value(*labels).value) for labels in family.of("t")]


def specification(config: str) -> TargetSpec:
    return load(config, source="c", engines=(), environment={}, read=lambda path: path).targets[0]


def signals_of(page: bytes) -> EngineSignals:
    parsed = Parser().parse(page)
    table = recognise(parsed, TABLES)
    assert table is not None
    return read(parsed, table).signals


def truth(latencies: list[float], bound: float) -> tuple[float, float]:
    return len(latencies), sum(latency > bound for latency in latencies)


@pytest.mark.parametrize(("config", "bound"), [(CONFIG, 0.5), (NEAR, 0.25)])
def test_all_requests_of_all_ranks_count_by_the_nearest_bound(config: str, bound: float) -> None:
    """Those of before the first reading are of nobody knows when, and do not count; those while the page was unreadable do."""
    engine, prober = Engine().serve(300, "0"), Prober(config)
    assert (prober.counted, prober.bounds) == ((0, 0), [])
    prober.read(engine)
    assert (prober.counted, prober.bounds) == ((0, 0), [(("t", "ttft", "ttft"), bound)])
    prober.read(engine.serve(200, "0").serve(100, "1"))
    assert prober.counted == truth(engine.latencies[300:], bound)
    assert prober.counted[1] > 20
    prober.read(None)
    assert (prober.counted, prober.bounds) == (truth(engine.latencies[300:], bound), [])
    prober.read(engine.serve(50, "1"))
    prober.read(engine.serve(50, "1"))
    assert prober.counted == truth(engine.latencies[300:600] + engine.latencies[650:], bound)


def test_a_restart_of_the_engine_counts_nothing_twice() -> None:
    """Totals fall to those of the new process: what it served until it was known is left out, and nothing falls."""
    engine, prober = Engine().serve(300, "0"), Prober()
    prober.read(engine)
    prober.read(engine.serve(100, "0"))
    engine.restart()
    counted = prober.counted
    for _ in range(3):
        prober.read(engine.serve(60, "0"))
        assert prober.counted[0] >= counted[0]
        assert prober.counted[1] >= counted[1]
    begun = len(engine.latencies)
    prober.read(engine.serve(60, "1"))
    assert prober.counted[0] <= 100 + 4 * 60
    counted = prober.counted
    prober.read(engine.serve(60, "1"))
    new = truth(engine.latencies[begun + 60 :], 0.5)
    assert prober.counted == (counted[0] + new[0], counted[1] + new[1])


def test_a_rank_that_leaves_takes_nothing_back() -> None:
    """Its earlier requests stay counted, and those of the other rank go on."""
    engine, prober = Engine(), Prober()
    prober.read(engine)
    prober.read(engine.serve(200, "0").serve(100, "1"))
    counted = prober.counted
    engine.lose("0")
    prober.read(engine)
    assert prober.counted == counted
    prober.read(engine.serve(80, "1"))
    assert prober.counted == truth(engine.latencies, 0.5)


def test_a_bound_that_is_far_from_the_threshold_judges_nothing() -> None:
    engine, prober = Engine(), Prober(CONFIG.replace("500ms", "200us"))
    prober.read(engine)
    prober.read(engine.serve(100, "0"))
    assert (prober.counted, prober.bounds) == ((0, 0), [])


def test_a_reload_with_another_threshold_begins_at_zero() -> None:
    """Events by another bound must not be added; without `metrics.slos` there are no series."""
    engine, prober = Engine(), Prober()
    prober.read(engine)
    prober.read(engine.serve(100, "0"))
    prober.target = reconfigured(prober.target, specification(NEAR), prober.registry)
    assert (prober.counted, prober.bounds) == ((0, 0), [])
    prober.read(engine)
    prober.read(engine.serve(70, "0"))
    assert (prober.counted[0], [bound for _, bound in prober.bounds]) == (70, [0.25])
    text = CONFIG.replace("slos: [ttft]", "slos: []")
    prober.target = reconfigured(prober.target, specification(text), prober.registry)
    prober.read(engine.serve(70, "0"))
    for declared in (
        series.TRAFFIC_EVENTS,
        series.TRAFFIC_BAD_EVENTS,
        series.TRAFFIC_OBJECTIVE,
        series.TRAFFIC_THRESHOLD,
    ):
        assert not list(prober.registry.family(declared).of("t"))


BOUND_TEXTS = [
    ("vllm_0.32.0_under_load", "ttft", "500ms", "are judged at 500ms, a bound of the engine's histogram"),
    (
        *("vllm_0.32.0_under_load", "ttft", "300ms"),
        "are judged at 250ms (-17%, stricter): 300ms is no bound of the engine's histogram, next to it: 250ms, 500ms",
    ),
    (
        *("vllm_0.32.0_under_load", "ttft", "400ms"),
        "are judged at 500ms (+25%, laxer): 400ms is no bound of the engine's histogram, next to it: 250ms, 500ms",
    ),
    ("vllm_0.32.0_under_load", "e2e", "30s", "are judged at 30s, a bound of the engine's histogram"),
    (
        *("vllm_0.32.0_under_load", "itl", "1ms"),
        "are not judged: 1ms is no bound of the engine's histogram, next to it: 10ms; too far away",
    ),
    (
        *("sglang_0.5.23", "ttft", "500ms"),  # a small page, with two bounds
        "are not judged: 500ms is no bound of the engine's histogram, next to it: 100ms, 1s; too far away",
    ),
    ("llamacpp_0c1e570", "ttft", "500ms", "are not judged: the engine's page has no histogram of ttft"),
]


@pytest.mark.parametrize(("page", "signal", "threshold", "text"), BOUND_TEXTS)
def test_a_sentence_says_which_bound_is_used(page: str, signal: str, threshold: str, text: str) -> None:
    """Of pages that engines wrote: how far the bound is from the threshold, and on which side."""
    config = CONFIG.replace("signal: ttft, threshold: 500ms", f"signal: {signal}, threshold: {threshold}")
    (slo,) = specification(config).traffic_slos
    signals = signals_of((PAGES / f"{page}.prom").read_bytes())
    assert bound_text(slo, histogram_of(slo, signals)) == f"all requests {text}"


def test_how_many_events_a_request_can_give_is_exported() -> None:
    """An SLO of each chunk has as many as the longest answer has; one of each request needs no such figure."""
    prober = Prober(
        CONFIG.replace("  ok:", "  itl: {signal: itl, threshold: 50ms, objective: 99%}\n  ok:").replace(
            "[ttft]", "[ttft, itl]"
        )
    )
    most = prober.registry.family(series.TRAFFIC_EVENTS_PER_REQUEST)
    assert list(most.of("t")) == [("t", "itl")]
    assert most.value("t", "itl").value > 1


def test_what_is_left_of_the_budget_of_all_requests_is_exported() -> None:
    """Since the prober's start; nothing before there was a request."""
    engine, prober = Engine().serve(300, "0"), Prober()
    prober.read(engine)
    left = prober.registry.family(series.TRAFFIC_BUDGET_LEFT)
    assert not list(left.of("t"))
    prober.read(engine.serve(200, "0"))
    slos = prober.target.find(TargetSlos)
    assert slos is not None
    slos.show_standing()
    events, bad = truth(engine.latencies[300:], 0.5)
    assert left.value("t", "ttft").value == pytest.approx(1 - bad / events / 0.01)


SUCCESS = CONFIG.replace("slos: [ttft]", "slos: [ok]")


class Gateway:
    """LiteLLM's page, written by the Prometheus client: a series appears with the first request of its status."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._page = CollectorRegistry()
        Gauge("litellm_in_flight_requests", "", registry=self._page).set(1)
        labels = ("requested_model", "status_code", "user")
        self._requests = Counter("litellm_proxy_total_requests_metric", "", labels, registry=self._page)

    def answer(self, status: int, count: int = 1, user: str = "a") -> "Gateway":
        self._requests.labels("m", str(status), user).inc(count)
        return self

    def lose(self, user: str, status: int) -> None:
        self._requests.remove("m", str(status), user)

    def signals(self) -> EngineSignals:
        return signals_of(generate_latest(self._page))


class SuccessProber(Prober):
    """Judges success. It saves and restores the totals of the page, as a daemon does."""

    def __init__(self) -> None:
        super().__init__(SUCCESS)

    @property
    def counted(self) -> tuple[float, float]:
        events, bad = (
            self.registry.value(counter, "t", "ok").value
            for counter in (series.TRAFFIC_EVENTS, series.TRAFFIC_BAD_EVENTS)
        )
        return events, bad


def test_failures_and_rejections_of_users_requests_are_bad_events_and_their_own_errors_are_none() -> None:
    """5xx and 429 are the server's; 400, 401, 404 and 422 are the users', and a client that went away (499) is nobody's."""
    gateway, prober = Gateway().answer(200, 50).answer(500, 9), SuccessProber()
    prober.read(gateway)  # type: ignore[arg-type]
    assert prober.counted == (0, 0)
    for status, count in ((200, 90), (500, 3), (503, 2), (429, 5), (400, 7), (401, 7), (404, 7), (422, 7), (499, 7)):
        gateway.answer(status, count)
    prober.read(gateway)  # type: ignore[arg-type]
    assert prober.counted == (100, 10)
    assert not list(prober.registry.family(series.TRAFFIC_THRESHOLD).of("t"))


def test_the_first_failure_counts_once_although_its_series_did_not_exist() -> None:
    """And a second label set of the same status counts from 0, not from what others had before."""
    gateway, prober = Gateway().answer(200, 40), SuccessProber()
    prober.read(gateway)  # type: ignore[arg-type]
    prober.read(gateway.answer(503))  # type: ignore[arg-type]
    assert prober.counted == (1, 1)
    prober.read(gateway.answer(503, 2, user="b").answer(200, 7, user="b"))  # type: ignore[arg-type]
    assert prober.counted == (10, 3)


def test_a_restart_and_lost_series_invent_no_failures() -> None:
    """Totals of before the restart are no events of after it, also where the failures' series comes back late."""
    gateway, prober = Gateway().answer(200, 40), SuccessProber()
    prober.read(gateway)  # type: ignore[arg-type]
    prober.read(gateway.answer(500, 10).answer(200, 90))  # type: ignore[arg-type]
    assert prober.counted == (100, 10)
    gateway.restart()
    for _ in range(3):
        prober.read(gateway)  # type: ignore[arg-type]
    assert prober.counted == (100, 10)
    for _ in range(3):
        prober.read(gateway.answer(200, 5))  # type: ignore[arg-type]
    prober.read(gateway.answer(500))  # type: ignore[arg-type]
    events, bad = prober.counted
    assert bad == 11
    assert 101 <= events <= 116
    prober.read(None)
    prober.read(gateway)  # type: ignore[arg-type]
    assert prober.counted == (events, bad)


def test_a_process_of_several_that_leaves_takes_no_failure_back() -> None:
    """Its label set goes; what it counted stays, and nothing counts again when another one grows."""
    gateway, prober = Gateway().answer(200, 40).answer(200, 40, user="b").answer(500, 20, user="b"), SuccessProber()
    prober.read(gateway)  # type: ignore[arg-type]
    prober.read(gateway.answer(500, 2, user="b").answer(200, 8))  # type: ignore[arg-type]
    assert prober.counted == (10, 2)
    gateway.lose("b", 500)
    prober.read(gateway)  # type: ignore[arg-type]
    prober.read(gateway.answer(200, 10))  # type: ignore[arg-type]
    assert prober.counted[1] == 2
    prober.read(gateway.answer(500, 1))  # type: ignore[arg-type]
    assert prober.counted[1] == 3


def test_a_failure_in_two_counters_of_one_page_counts_once() -> None:
    """vLLM counts an error of the engine and the status 500 of its answer; an error inside a stream has status 200."""
    page = (PAGES / "vllm_0.32.0_under_load.prom").read_text()
    prober = SuccessProber()
    continuity = Continuity()

    def read_page(text: str) -> None:
        signals = continuity.take(signals_of(text.encode())).signals
        prober.target.page_read(PageReading(0, continuity.epoch, signals) if signals else None)

    def after(*, stop: float = 0, error: float = 0, rejected: float = 0, status_5xx: float = 0) -> str:
        counts = {
            'request_success_total{engine="0",finished_reason="stop",model_name="tiny"}': stop,
            'request_success_total{engine="0",finished_reason="error",model_name="tiny"}': error,
            'admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"}': rejected,
        }
        text = page
        for name, count in counts.items():
            assert f"vllm:{name} 0.0" in text
            text = text.replace(f"vllm:{name} 0.0", f"vllm:{name} {count}")
        return text + f'http_requests_total{{handler="/v1/completions",method="POST",status="5xx"}} {status_5xx}\n'

    read_page(page)
    read_page(after(stop=90, error=4, rejected=6, status_5xx=10))
    assert prober.counted == (100, 10)
    read_page(after(stop=90, error=9, rejected=6, status_5xx=10))
    assert prober.counted == (105, 15)
    read_page(after(stop=90, error=9, rejected=6, status_5xx=13))  # the engine never heard of them
    assert prober.counted == (108, 18)


@pytest.mark.parametrize(
    ("server", "good", "bad"),
    [("vllm_0.32.0", 30, 170), ("litellm_1.108.7", 15, 21)],
)
def test_pages_of_real_servers_give_what_their_clients_got(server: str, good: int, bad: int) -> None:
    """Captured before and after a load whose answers were noted.

    vLLM with a full queue answers a stream with status 200 and the refusal inside it. Of LiteLLM's two servers one was down (500), and
    four requests were wrong (400).
    """
    prober, continuity = SuccessProber(), Continuity()
    for moment in ("before", "after"):
        page = (Path(__file__).parent / "pages" / f"{server}_{moment}.prom").read_bytes()
        signals = continuity.take(signals_of(page)).signals
        assert signals is not None
        prober.target.page_read(PageReading(0, continuity.epoch, signals))
    assert prober.counted == (good + bad, bad)


def test_a_counter_that_comes_back_late_after_a_restart_brings_no_failures_of_before() -> None:
    """vLLM's count of answers by status appears with the first answer; its total goes on from that of before the restart."""
    page = (PAGES / "vllm_0.32.0_under_load.prom").read_text()
    prober, continuity = SuccessProber(), Continuity()
    failed = 'http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 50\n'
    fresh = re.sub(r"^(vllm:\w+(?:\{.*\})?) \S+$", r"\1 0.0", page, flags=re.MULTILINE)
    fresh = re.sub(
        r"^process_start_time_seconds \S+$", "process_start_time_seconds 1.7999e9", fresh, flags=re.MULTILINE
    )
    silent = re.sub(r"^http_requests_total.*\n", "", fresh, flags=re.MULTILINE)
    for text in (page + failed, page + failed, silent, silent, silent, fresh, fresh):
        signals = continuity.take(signals_of(text.encode())).signals
        assert signals is not None
        prober.target.page_read(PageReading(0, continuity.epoch, signals))
    assert prober.counted == (0, 0)


@pytest.mark.parametrize(
    ("page", "is_judged"),
    [
        ("vllm_0.32.0_under_load", True),
        ("vllm_0.32.0_dp2_multi_api", True),
        ("litellm_1.106.2", True),
        ("lmdeploy_0.18.0", True),
        ("llamacpp_0c1e570", False),
        ("vllm_0.7.3_v0", False),
        ("nim_1.x", False),
        ("genai_envoy", False),
    ],
)
def test_an_engine_whose_page_counts_no_failures_is_not_judged_and_an_event_says_so(page: str, is_judged: bool) -> None:
    """It is never 100%: there are no events, and so no compliance and no budget."""
    prober, signals = SuccessProber(), signals_of((PAGES / f"{page}.prom").read_bytes())
    (slo,) = specification(SUCCESS).traffic_slos
    assert ("not judged" in judged_text(slo, signals)) is not is_judged
    for _ in range(3):
        prober.target.page_read(PageReading(0, 0, signals))
    assert len(prober.events.latest("t")) == (0 if is_judged else 1)
    assert prober.counted == (0, 0)
    assert not list(prober.registry.family(series.TRAFFIC_BUDGET_LEFT).of("t"))

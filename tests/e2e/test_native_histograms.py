"""Native histograms in real Prometheuses: what each release stores of the daemon's page, as it is configured."""

import asyncio
import json
import math
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from aiohttp import web

from prober.config.load import load
from prober.daemon.registry import registry
from prober.exposition.buckets import COARSE
from prober.exposition.families import Form, Histogram, Registry
from prober.features.engines import series as engines_series
from prober.features.slo.monitor import SloMonitor
from prober.measure.outcome import Outcome
from prober.measure.request import trace_ids
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.probing import series as probe_series
from prober.probing.recorder import TargetProbes
from prober.web.answers import complete
from prober.web.site import Site
from tests import processes
from tests.conftest import newer
from tests.observed import observed
from tests.processes import get, until
from tests.serving import serving

SLO_S = 0.3  # no bound of exponential buckets
SAMPLES = 6000
# More buckets than a native histogram keeps at its first schema: its schema falls between the first and the second page.
WIDE = [10 ** (8 * i / SAMPLES - 5) for i in range(SAMPLES)]


SPEC = load(
    "slos: {t: {signal: ttft, threshold: 300ms, objective: 99%}}\ntargets: [{name: t, url: http://h}]",
    source="c",
    engines=(),
    environment={},
    read=lambda path: path,
).targets[0]


@dataclass(slots=True)
class Prober:
    """The daemon's page: of a registry without observations until `is_full`, then of one with all of them."""

    samples: list[float]
    families: Registry
    port: int = 0
    is_full: bool = False
    forms: list[str] = field(default_factory=list)  # Content-Types of the pages served


def recorded(samples: list[float], wide: list[float]) -> Registry:
    """`samples` as TTFTs, `wide` as chunk gaps, four children of one family, and an engine's own histogram."""
    families = registry(unix_s=time.time)
    target, now = observed(SPEC, partial(TargetProbes, families), SloMonitor(families).observe), time.time()
    for i, value in enumerate(samples):
        first = round(value * 1e9)
        timeline = Timeline(0, first_ns=first, first_answer_ns=first, end_ns=2 * first)
        request_id = f"slo-probe-{i:016x}"
        result = ProbeResult("t", "probe", request_id, now + i / 1e6, Outcome.OK, "", timeline, is_traced=True)
        target.probe_ended(result)
    for gaps in families[probe_series.CHUNK_GAP.name].children.values():
        assert isinstance(gaps, Histogram)
        gaps.observe(*wide)
    for phase in probe_series.PHASES:
        families[probe_series.CONNECT.name].histogram(COARSE, "t", phase).observe(0.001)
    families[engines_series.SIGNALS["ttft_seconds"].name].histogram((0.1, 1.0), "t").take_over((1, 3, 4), 2.0)
    return families


@pytest.fixture
async def prober() -> AsyncIterator[Prober]:
    rng = Random(11)
    samples = [0.22 * math.exp(0.4 * rng.gauss(0, 1)) for _ in range(SAMPLES)]
    registry = recorded([], [])
    prober_ = Prober(samples, recorded(samples, WIDE))
    site = Site(cast(Any, None), cast(Any, None), registry, cast(Any, None), "", "")

    async def metrics(request: web.Request) -> web.StreamResponse:
        if prober_.is_full:
            registry.update(prober_.families)
        answer = await complete(await site.metrics(request))
        prober_.forms.append(answer.headers["Content-Type"])
        return answer

    async with serving(metrics) as url:
        prober_.port = int(url.rpartition(":")[2])
        yield prober_


@pytest.fixture(scope="session")
def newer_prometheus() -> Path:
    """Prometheus 3."""
    return newer("prometheus")


class Prometheus(processes.Prometheus):
    """A running one that reads the prober twice a second."""

    def value(self, query: str) -> float | None:
        """Of the one series that the query gives; None: it gives none."""
        rows = self.query(query)
        assert len(rows) <= 1, (query, rows)
        return float(rows[0]["value"][1]) if rows else None

    def exemplars(self, query: str) -> list[dict[str, Any]]:
        now = time.time()
        words = urllib.parse.urlencode({"query": query, "start": f"{now - 600:.0f}", "end": f"{now + 600:.0f}"})
        data = json.loads(get(f"{self.url}/api/v1/query_exemplars?{words}"))["data"]
        return [exemplar for entry in data for exemplar in entry["exemplars"]]


def options(binary: Path, native: bool, classic: bool) -> tuple[str, dict[str, bool]]:
    """(features, keys of the scrape job) of this release that ask for native histograms, and for classic ones beside them."""
    printed = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    match = re.search(r"version (\d+)\.(\d+)", printed.stdout + printed.stderr)
    assert match is not None
    version = int(match[1]), int(match[2])
    features, keys = ["exemplar-storage"], {}
    if native and version >= (3, 8):
        keys["scrape_native_histograms"] = True
    elif native:
        features.append("native-histograms")
    if version >= (3, 0):
        keys["always_scrape_classic_histograms"] = classic
    elif version >= (2, 45):
        keys["scrape_classic_histograms"] = classic
    return ",".join(features), keys


def running(binary: Path, folder: Path, port: int, native: bool, classic: bool) -> Prometheus:
    features, keys = options(binary, native, classic)
    job = {"job_name": "t", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}], **keys}
    document = {"global": {"scrape_interval": "500ms"}, "scrape_configs": [job]}
    return Prometheus(binary, folder, document, "--log.level=debug", f"--enable-feature={features}")


def wait_for(prometheus: Prometheus, query: str, value: float) -> None:
    until(lambda: prometheus.value(query) == value, f"{query} to be {value}")


def exact(samples: list[float], q: float) -> float:
    return sorted(samples)[math.ceil(q * len(samples)) - 1]


def check_native(prometheus: Prometheus, prober: Prober) -> None:
    """All observations, quantiles, exemplars; and a histogram whose schema fell between two scrapes."""
    wait_for(prometheus, "histogram_count(llmslo_ttft_seconds)", SAMPLES)
    assert prometheus.value("histogram_sum(llmslo_ttft_seconds)") == pytest.approx(sum(prober.samples))
    for of in ("llmslo_ttft_seconds", "rate(llmslo_ttft_seconds[1m])"):
        for q in (0.5, 0.9, 0.99, 0.999):
            assert prometheus.value(f"histogram_quantile({q}, {of})") == pytest.approx(
                exact(prober.samples, q), rel=0.05
            )
    assert prometheus.value("histogram_count(llmslo_chunk_gap_seconds)") == SAMPLES
    wide = prometheus.value("histogram_quantile(0.5, rate(llmslo_chunk_gap_seconds[1m]))")
    assert wide == pytest.approx(exact(WIDE, 0.5), rel=0.10)
    assert prometheus.value("count(llmslo_connect_seconds)") == len(probe_series.PHASES)
    assert prometheus.query("llmslo_tpot_seconds"), "one without observations is native too"
    exemplars = prometheus.exemplars("llmslo_ttft_seconds")
    assert exemplars
    for exemplar in exemplars:
        request_id, trace_id = exemplar["labels"]["request_id"], exemplar["labels"]["trace_id"]
        assert float(exemplar["value"]) == pytest.approx(prober.samples[int(request_id.removeprefix("slo-probe-"), 16)])
        assert trace_id == trace_ids(request_id)[0]


def check_classic(prometheus: Prometheus, prober: Prober) -> None:
    """The same series, counts and quantiles as from the text."""
    wait_for(prometheus, "llmslo_ttft_seconds_count", SAMPLES)
    assert prometheus.value("llmslo_ttft_seconds_sum") == pytest.approx(sum(prober.samples))
    assert prometheus.value("count(llmslo_connect_seconds_count)") == len(probe_series.PHASES)
    (child,) = prober.families["llmslo_ttft_seconds"].children.values()
    bounds = {entry["metric"]["le"] for entry in prometheus.query("llmslo_ttft_seconds_bucket")}
    written = set(re.findall(r'le="(.*?)"', child.text(False)))
    assert {float(le) for le in bounds} == {float(le) for le in written}
    good = prometheus.value('llmslo_ttft_seconds_bucket{le="0.3"}')
    assert good == sum(value <= SLO_S for value in prober.samples)
    for q in (0.5, 0.9, 0.95, 0.97, 0.99):
        estimated = prometheus.value(f"histogram_quantile({q}, sum by (le) (rate(llmslo_ttft_seconds_bucket[1m])))")
        value = exact(prober.samples, q)
        assert estimated == pytest.approx(value, rel=0.06 if SLO_S / 2 < value < SLO_S * 2 else 0.13)
    assert {len(exemplar["labels"]["trace_id"]) for exemplar in prometheus.exemplars("llmslo_ttft_seconds_bucket")} == {
        32
    }


@pytest.mark.parametrize(
    ("which", "native", "classic"),
    [
        pytest.param("prometheus_binary", False, False, id="off"),
        pytest.param("prometheus_binary", True, False, id="native"),
        pytest.param("newer_prometheus", False, False, id="newer-off"),
        pytest.param("newer_prometheus", True, False, id="newer-native"),
        pytest.param("newer_prometheus", True, True, id="newer-both"),
    ],
)
async def test_prometheus_stores_what_it_is_set_to(
    tmp_path: Path, request: pytest.FixtureRequest, prober: Prober, which: str, native: bool, classic: bool
) -> None:
    """Classic histograms, native ones, or both; counters, gauges and the engine's own histograms in every case."""

    def check() -> None:
        with running(request.getfixturevalue(which), tmp_path, prober.port, native, classic) as prometheus:
            wait_for(prometheus, "up", 1)  # the page without observations is stored
            prober.is_full = True
            for enabled, checked in ((native, check_native), (classic or not native, check_classic)):
                if enabled:
                    checked(prometheus, prober)
            stored = {
                entry["metric"]["__name__"]
                for entry in prometheus.query('count by (__name__) ({__name__=~"llmslo_ttft_seconds.*"})')
            }
            parts = {f"llmslo_ttft_seconds_{part}" for part in ("bucket", "count", "sum")}
            expected = (parts if classic or not native else set()) | ({"llmslo_ttft_seconds"} if native else set())
            assert stored == expected
            assert prometheus.value('llmslo_engine_ttft_seconds_bucket{le="+Inf"}') == 4
            assert prometheus.value("llmslo_engine_ttft_seconds_count") == 4
            assert prometheus.value('llmslo_slo_events_total{slo="t"}') == SAMPLES
            assert prometheus.value('llmslo_slo_threshold_seconds{slo="t"}') == SLO_S
            assert prometheus.query("process_cpu_seconds_total")
            wait_for(prometheus, "up", 1)
            lines = prometheus.log.read_text().splitlines()
            failures = [
                line for line in lines if re.search("(scrape|commit|append) failed|error on ingesting", line.lower())
            ]
            assert all("deadline exceeded" in line for line in failures), failures  # half a second, on a busy machine

    await asyncio.to_thread(check)
    assert set(prober.forms) == {(Form.PROTOBUF if native else Form.OPENMETRICS).value}


async def test_classic_buckets_are_stored_as_one_native_histogram(
    tmp_path: Path, newer_prometheus: Path, prober: Prober
) -> None:
    """Prometheus 3's native histograms with custom buckets: shares below a threshold stay exact, also of the engine's histograms."""
    prober.is_full = True
    job = {
        "job_name": "t",
        "static_configs": [{"targets": [f"127.0.0.1:{prober.port}"]}],
        "scrape_protocols": ["OpenMetricsText1.0.0"],  # of protobuf it would take the exponential buckets
        "convert_classic_histograms_to_nhcb": True,
    }
    document = {"global": {"scrape_interval": "500ms"}, "scrape_configs": [job]}

    def check() -> None:
        features = "--enable-feature=exemplar-storage,native-histograms"
        with Prometheus(newer_prometheus, tmp_path, document, features) as prometheus:
            wait_for(prometheus, "histogram_count(llmslo_ttft_seconds)", SAMPLES)
            good = sum(value <= SLO_S for value in prober.samples) / SAMPLES
            assert prometheus.value(f"histogram_fraction(0, {SLO_S}, llmslo_ttft_seconds)") == pytest.approx(
                good, rel=1e-9
            )
            assert prometheus.value("histogram_fraction(0, 1, llmslo_engine_ttft_seconds)") == 0.75
            assert not prometheus.query('{__name__=~"llmslo_.*_bucket"}')
            written = sum(map(len, (family.children for family in prober.families.values())))
            assert prometheus.value('count({__name__=~"llmslo_.*"})') == written, "one series a histogram"
            assert prometheus.exemplars("llmslo_ttft_seconds")

    await asyncio.to_thread(check)


async def test_prometheus_knows_when_counters_were_zero(tmp_path: Path, newer_prometheus: Path, prober: Prober) -> None:
    """What was counted before the first scrape is an increase, but not what another program's counters had."""
    prober.is_full = True
    engine = engines_series.SIGNALS["prompt_tokens_total"]
    prober.families.show(engine, 1e6, "t")
    job = {"job_name": "t", "static_configs": [{"targets": [f"127.0.0.1:{prober.port}"]}]}
    document = {"global": {"scrape_interval": "500ms"}, "scrape_configs": [job]}

    def check() -> None:
        features = "--enable-feature=native-histograms,created-timestamp-zero-ingestion"
        with Prometheus(newer_prometheus, tmp_path, document, features) as prometheus:
            wait_for(prometheus, "up", 1)
            wait_for(prometheus, "max_over_time(llmslo_slo_events_total[5m])", SAMPLES)
            assert prometheus.value("min_over_time(llmslo_slo_events_total[5m])") == 0
            until(lambda: (prometheus.value("increase(llmslo_slo_events_total[5m])") or 0) >= SAMPLES, "the increase")
            assert (prometheus.value("histogram_count(increase(llmslo_ttft_seconds[5m]))") or 0) >= SAMPLES
            assert prometheus.value(f"min_over_time({engine}[5m])") == 1e6

    await asyncio.to_thread(check)

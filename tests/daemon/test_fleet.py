"""Targets that come, change and go while others are probed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from prober.analysis.trust import Trust
from prober.config.load import load
from prober.config.specs import DriftSpec, TargetSpec
from prober.daemon.fleet import UNNAMED, Fleet
from prober.daemon.gpus import Gpus
from prober.daemon.headroom import Headroom
from prober.daemon.history import History
from prober.daemon.sweeps import Sweeps
from prober.daemon.watch import Watch
from prober.edge.clock import Clock
from prober.engines import DIALECTS
from prober.exposition.families import Histogram, Value
from prober.measure.devices import Device, Throttle
from prober.metrics import Recorder, Registry, registry
from prober.mock.delays import Constant
from prober.mock.engine import Behaviour
from prober.mock.server import running
from prober.mock.settings import Settings

QUICK = Settings(behaviour=Behaviour(ttft=Constant(0.002), itl=Constant(0.0001)))
SLOW = Settings(behaviour=Behaviour(ttft=Constant(0.3), itl=Constant(0.0001)))
DEFAULTS = (
    "defaults: {rate: 50/s, arrivals: constant, warmup: 0, connect_lead: 5ms, max_send_lag: 5s, max_in_flight: 100}\n"
)


def specs(*targets: str) -> tuple[TargetSpec, ...]:
    text = DEFAULTS + "targets:\n" + "".join(f"  - {{{target}}}\n" for target in targets)
    return load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path).targets


class Watched:
    """A fleet and what it has written."""

    def __init__(self, kept: dict[str, bytes] | None = None) -> None:
        self.families: Registry = registry()
        self.clock = Clock()
        recorder = Recorder(self.families)
        self.history = History(100)
        watch = Watch(recorder, self.history, DriftSpec(1 / (30 * 86400), 0.2, 7 * 86400), {})
        headroom, trust = Headroom(self.families), Trust(0.01)
        self.sweeps = Sweeps(self.families, self.history, headroom, trust, None)
        self.fleet = Fleet(self.clock, recorder, self.history, watch, headroom, self.sweeps, trust, "test", kept or {})

    def count(self, name: str, *labels: str) -> float:
        """The value, or the number of observations, of all children whose labels begin with `labels`."""
        found = 0.0
        for key, child in self.families[name].children.items():
            if key[: len(labels)] == labels:
                found += child.value if isinstance(child, Value) else sum(child.counts)
        return found

    def probes(self, *labels: str) -> float:
        return self.count("llmslo_probes_total", *labels)

    def named(self, target: str) -> set[str]:
        """The families that have a series of `target`."""
        return {
            name
            for name, family in self.families.items()
            if family.series.labels[:1] == ("target",) and any(key[0] == target for key in family.children)
        }


@asynccontextmanager
async def watched(kept: dict[str, bytes] | None = None) -> AsyncIterator[Watched]:
    found = Watched(kept)
    try:
        yield found
    finally:
        await found.sweeps.close()
        await found.fleet.stop(0.0)
        found.clock.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 -- what is waited for is a number that has no event
            await asyncio.sleep(0.002)


async def test_a_target_that_did_not_change_goes_on_as_the_same_line() -> None:
    """A reload that adds and changes others leaves its line, its counters and its histogram as they are."""
    async with running(QUICK) as url, watched() as seen:
        await seen.fleet.reconcile(specs(f"name: a, url: '{url}'"), 1.0)
        await until(lambda: seen.probes("a") >= 3)
        line, before = seen.fleet.lines["a"], seen.probes("a")
        histogram = seen.families["llmslo_ttft_seconds"].children["a", "probe"]
        await seen.fleet.reconcile(specs(f"name: b, url: '{url}'", f"name: a, url: '{url}'"), 1.0)
        await until(lambda: seen.probes("b") >= 1 and seen.probes("a") > before)
        assert seen.fleet.lines["a"] is line
        assert seen.families["llmslo_ttft_seconds"].children["a", "probe"] is histogram


async def test_a_target_that_changed_keeps_what_it_counted() -> None:
    """Another rate or timeout is no other target: counters never fall, and its history stays."""
    async with running(QUICK) as url, watched() as seen:
        await seen.fleet.reconcile(specs(f"name: a, url: '{url}'"), 1.0)
        await until(lambda: seen.probes("a") >= 5)
        line = seen.fleet.lines["a"]
        await seen.fleet.reconcile(specs(f"name: a, url: '{url}', rate: 1/h"), 5.0)
        assert seen.fleet.lines["a"] is not line
        assert seen.probes("a") >= 5
        assert sum(seen.fleet.history.outcomes("a").values()) >= 5
        histogram = seen.families["llmslo_ttft_seconds"].children["a", "probe"]
        assert isinstance(histogram, Histogram)
        assert sum(histogram.counts) >= 5


async def test_a_target_that_is_gone_leaves_no_series_and_no_history() -> None:
    """Nothing of a removed target is on the page, and no probe of it that ends late brings it back."""
    async with running(QUICK) as url, watched() as seen:
        await seen.fleet.reconcile(specs(f"name: a, url: '{url}'", f"name: b, url: '{url}'"), 1.0)
        await until(lambda: seen.probes("a") >= 1)
        assert seen.named("a")
        await seen.fleet.reconcile(specs(f"name: b, url: '{url}'"), 1.0)
        before = seen.probes("b")
        await until(lambda: seen.probes("b") >= before + 3)
        assert seen.named("a") == set()
        assert seen.fleet.history.outcomes("a") == {}
        assert seen.fleet.find("a") is None


async def test_an_unnamed_target_takes_the_name_of_its_model_once_that_is_known() -> None:
    """Until something answers its failures stand under a name that says so; that name's series go with the real one."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with watched() as seen:
        await seen.fleet.reconcile(specs(f"url: 'http://127.0.0.1:{port}'"), 1.0)
        await until(lambda: seen.count("llmslo_probe_failures_total", UNNAMED) >= 1)
        server.close()
        await server.wait_closed()
        async with running(replace(QUICK, model="llama"), port):
            await until(lambda: seen.probes("llama") >= 1)
            assert seen.named(UNNAMED) == set()
            assert seen.fleet.find("llama") is not None


async def test_an_unnamed_target_that_changes_records_its_new_workload() -> None:
    """What it was found to be called stays its name, and the series of its new workload are declared at once."""
    async with running(replace(QUICK, model="llama")) as url, watched() as seen:
        await seen.fleet.reconcile(specs(f"url: '{url}'"), 1.0)
        await until(lambda: seen.probes("llama", "probe") >= 1)
        await seen.fleet.reconcile(specs(f"url: '{url}', probes: [{{workload: chat}}]"), 5.0)
        assert ("llama", "chat") in seen.families["llmslo_probes_total"].children
        await until(lambda: seen.probes("llama", "chat") >= 1)
        assert ("llama", "probe") not in seen.families["llmslo_probes_total"].children


async def test_a_model_that_is_called_like_another_target_does_not_share_its_series() -> None:
    """An unnamed target whose model's name is taken goes by its address, and leaves the other's series alone when it goes."""
    async with running(replace(QUICK, model="llama")) as url, watched() as seen:
        named = f"name: llama, url: '{url}', probes: [{{workload: chat}}]"
        unnamed = f"url: '{url}'"
        await seen.fleet.reconcile(specs(named, unnamed), 1.0)
        key = next(key for key, line in seen.fleet.lines.items() if line.target.spec.name is None)
        await until(lambda: seen.probes(key, "probe") >= 1 and seen.probes("llama", "chat") >= 1)
        assert seen.count("llmslo_probes_total", "llama", "probe") == 0
        await seen.fleet.reconcile(specs(named), 1.0)
        before = seen.probes("llama", "chat")
        await until(lambda: seen.probes("llama", "chat") > before)
        assert seen.named(key) == set()


async def test_gpus_stand_beside_the_targets_they_serve() -> None:
    """All that are visible beside an only target, none beside many unless it is said; what is gone leaves nothing."""
    first, second = (
        Device(i, f"GPU-{i}", "H", power_watts=100.0, throttled=frozenset({Throttle.THERMAL})) for i in (0, 1)
    )
    part = Device(1, "MIG-1", "H", partition=2, parent="GPU-1", memory_used_bytes=5)
    async with running(QUICK) as url, watched() as seen:
        gpus = Gpus(seen.fleet)
        await seen.fleet.reconcile(specs(f"name: a, url: '{url}'"), 1.0)
        gpus.show([first, second], "570.86")
        assert seen.count("llmslo_gpu_power_watts", "a") == 200
        assert seen.count("llmslo_gpu_throttle_active", "a", "0", "thermal") == 1
        assert seen.count("llmslo_gpu_throttle_active", "a", "0") == 1
        many = (f"name: a, url: '{url}'", f"name: b, url: '{url}', gpus: {{indices: [1]}}")
        await seen.fleet.reconcile(specs(*many), 1.0)
        gpus.show([first, second, part], "570.86")
        assert not [labels for labels in seen.families["llmslo_gpu_info"].children if labels[0] == "a"]
        places = {labels[1] for labels in seen.families["llmslo_gpu_info"].children}
        assert places == {"1", "1:2"}
        assert ("b", "1") not in seen.families["llmslo_gpu_utilization_ratio"].children, (
            "not supported is absent, not 0"
        )
        gpus.show([], "570.86")
        assert not seen.families["llmslo_gpu_info"].children


async def test_a_change_of_the_engine_is_an_event_over_a_restart_of_the_prober_too() -> None:
    """What was said to an earlier process is compared with; what is said for the first time is no change."""
    kept = {"a": b'{"version": "1.0", "dtype": "auto"}'}
    async with running(QUICK) as url, watched(kept) as seen:
        await seen.fleet.reconcile(specs(f"name: a, url: '{url}'"), 1.0)
        line = seen.fleet.lines["a"]
        for version, flag, driver in (("1.1", "fp8", "570.1"), ("1.1", "fp8", "575.2")):
            for change in line.told.take({"version": version, "dtype": flag}):
                line.engine_changed(change)
            line.gpus([Device(0, "GPU-0", "H")], driver)
        changes = [event.text for event in seen.history.events("a") if event.kind == "engine"]
        assert changes == [
            "driver was 570.1, is 575.2",
            "dtype was auto, is fp8",
            "version was 1.0, is 1.1",
        ]
        for kind, count in (("driver", 1), ("version", 1), ("flags", 1), ("restart", 0)):
            assert seen.count("llmslo_engine_changes_total", "a", kind) == count
        assert dict(seen.fleet.states()) == {"a": b'{"version": "1.1", "dtype": "fp8", "driver": "575.2"}'}


async def test_warm_up_is_counted_and_kept_out_of_the_latencies() -> None:
    """The first successes are probes, but their times are in no histogram: only the cold start has a value."""
    async with running(QUICK) as url, watched() as seen:
        await seen.fleet.reconcile(specs(f"name: a, url: '{url}', warmup: 3"), 1.0)
        await until(lambda: seen.probes("a") >= 6)
        assert seen.count("llmslo_e2e_seconds", "a") == seen.probes("a") - 3
        assert seen.count("llmslo_ttft_seconds", "a") == seen.probes("a") - 3
        assert seen.count("llmslo_cold_start_ttft_seconds", "a") > 0


async def test_probes_under_way_end_within_the_drain_time_and_count() -> None:
    """A stop sends nothing more and waits for the answers that are coming."""
    async with running(SLOW) as url, watched() as seen:
        await seen.fleet.reconcile(specs(f"name: a, url: '{url}'"), 1.0)
        target = seen.fleet.lines["a"].target
        await until(lambda: target.in_flight >= 2)
        under_way = target.in_flight
        await seen.fleet.stop(10.0)
        assert target.in_flight == 0
        assert seen.probes("a") >= under_way
        assert seen.count("llmslo_probe_failures_total", "a") == 0
        assert seen.count("llmslo_probes_neutral_total", "a", "probe", "cancelled") == 0


async def test_what_the_prober_itself_cuts_off_is_no_failure_of_the_target() -> None:
    """Probes that outlast the drain time are cancelled: counted as neutral, in no SLI."""
    async with running(SLOW) as url, watched() as seen:
        found = specs(f"name: a, url: '{url}', headers: {{X-Mock-Fault: hang}}")
        await seen.fleet.reconcile(found, 1.0)
        target = seen.fleet.lines["a"].target
        await until(lambda: target.in_flight >= 2)
        await seen.fleet.stop(0.0)
        assert target.in_flight == 0
        assert seen.count("llmslo_probes_neutral_total", "a", "probe", "cancelled") >= 2
        assert seen.probes("a") == 0
        assert seen.count("llmslo_probe_failures_total", "a") == 0

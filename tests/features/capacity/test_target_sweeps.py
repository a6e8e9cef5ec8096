"""Sweeps of one target over its life: changes of the engine, the configuration and the name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from prober.exposition.families import Value
from prober.features.capacity import target_sweeps
from prober.features.capacity.actions import Refused, StartRequest, Trigger
from prober.features.capacity.sweep_pauses import SweepPauses
from prober.features.capacity.sweep_result import has_capacity
from prober.features.capacity.target_sweeps import ENDED, TargetSweeps
from prober.measure.engine_signals import EngineChange, EngineInfo, EngineSignals, PageReading
from prober.measure.gpu_reading import GpuReading
from prober.measure.target_state import TargetState
from prober.net.clock import Clock
from prober.probing.replicas import Leadership
from prober.results.capacity import Capacity
from tests.features.capacity.stage import SLOTS, Stage, behind_a_gateway, staged, until
from tests.features.capacity.test_headroom import HandClock
from tests.results.samples import sweep
from tests.virtual import running

pytestmark = pytest.mark.virtual_time


async def test_a_changed_engine_is_swept_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it has settled; a restart alone is no reason."""
    monkeypatch.setattr(target_sweeps, "SETTLED_S", 0.0)
    async with running(SLOTS) as url, staged(url, "min_gap: 0s") as stage:
        stage.observed.engine_changed(EngineChange("restart"))
        await asyncio.sleep(0.05)
        assert stage.value("llmslo_sweep_rate_per_second") == 0
        stage.observed.engine_changed(EngineChange("version", "1", "2"))
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        assert stage.sweeps.stop("t")
        await until(stage.is_swept)


@asynccontextmanager
async def swept_before(folder: Path, more: str = "") -> AsyncIterator[Stage]:
    """A target of which the store has a sweep, of an engine with 120,000 tokens of KV cache."""
    async with running(SLOTS) as url, staged(url, more, folder=folder) as stage:
        found = replace(sweep(), id="one", target=replace(sweep().target, url=stage.target.spec.url))
        now_s = stage.clock.unix_s()
        found = replace(found, size=size(120_000), started_unix_s=now_s - 300, ended_unix_s=now_s - 60)
        await stage.target_sweeps.results.keep(found)
        await stage.target_sweeps.recall()
        yield stage


def size(kv_tokens: float, ranks: float = 1) -> dict[str, float]:
    return {"ranks": ranks, "tokens of KV cache": kv_tokens}


def read(stage: Stage, kv_tokens: float | None, readings: int = 2, ranks: int | None = 1) -> None:
    """The page shows an engine of this size."""
    for _ in range(readings):
        signals = replace(page(0.0), kv_cache_capacity_tokens=kv_tokens, ranks=ranks)
        stage.observed.page_read(PageReading(stage.clock.now_ns(), 0, signals))


def shown(stage: Stage) -> tuple[bool, list[str]]:
    """Whether a capacity is shown, and the exported reasons why there is no headroom."""
    reasons = [reason for _, reason in stage.families["llmslo_headroom_unknown"].children]
    return bool(stage.families["llmslo_capacity_requests_per_second"].children), reasons


GONE = (False, ["engine_changed"])
SENTENCE = "no sweep has found a capacity since the engine changed"


async def test_a_capacity_is_shown_only_for_an_engine_of_the_size_that_was_swept(tmp_path: Path) -> None:
    """What is left or half of it is another engine; a few percent, one reading and a page without a size are not."""
    async with swept_before(tmp_path, "after_change: false") as stage:
        assert shown(stage)[0], "no page yet"
        for kv_tokens, readings in ((None, 3), (120_000, 1), (117_600, 5), (60_000, 1), (120_000, 2), (None, 3)):
            read(stage, kv_tokens, readings)
            stage.observed.page_read(None)
            stage.observed.engine_changed(EngineChange("restart"))
            assert shown(stage)[0], (kv_tokens, readings)
        read(stage, 60_000)
        assert shown(stage) == GONE
        assert stage.target_sweeps.summary()["headroom_unknown"] == SENTENCE
        assert stage.target_sweeps.last_capacity() is None
        assert stage.value("llmslo_sweep_last_success_timestamp_seconds") > 0, "that sweep did succeed"
        read(stage, 120_000, ranks=2)
        assert shown(stage) == GONE
        read(stage, 120_000)
        assert shown(stage)[0], "it is as it was, such as after a pod has come and gone"


async def test_a_stored_capacity_of_another_size_is_not_taken_for_the_engine_that_is_there(tmp_path: Path) -> None:
    """The prober starts, and the first reading of the page shows half of the cache."""
    async with swept_before(tmp_path, "after_change: false") as stage:
        stage.reconfigure(stage.target.spec)
        await until(lambda: shown(stage)[0])
        read(stage, 60_000, 1)
        assert shown(stage) == GONE


@pytest.mark.parametrize("kind", ["version", "model", "driver", "block_size"])
async def test_a_capacity_of_before_a_change_is_not_shown_after_a_restart_either(kind: str, tmp_path: Path) -> None:
    """A later sweep is."""
    async with swept_before(tmp_path, "after_change: false") as stage:
        read(stage, 120_000)
        stage.observed.engine_changed(EngineChange(kind, "1", "2"))
        assert shown(stage) == GONE
        await stage.sweeps.parts.pauses.close()
        stage.sweeps.parts.pauses = SweepPauses(stage.store, stage.clock)
        stage.reconfigure(stage.target.spec)
        await until(lambda: shown(stage)[1] == ["engine_changed"])
        read(stage, 120_000)
        assert shown(stage) == GONE
        (before,) = stage.target_sweeps.latest()
        later_s = stage.clock.unix_s() + 60
        await stage.target_sweeps.results.keep(replace(before, id="two", started_unix_s=later_s))
        stage.target_sweeps.show_capacity()
        assert shown(stage)[0]


async def test_an_engine_of_another_size_is_swept_soon_whenever_the_last_sweep_was(tmp_path: Path) -> None:
    """`min_gap` keeps a schedule away, not the first figure of this engine; the new capacity has its size."""
    async with swept_before(tmp_path) as stage:
        await stage.sweeps.parts.pauses.started("t", StartRequest("request"))
        await asyncio.sleep(60)
        read(stage, 120_000)
        read(stage, 60_000)
        stage.observed.engine_changed(EngineChange("size", "120,000", "60,000"))
        await asyncio.sleep(target_sweeps.SETTLED_S - 1)
        assert not stage.sweeps.under_way
        await until(lambda: stage.sweeps.under_way, 2.0)
        await until(stage.is_swept)
        newest, _ = stage.sweeps.results("t")
        assert newest.size.keys() == {"ranks", "tokens of KV cache", "tokens of context"}


async def test_a_changed_engine_is_swept_once_it_may_be(tmp_path: Path) -> None:
    """It is tried again each minute, counted and logged once for each reason, and ends with the sweep."""
    async with swept_before(tmp_path) as stage:
        stage.target.state = TargetState.FAILING
        stage.observed.engine_changed(EngineChange("version", "1", "2"))
        await asyncio.sleep(10 * target_sweeps.SETTLED_S)
        assert stage.refused() == {"not_ready": 1}
        stage.target.state = TargetState.READY
        await asyncio.sleep(target_sweeps.SETTLED_S + 1)
        assert stage.sweeps.under_way == "t"
        stage.sweeps.stop("t")
        await until(stage.is_swept)
        assert shown(stage) == GONE, "it was stopped without a figure"
        await asyncio.sleep(12 * 3600)
        assert stage.ended() == 1
        assert stage.refused() == {"not_ready": 1}


async def test_an_engine_that_returns_to_a_size_that_was_swept_is_not_swept_again(tmp_path: Path) -> None:
    """Its figure is known."""
    async with swept_before(tmp_path) as stage:
        for kv_tokens in (120_000, 60_000, 120_000):
            read(stage, kv_tokens)
            stage.observed.engine_changed(EngineChange("size", "some", "others"))
        await asyncio.sleep(3600)
        assert stage.ended() == 0
        assert shown(stage)[0]


async def test_an_engine_that_changes_all_the_time_is_swept_once_an_hour(tmp_path: Path) -> None:
    """Of a version behind a balancer that is now one and now another."""
    async with swept_before(tmp_path) as stage:
        for number in range(12):
            stage.observed.engine_changed(EngineChange("version", str(number), str(number + 1)))
            await asyncio.sleep(target_sweeps.SETTLED_S + 5)
            stage.sweeps.stop("t")  # a short one will do
            await asyncio.sleep(535)
        assert stage.ended() == 2


async def test_retry_after_ends_a_sweep_and_refuses_the_next_ones() -> None:
    """Requests that are not due yet are not sent, and neither a schedule nor a person may start another sweep."""
    async with behind_a_gateway(60, {"Retry-After": "3600"}) as (url, received), staged(url, "min_gap: 0s") as stage:
        stage.sweeps.start("t")
        await until(stage.is_swept)
        (result,) = stage.sweeps.results()
        assert (result.stop, result.capacities) == ("rate_limited", ())
        assert result.stop_detail.endswith("; the engine's page shows no queue")
        assert len(received) <= 60 + 5, "those that were on their way"
        before = len(received)
        triggers: tuple[Trigger, ...] = ("schedule", "request")
        for trigger in triggers:
            with pytest.raises(Refused, match="left alone"):
                stage.sweeps.start("t", trigger)
        assert stage.refused() == {"retry_after": 2}
        assert len(received) == before


@pytest.mark.parametrize("value", ["\u00b2", "99999999999999"])
async def test_refusals_end_a_sweep_whatever_their_retry_after_is(value: str) -> None:
    """A header that is no number, or far away, hides no 429 from the guards, and asks for no pause."""
    async with behind_a_gateway(20, {"Retry-After": value}) as (url, received), staged(url, "min_gap: 0s") as stage:
        stage.sweeps.start("t")
        await until(stage.is_swept)
        (result,) = stage.sweeps.results()
        assert (result.stop, result.stop_detail[:8]) == ("rate_limited", "http_429")
        assert len(received) <= 20 + 20
        assert result.retry_after_s == 0


def test_gpus_that_are_read_during_a_sweep_are_for_its_runner() -> None:
    """None before and after it, and none where no GPU serves the target."""
    read: list[object] = []
    runner = SimpleNamespace(session=SimpleNamespace(gpus_read=read.append))
    devices = [GpuReading(0, "u", "H100")]
    for under_way, latest in ((None, devices), (runner, devices), (runner, []), (None, devices)):
        TargetSweeps.gpus_read(cast(TargetSweeps, SimpleNamespace(devices=(), runner=under_way)), latest, "570")
    assert read == [devices]


async def test_a_target_that_is_removed_during_its_sweep_leaves_no_series(tmp_path: Path) -> None:
    """The sweep ends, and its result is kept for when the target returns."""
    async with running(SLOTS) as url, staged(url, folder=tmp_path) as stage:
        stage.sweeps.start("t")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        stage.remove()
        assert stage.left() == []
        await until(lambda: not stage.sweeps.under_way)
        assert stage.left() == []
        assert [event.kind for event in stage.events.latest("t")] == ["sweep"]
        stage.observe()
        await stage.sweeps.read("t")
        assert [each.stop_detail for each in stage.sweeps.results("t")] == [ENDED]


def page(requests: float) -> EngineSignals:
    """The page of an engine that has served so many requests of 400 and 100 tokens."""
    return EngineSignals(
        EngineInfo("vllm"),
        requests_finished_total=requests,
        prompt_tokens_total=400 * requests,
        generation_tokens_total=100 * requests,
    )


class Following(Leadership):
    """A replica without the lease, whose holder claims sweeps."""

    claimed_unix_s = 0.0
    leads = False

    def held(self) -> int | None:
        return 7 if self.leads else None

    def claimed(self, key: str) -> float:
        return self.claimed_unix_s


@pytest.mark.parametrize("ends", ["by time", "as this replica leads"])
async def test_a_sweep_of_another_replica_is_no_demand_here(ends: str) -> None:
    """The demand of before stands until it must be over; a claim of yesterday, or a lease of its own, changes nothing."""
    leadership = Following()
    async with running(SLOTS) as url, staged(url, "limits: {time: 5m}", leadership=leadership) as stage:
        clock = HandClock()
        parts = stage.sweeps.parts
        parts.shared = replace(parts.shared, clock=cast(Clock, clock))
        leadership.claimed_unix_s = 1e9 - 86_400
        total = 0.0

        def read(until_s: float, per_s: float) -> float:
            nonlocal total
            while clock.now_s < until_s:
                clock.now_s += 5.0
                total += 5.0 * per_s
                stage.observed.page_read(PageReading(clock.now_ns(), 0, page(total)))
            return stage.value("llmslo_demand_requests_per_second")

        assert read(300.0, 4.0) == pytest.approx(4.0)
        leadership.claimed_unix_s = 1e9 + 270.0  # when it was due; it starts within `spread`
        assert read(305.0, 4.0) == pytest.approx(4.0)
        assert read(500.0, 90.0) == pytest.approx(4.0)
        leadership.leads = ends != "by time"
        assert read(900.0, 2.0) == pytest.approx(2.0)
        assert max(load.requests_per_s for load, _ in stage.demand.peaks.days.values()) < 4.1


async def test_a_target_whose_sweep_block_is_removed_during_a_sweep_has_a_demand_again() -> None:
    """The target goes on without `sweep:`; after the sweep its engine counts only its users."""
    async with running(SLOTS) as url, staged(url) as stage:
        stage.sweeps.start("t")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        stage.reconfigure(stage.target.spec.model_copy(update={"sweep": None}))
        await until(lambda: not stage.sweeps.under_way)
        for at_s in (0.0, 10.0, 110.0):
            said = EngineSignals(EngineInfo("vllm"), requests_finished_total=4 * at_s)
            stage.observed.page_read(PageReading(round(at_s * 1e9), 0, said))
        assert stage.value("llmslo_demand_requests_per_second") == 4


async def test_a_target_that_is_removed_before_its_sweep_starts_is_not_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus is asked for alerts first, which takes a while."""
    asked, removed = asyncio.Event(), asyncio.Event()

    async def firing(*_: object) -> list[str]:
        asked.set()
        await removed.wait()
        return []

    monkeypatch.setattr(target_sweeps, "firing", firing)
    async with behind_a_gateway(0) as (url, received), staged(url, prometheus="http://127.0.0.1:1") as stage:
        stage.sweeps.start("t")
        await asked.wait()
        stage.remove()
        removed.set()
        await until(lambda: not stage.sweeps.under_way)
        assert received == []
        assert stage.left() == []


class Claimed(Leadership):
    """A lease whose annotations say when the target was swept last."""

    number = 0.0

    def claimed(self, key: str) -> float:
        return self.number


async def test_a_claim_from_the_future_does_not_block_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts from when it was first seen."""
    lease = Claimed()
    async with running(SLOTS) as url, staged(url, "min_gap: 1h", leadership=lease) as stage:
        unix_s, now_ns = stage.clock.unix_s(), stage.clock.now_ns()
        lease.number = unix_s
        with pytest.raises(Refused, match="another replica began"):
            stage.sweeps.start("t", "schedule", unix_s - 1)
        lease.number = unix_s + 86_400 * 365
        with pytest.raises(Refused, match="min_gap"):
            stage.sweeps.start("t", "schedule", unix_s)
        monkeypatch.setattr(stage.clock, "now_ns", lambda: now_ns + 3_601 * 10**9)
        stage.target_sweeps.check(StartRequest("schedule", unix_s))


async def test_a_change_of_the_url_ends_the_sweep_and_hides_the_capacity(tmp_path: Path) -> None:
    """A capacity holds for the URL at which it was found; back there it is shown again, with its time."""
    async with running(SLOTS) as url, running(SLOTS) as other, staged(url, folder=tmp_path) as stage:
        spec, moved = stage.target.spec, stage.target.spec.model_copy(update={"url": f"{other}/v1"})
        found = replace(sweep(), id="one", target=replace(sweep().target, url=spec.url))
        assert has_capacity(found)
        await stage.target_sweeps.results.keep(found)
        await stage.target_sweeps.recall()
        capacity, at = "llmslo_capacity_requests_per_second", "llmslo_sweep_last_success_timestamp_seconds"
        assert stage.families[capacity].children
        stage.sweeps.start("t")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        stage.reconfigure(moved)
        await until(lambda: not stage.sweeps.under_way)
        assert not stage.families[capacity].children
        assert not stage.families[at].children
        assert stage.target_sweeps.last_capacity() is None
        await until(lambda: stage.sweeps.results("t"))
        assert stage.sweeps.results("t")[0].stop_detail == ENDED
        stage.reconfigure(spec)
        await until(lambda: stage.families[capacity].children)
        assert stage.value(at) == found.ended_unix_s
        assert stage.target_sweeps.last_capacity() == stage.sweeps.results("t")[1]


BELOW, HOLDS = Capacity("ttft", "below", upper=0.5), Capacity("ttft", "not_reached", lower=90.0)
FOUND = Capacity("ttft", "found", 8.0, 10.0, 12.0)


@pytest.mark.parametrize(
    ("swept", "shown", "figure"),
    [
        ((FOUND, BELOW), (0.5, 0.5, 12.0), 0),
        ((FOUND, HOLDS), (8.0, 90.0, 90.0), 0),
        ((FOUND, replace(HOLDS, lower=9.0)), (8.0, 10.0, 12.0), 0),
        ((FOUND, replace(BELOW, upper=9.0)), (8.0, 9.0, 12.0), 0),
        ((FOUND, BELOW, Capacity("ttft", "not_enough_data")), (0.5, 0.5, 12.0), 0),
        ((BELOW, FOUND), (8.0, 10.0, 12.0), 1),
        ((HOLDS,), (90.0, None, None), None),
        ((HOLDS, BELOW), (None, None, 0.5), None),
    ],
)
async def test_a_bound_widens_a_figure_and_replaces_none(
    swept: tuple[Capacity, ...], shown: tuple[float | None, ...], figure: int | None, tmp_path: Path
) -> None:
    """The estimate moves to the bound if it contradicts that. Without a figure the last bound is shown. Only a figure has a time."""
    async with running(SLOTS) as url, staged(url, folder=tmp_path) as stage:
        found = replace(sweep(), target=replace(sweep().target, url=stage.target.spec.url))
        for number, capacities in enumerate(zip(swept)):
            later_s = found.ended_unix_s + number
            await stage.target_sweeps.results.keep(
                replace(found, id=str(number), capacities=capacities, started_unix_s=later_s, ended_unix_s=later_s)
            )
        await stage.target_sweeps.recall()
        series = stage.families["llmslo_capacity_requests_per_second"].children
        assert {labels[2]: child.value for labels, child in series.items() if isinstance(child, Value)} == {
            bound: value
            for bound, value in zip(("lower", "estimate", "upper"), shown, strict=True)
            if value is not None
        }
        times = stage.families["llmslo_sweep_last_success_timestamp_seconds"].children.values()
        expected = [] if figure is None else [found.ended_unix_s + figure]
        assert [child.value for child in times if isinstance(child, Value)] == expected

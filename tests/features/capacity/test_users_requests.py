"""Requests like the users' own, from histograms of lengths on the engine's page. numpy draws the lengths and fills the buckets."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from prober.exposition.parse import Parser
from prober.features.capacity.users_requests import (
    HOUR_S,
    NAME,
    UsersRequests,
    lengths,
    shared_tokens,
    users_requests_of,
)
from prober.features.engines.page_reading import read_signals, recognise
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals, PageReading
from prober.measure.engines import TABLES
from prober.workload.workloads import Workload, sample_lengths
from tests.features.capacity.stage import SLOTS, staged, until
from tests.virtual import running

PAGES = Path(__file__).parents[2] / "pages"
BOUNDS = (
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1e3,
    2e3,
    5e3,
    1e4,
    2e4,
)  # of vLLM with a context of 32,768
DRAW = np.random.default_rng(7)
LENGTHS = {
    "chat": DRAW.lognormal(6.0, 0.9, 20_000).round().clip(1, 20_000),
    "fixed": np.full(5_000, 700.0),
    "two kinds": np.concatenate([DRAW.integers(20, 60, 8_000), DRAW.integers(3_000, 9_000, 2_000)]).astype(float),
    "long": DRAW.lognormal(9.0, 1.0, 20_000).round(),
    "short": DRAW.geometric(0.05, 10_000).astype(float),
}
NOON_S = 20_000 * 86_400.0 + 12 * HOUR_S


def histogram(values: Any, bounds: tuple[float, ...] = BOUNDS) -> EngineHistogram:
    """As Prometheus counts: a value is in the bucket of the first bound that is not below it."""
    counts = np.cumsum(np.histogram(values, [-np.inf, *np.nextafter(bounds, np.inf), np.inf])[0])
    return EngineHistogram(bounds, tuple(counts.astype(float).tolist()), float(np.sum(values)))


def page(prompts: Any, outputs: Any, cached: float = 0.0, context: float | None = None, **more: Any) -> EngineSignals:
    """A page that has counted these requests. cached: prompt tokens"""
    signals = EngineSignals(
        EngineInfo("vllm"),
        context_tokens=context,
        prompt_tokens_total=float(np.sum(prompts)),
        prefix_cache_hits_tokens_total=cached,
        prompt_tokens=histogram(prompts, **more),
        output_tokens=histogram(outputs, **more),
    )
    return signals


EMPTY = page([], [])


def taken(*hours: tuple[float, Any, Any]) -> UsersRequests:
    """Of (Unix seconds, prompts, outputs)."""
    requests = UsersRequests()
    for unix_s, prompts, outputs in hours:
        requests.take(unix_s, EMPTY, page(prompts, outputs))
    return requests


def means(workload: Workload | None) -> tuple[float, float]:
    assert workload is not None
    return workload.mean_tokens()


@pytest.mark.parametrize("kind", LENGTHS)
def test_lengths_have_the_mean_of_the_users_and_their_quantiles_within_a_bucket(kind: str) -> None:
    """The engine counts each length in a bucket, whose bounds are a factor of 2 or 2.5 apart, and the sum of all."""
    values = LENGTHS[kind]
    counted = histogram(values)
    found = lengths(BOUNDS, np.diff(counted.counts, prepend=0.0).tolist(), float(counted.sum or 0))
    assert found is not None
    assert found.mean() == pytest.approx(values.mean(), rel=0.003)
    drawn = np.array([found.draw(random) for random in [Random(1)] for _ in range(20_000)])
    assert drawn.mean() == pytest.approx(values.mean(), rel=0.03)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert 1 / 2.5 < found.quantile(share) / np.quantile(values, share) < 2.5
        assert np.quantile(drawn, share) == pytest.approx(found.quantile(share), rel=0.1, abs=2)


def test_no_length_is_below_a_token_or_above_the_limit() -> None:
    """Small negative counts, as of probes that the page counted before, are no requests."""
    found = lengths(BOUNDS, [-2.0, 0.0, -1.0, 30.0, 70.0, *[0.0] * 9, 5.0], 5_000.0, most=400.0)
    assert found is not None
    assert found.quantile(0.0) >= 1
    assert found.maximum == 400
    assert lengths(BOUNDS, [0.0] * 15, 0.0) is None
    assert lengths(BOUNDS, [-1.0] * 15, 0.0) is None
    assert lengths((), [4.0], 9.0) is None


def test_requests_are_like_those_of_the_same_hour_of_the_last_days() -> None:
    """Prompts at noon are long. Where there are too few of the hour, the week counts, then the totals of the page."""
    noons = [(NOON_S - day * 86_400.0, np.full(30, 4_000.0), np.full(30, 300.0)) for day in (1, 2)]
    requests = taken(*noons, (NOON_S - 6 * HOUR_S, np.full(500, 80.0), np.full(500, 30.0)))
    at_noon = requests.workload(NOON_S + 900.0, EMPTY)
    assert at_noon is not None
    assert at_noon.name == f"{NAME} from 12:00 to 13:00 UTC"
    assert means(at_noon) == pytest.approx((4_000, 300), rel=0.01)
    in_the_evening = requests.workload(NOON_S + 8 * HOUR_S, EMPTY)
    assert in_the_evening is not None
    assert in_the_evening.name == f"{NAME} in the last 7 days"
    assert means(in_the_evening)[0] == pytest.approx((60 * 4_000 + 500 * 80) / 560, rel=0.01)
    new = UsersRequests().workload(NOON_S, page(np.full(50, 600.0), np.full(50, 90.0)))
    assert new is not None
    assert new.name == f"{NAME} since the engine's start"
    assert means(new) == pytest.approx((600, 90), rel=0.01)
    assert UsersRequests().workload(NOON_S, page(np.full(49, 600.0), np.full(49, 90.0))) is None
    assert UsersRequests().workload(NOON_S, EngineSignals(EngineInfo("llamacpp"))) is None


def test_hours_of_more_than_a_week_ago_are_forgotten() -> None:
    """Traffic changes its shape over weeks."""
    requests = taken((NOON_S, [700.0] * 99, [5.0] * 99), (NOON_S + 7 * 86_400.0, [90.0] * 99, [5.0] * 99))
    assert means(requests.workload(NOON_S + 7 * 86_400.0, EMPTY))[0] == pytest.approx(90, rel=0.01)


def test_the_probers_own_requests_are_not_the_users() -> None:
    """The page counts them too."""
    users, probes = np.full(200, 1_500.0), np.full(300, 64.0)
    requests = taken((NOON_S, np.concatenate([users, probes]), np.concatenate([users, probes])))
    assert means(requests.workload(NOON_S, EMPTY))[0] < 1_000
    for _ in probes:
        requests.sent(NOON_S, 64, 64)
    assert means(requests.workload(NOON_S, EMPTY)) == pytest.approx((1_500, 1_500), rel=0.01)
    UsersRequests().sent(NOON_S, 64, 64)  # of an engine whose page has no lengths


def test_other_buckets_begin_anew() -> None:
    """Counts by other bounds cannot be added to these."""
    requests = taken((NOON_S, [700.0] * 99, [5.0] * 99))
    other = (64.0, 128.0, 256.0)
    requests.take(NOON_S, page([], [], bounds=other), page([100.0] * 60, [100.0] * 60, bounds=other))
    assert means(requests.workload(NOON_S, page([], [], bounds=other))) == pytest.approx((100, 100), rel=0.01)


def test_lengths_survive_a_restart_of_the_prober() -> None:
    """A damaged state is refused."""
    requests = taken((NOON_S, LENGTHS["chat"], LENGTHS["chat"]), (NOON_S + HOUR_S, LENGTHS["fixed"], LENGTHS["fixed"]))
    state = json.loads(json.dumps(requests.state()))
    again = users_requests_of(state)
    assert again == requests
    assert again.workload(NOON_S, EMPTY) == requests.workload(NOON_S, EMPTY)
    hour = state["hours"][0]
    damaged: dict[str, Any]
    for damaged in (
        {},
        state | {"hours": [[*hour[:1], [1.0], *hour[2:]]]},
        state | {"hours": [hour[:2]]},
        state | {"hours": None},
        state | {"prompt_bounds": ["x"]},
    ):
        with pytest.raises(ValueError, match="no lengths of requests"):
            users_requests_of(damaged)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_share_of_cached_tokens_becomes_a_beginning_that_all_prompts_have(share: float) -> None:
    """Each prompt has of it what fits, so that long ones have fewer cached tokens for their length."""
    prompts = lengths(BOUNDS, np.diff(histogram(LENGTHS["chat"]).counts, prepend=0.0).tolist(), LENGTHS["chat"].sum())
    assert prompts is not None
    tokens = shared_tokens(prompts, share)
    drawn = np.array([prompts.draw(random) for random in [Random(2)] for _ in range(20_000)])
    assert np.minimum(drawn, tokens).sum() / drawn.sum() == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(("share", "is_shared"), [(0.0, False), (0.04, False), (0.06, True), (0.7, True)])
def test_prompts_share_a_beginning_only_if_the_users_do(share: float, is_shared: bool) -> None:
    """The workload's name says how much is cached."""
    values = np.full(400, 1_000.0)
    workload = UsersRequests().workload(NOON_S, page(values, values, cached=share * values.sum()))
    assert workload is not None
    assert (workload.prefix is not None) is is_shared
    assert workload.name.endswith(f", {share:.0%} of the prompt tokens cached") is is_shared
    if is_shared:
        assert workload.prefix is not None
        assert workload.prefix.tokens == pytest.approx(1_000 * share, rel=0.05)
        assert workload.prefix.reuse == 1


def test_a_request_fits_in_the_context() -> None:
    """A prompt and its answer take at most half of it each."""
    values = np.full(400, 1_700.0)  # in the bucket up to 2,000
    workload = UsersRequests().workload(NOON_S, page(values, values, context=2_048.0))
    assert workload is not None
    assert all(prompt + output <= 2_048 for prompt, output in sample_lengths(workload, Random(0), 2_000))


def signals_of(*files: Path) -> EngineSignals:
    """Signals of a captured page."""
    parsed = Parser(None).parse(b"".join(file.read_bytes() for file in files))
    table = recognise(parsed, TABLES)
    assert table is not None
    return read_signals(parsed, table, model="tiny").signals


@pytest.mark.parametrize(
    ("release", "mean_tokens"),
    [("vllm_0.32.0_under_load", (58_055 / 889, 29_680 / 889)), ("sglang_0.5.23", (407_600 / 600, 95_400 / 600))],
)
def test_pages_of_engines_show_their_users_lengths(release: str, mean_tokens: tuple[float, float]) -> None:
    """vLLM's always, SGLang's with --collect-tokens-histogram. The expected means are the sums ÷ the counts on the page."""
    more = [PAGES / "more" / f"{release}.prom"] if release.startswith("sglang") else []
    workload = UsersRequests().workload(NOON_S, signals_of(PAGES / f"{release}.prom", *more))
    assert means(workload) == pytest.approx(mean_tokens, rel=0.01)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("workload", "page_name", "expected"),
    [
        ("", "vllm_0.32.0_under_load", f"{NAME} since the engine's start"),
        ("workload: probe, ", "vllm_0.32.0_under_load", "probe"),
        ("", "llamacpp_0c1e570", "probe"),
    ],
)
async def test_a_sweep_sends_requests_like_the_users_unless_a_workload_is_configured(
    workload: str, page_name: str, expected: str
) -> None:
    """`probe` where the page has no lengths; the result says which it was, and of what time."""
    async with running(SLOTS) as url, staged(url, workload=workload) as stage:
        stage.demand.page_read(PageReading(stage.clock.now_ns(), 0, signals_of(PAGES / f"{page_name}.prom")))
        stage.sweeps.start("t")
        await until(stage.is_swept)
        (result,) = stage.target_sweeps.latest()
    assert result.load.workload == expected
    assert json.loads(result.configuration or "")["workload"] == expected
    if expected.startswith(NAME):
        quantiles = [float(pair.split(": ")[1]) for pair in (result.load.prompt_tokens or "")[10:].split(", ")]
        assert 1 <= min(quantiles) < 65 < max(quantiles) <= 500
        answered = [stage for stage in result.stages if stage.answered]
        tokens = sum(stage.prompt_tokens or 0 for stage in answered)
        assert tokens / sum(stage.answered for stage in answered) == pytest.approx(
            58_055 / 889, rel=0.3
        )  # few, on a busy machine

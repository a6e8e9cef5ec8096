"""What the engine monitor shows of the model that answers name: series, events, and what is saved."""

import json
from dataclasses import replace

import pytest

from prober.config.serving import MetricsSpec
from prober.config.target import ProbeSpec, TargetSpec
from prober.daemon.registry import registry as new_registry
from prober.exposition.families import Registry, Series
from prober.exposition.families import page as metrics_page
from prober.features.engines import series
from prober.features.engines.monitor import MAX_IDENTITIES, EngineMonitor, TargetEngine
from prober.measure.engine_signals import EngineChange, EngineHistogram, EngineInfo, EngineSignals, PageReading
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.probing.history import EventLog
from prober.probing.observer import ObservedTarget
from prober.storage.saved_rows import SavedRows
from prober.workload.shapes import Fixed
from prober.workload.workloads import Adapters, Workload
from tests.observed import observed, reconfigured

NO_PAGE = TargetSpec(url="http://gateway", model="large", metrics=MetricsSpec(url="none"))


class Gateway:
    """Targets behind one gateway, and what is shown of them."""

    def __init__(self, saved: dict[str, bytes] | None = None) -> None:
        self.registry: Registry = new_registry()
        self.events = EventLog()
        self.monitor = EngineMonitor(self.registry, self.events, SavedRows(saved or {}))

    def target(self, name: str = "t", spec: TargetSpec = NO_PAGE) -> ObservedTarget:
        return observed(spec, self.monitor.observe, name=name)

    def info(self, name: str = "t") -> list[tuple[str, ...]]:
        return [labels[1:] for labels in self.registry.family(series.ENGINE_INFO).of(name)]

    def texts(self, name: str = "t") -> list[str]:
        return [event.text for event in reversed(self.events.latest(name))]

    def model_changes(self, name: str = "t") -> float:
        return self.registry.value(series.ENGINE_CHANGES, name, "model").value


def answer(target: ObservedTarget, *models: str, requested: str = "large", adapter: str = "") -> None:
    """Probes that end with answers of these models."""
    for model in models:
        clock = target.target.clock
        clock.ns += 5 * 10**9  # type: ignore[attr-defined]
        timeline = Timeline(clock.now_ns(), sent_ns=clock.now_ns(), answered_model=model)
        target.probe_ended(
            ProbeResult(
                *(target.name, "probe", "id", 0.0, Outcome.OK, "", timeline),
                model=requested,
                engine="openai",
                adapter=adapter,
            )
        )


def served(target: ObservedTarget, *tiers: str) -> None:
    """Probes that end with answers of these service tiers."""
    for tier in tiers:
        clock = target.target.clock
        clock.ns += 5 * 10**9  # type: ignore[attr-defined]
        timeline = Timeline(clock.now_ns(), sent_ns=clock.now_ns(), service_tier=tier)
        target.probe_ended(ProbeResult(target.name, "probe", "id", 0.0, Outcome.OK, "", timeline))


def page(model: str) -> PageReading:
    return PageReading(0, 0, EngineSignals(EngineInfo("vllm", "0.9", model)))


def read_once(target: ObservedTarget) -> None:
    """A reading of the page, as the reader does it."""
    signals = EngineSignals(EngineInfo("vllm", "0.9", "large"), preemptions_total=1.0)
    continued = engine_of(target).continuity.take(signals).signals
    assert continued is not None
    target.page_read(PageReading(0, 0, continued))


def engine_of(target: ObservedTarget) -> TargetEngine:
    engine = target.find(TargetEngine)
    assert engine is not None
    return engine


# Models that the answers name; the events, the exported model, the number of changes, and the other model on the page.
ANSWERED: dict[str, tuple[list[str], list[str], list[str], int, str]] = {
    "the requested model is no event": (["large"] * 2, [], ["large"], 0, ""),
    "no name shows none": ([""] * 3, [], [], 0, ""),
    "an alias is told once and is no change": (
        ["large-2024"] * 50, ["answers name the model large-2024, requested is large"], ["large-2024"], 0, "large-2024"
    ),
    "a gateway that falls back": (["large"] * 5 + ["small"] * 5, ["model was large, is small"], ["small"], 1, "small"),
    "models in turn are one event": (["large", "small"] * 500, ["model was large, is large|small"], ["large|small"], 1, "large|small"),
    "names that a server makes up are bounded": (
        ["large", "small"] * 9 + [f"made-up-{index}" for index in range(500)],
        ["model was large, is large|small"], ["large|small|made-up-0|made-up-1|…"], 1, "large|small|made-up-0|made-up-1|…",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERED)
def test_the_model_that_answers_name_is_shown_and_its_neighbour_is_unaffected(name: str) -> None:
    """Also where the engine has no page; nothing is made up."""
    models, texts, shown, changes, other = ANSWERED[name]
    gateway = Gateway()
    target, neighbour = gateway.target(), gateway.target("n", NO_PAGE.model_copy(update={"name": "n"}))
    assert gateway.info() == []
    answer(target, *models)
    answer(neighbour, *["large"] * 10)
    assert gateway.texts() == texts
    assert gateway.info() == [("openai", "", model) for model in shown]
    assert (gateway.model_changes(), engine_of(target).other_model) == (changes, other)
    assert (gateway.texts("n"), gateway.info("n"), gateway.model_changes("n")) == ([], [("openai", "", "large")], 0)


def test_an_adapter_that_the_base_model_answers_for_is_told_once() -> None:
    """Or another adapter; a name that the prober does not know may be an alias, and the target's own model stays the same."""
    workload = Workload("w", Fixed(1), Fixed(1), adapters=Adapters(("sql", "law", "tax")))
    gateway = Gateway()
    target = gateway.target(spec=NO_PAGE.model_copy(update={"probes": (ProbeSpec(workload=workload),)}))
    answer(target, "large", "large")
    answer(target, "sql", "/models/sql", "large", "large", adapter="sql")
    answer(target, "sql", adapter="law")
    answer(target, "tax", "", adapter="tax")
    assert gateway.texts() == [
        "answers to requests for sql name the model large",
        "answers to requests for law name the model sql",
    ]
    assert (gateway.model_changes(), engine_of(target).other_model) == (0, "")


def test_the_page_stays_the_identity_while_answers_name_the_requested_model() -> None:
    """Its model may be a path; another answering model takes its place."""
    gateway = Gateway()
    target = gateway.target(spec=NO_PAGE.model_copy(update={"metrics": MetricsSpec()}))
    target.page_read(page("/models/large"))
    answer(target, "large")
    assert gateway.info() == [("vllm", "0.9", "/models/large")]
    answer(target, *["small"] * 3)
    assert gateway.info() == [("vllm", "0.9", "small")]


def test_a_change_that_the_page_has_told_is_not_told_again() -> None:
    """The engine was restarted with another model: its page is read before three answers have ended."""
    gateway = Gateway()
    target = gateway.target()
    answer(target, "large")
    target.engine_changed(EngineChange("model", "large", "small"))
    answer(target, *["small"] * 5, requested="small")
    assert gateway.texts() == ["model was large, is small"]
    assert gateway.info() == [("openai", "", "small")]


def test_another_requested_model_begins_anew() -> None:
    """What a person changes in the configuration is no change of the engine."""
    gateway = Gateway()
    target = gateway.target()
    answer(target, "large", "large")
    target = reconfigured(target, NO_PAGE.model_copy(update={"model": "small"}), gateway.registry)
    assert gateway.info() == []
    answer(target, *["small"] * 5, requested="small")
    assert gateway.texts() == []
    assert gateway.info() == [("openai", "", "small")]


def test_the_model_survives_a_restart_of_the_prober() -> None:
    """A standing alias is not told again, a change meanwhile is."""
    gateway = Gateway()
    answer(gateway.target(), "large-2024")
    saved = dict(gateway.monitor.states())
    row = json.loads(saved["t"])
    assert row.pop("asked")
    assert row == {"facts": {}, "size": {}, "answered_model": "large-2024", "page": ""}
    later = Gateway(saved)
    answer(later.target(), "large-2024", "large-2024")
    assert later.texts() == []
    later = Gateway(saved)
    answer(later.target(), *["large-2025"] * 3)
    assert later.texts() == ["model was large-2024, is large-2025"]


def test_a_removed_target_has_no_series() -> None:
    """Nor is anything of it saved."""
    gateway = Gateway()
    target = gateway.target()
    answer(target, "small")
    target.removed()
    gateway.registry.remove("t")
    assert gateway.info() == []
    assert list(gateway.monitor.states()) == []


def test_only_reasons_and_speculation_that_the_page_has_are_exported() -> None:
    """What it no longer has goes, as does everything with the page; its neighbour is unaffected."""
    gateway = Gateway()
    with_page = NO_PAGE.model_copy(update={"metrics": MetricsSpec()})
    target, neighbour = gateway.target(spec=with_page), gateway.target("n", with_page.model_copy(update={"name": "n"}))

    def reasons(name: str = "t") -> dict[str, float]:
        family = gateway.registry.family(series.ENGINE_FINISHED)
        return {labels[1]: family.value(*labels).value for labels in family.of(name)}

    def exported(declared: Series[str], name: str = "t") -> float | None:
        family = gateway.registry.family(declared)
        return family.value(name).value if list(family.of(name)) else None

    first = EngineSignals(
        EngineInfo("vllm"),
        requests_finished_total=7.0,
        finished_stop_total=5.0,
        finished_length_total=2.0,
        finished_error_total=0.0,
        speculation_drafts_total=10.0,
        speculation_draft_tokens_total=40.0,
        speculation_accepted_tokens_total=25.0,
    )
    for observed_target in (target, neighbour):
        observed_target.page_read(PageReading(0, 0, first))
    assert reasons() == {"stop": 5.0, "length": 2.0, "error": 0.0}
    counted = (
        series.SIGNALS["speculation_drafts_total"],
        series.SIGNALS["speculation_draft_tokens_total"],
        series.SIGNALS["speculation_accepted_tokens_total"],
    )
    computed = (series.SIGNALS["speculation_acceptance_ratio"], series.SIGNALS["speculation_length_tokens"])
    assert [exported(declared) for declared in (*counted, *computed)] == [10.0, 40.0, 25.0, None, None]
    other = EngineSignals(
        EngineInfo("sglang"), finished_abort_total=1.0, speculation_acceptance_ratio=0.6, speculation_length_tokens=2.5
    )
    target.page_read(PageReading(1, 1, other))
    assert reasons() == {"abort": 1.0}
    assert [exported(declared) for declared in (*counted, *computed)] == [None, None, None, 0.6, 2.5]
    target.page_read(None)
    assert (reasons(), [exported(declared) for declared in computed]) == ({}, [None, None])
    assert reasons("n") == {"stop": 5.0, "length": 2.0, "error": 0.0}


def up(gateway: Gateway) -> float | None:
    family = gateway.registry.family(series.ENGINE_UP)
    return family.value("t").value if list(family.of("t")) else None


def unread(target: ObservedTarget, seconds: int) -> None:
    """Readings fail for so long, one every five seconds."""
    for _ in range(seconds // 5 + 1):
        target.page_read(None)
        target.target.clock.ns += 5 * 10**9  # type: ignore[attr-defined]


def test_a_server_that_never_had_a_page_is_no_trouble() -> None:
    """Neither a series nor an event; a page that is configured is missed from the start."""
    for url, missed in ((None, None), ("http://gateway/metrics", 0.0)):
        gateway = Gateway()
        target = gateway.target(spec=NO_PAGE.model_copy(update={"metrics": MetricsSpec(url=url)}))
        assert up(gateway) == missed
        unread(target, 120)
        assert up(gateway) == missed
        assert len(gateway.texts()) == (url is not None)
        assert bool(engine_of(target).page_problem) == (url is not None)


def test_a_page_that_can_no_longer_be_read_is_an_event_after_a_minute() -> None:
    """One, with its end; a restart of 40 s is none. That it was readable is known after a restart of the prober too."""
    gateway, spec = Gateway(), NO_PAGE.model_copy(update={"metrics": MetricsSpec()})
    target = gateway.target(spec=spec)
    read_once(target)
    unread(target, 40)
    assert (up(gateway), gateway.texts()) == (0.0, [])
    read_once(target)
    unread(target, 120)
    (text,) = gateway.texts()
    assert text.startswith("its metrics page cannot be read: ")
    later = Gateway(dict(gateway.monitor.states()))
    again = later.target(spec=spec)
    assert up(later) == 0.0
    unread(again, 120)
    assert len(later.texts()) == 1
    read_once(target)
    assert gateway.texts()[1:] == ["its metrics page is readable again"]
    assert (up(gateway), engine_of(target).page_problem) == (1.0, "")


def test_a_page_that_is_no_longer_configured_is_not_said_to_be_readable() -> None:
    """Its series and its problem go without a word."""
    gateway = Gateway()
    target = gateway.target(spec=NO_PAGE.model_copy(update={"metrics": MetricsSpec(url="http://gateway/metrics")}))
    unread(target, 120)
    target = reconfigured(target, NO_PAGE.model_copy(update={"metrics": None}), gateway.registry)
    assert (up(gateway), engine_of(target).page_problem, len(gateway.texts())) == (None, "", 1)


def test_the_time_of_the_last_change_is_exported() -> None:
    """For a message that says what happened before; a neighbour that did not change has none."""
    engines = Gateway()
    target, neighbour = engines.target(), engines.target("n")
    answer(target, "a", "a", "a", "b", "b", "b")
    answer(neighbour, "a")
    of_target, of_neighbour = (
        engines.registry.family(series.ENGINE_LAST_CHANGE).of(name) for name in (target.name, neighbour.name)
    )
    assert (list(of_target), list(of_neighbour)) == ([("t", "model")], [])
    assert engines.registry.value(series.ENGINE_LAST_CHANGE, "t", "model").value == target.target.clock.unix_s()


def test_versions_that_change_at_each_reading_are_a_bounded_number_of_series() -> None:
    """The rest are `other`; a version that was exported before keeps its labels, and so does a neighbour."""
    gateway = Gateway()
    spec = NO_PAGE.model_copy(update={"metrics": MetricsSpec()})
    hostile, honest = gateway.target("t", spec), gateway.target("n", spec)
    exported = set()
    for number in range(10 * MAX_IDENTITIES):
        hostile.page_read(PageReading(0, 0, EngineSignals(EngineInfo("vllm", f"0.{number}", "large"))))
        exported |= set(gateway.info("t"))
    assert len(exported) == MAX_IDENTITIES + 1
    assert gateway.info("t") == [("vllm", "other", "other")]
    hostile.page_read(PageReading(0, 0, EngineSignals(EngineInfo("vllm", "0.7", "large"))))
    honest.page_read(page("large"))
    assert gateway.info("t") == [("vllm", "0.7", "large")]
    assert gateway.info("n") == [("vllm", "0.9", "large")]


# Public names of the values of EngineSignals, as a user finds them in Prometheus.
NAMES = {
    "context_tokens": "llmslo_engine_context_tokens",
    "requests_running": "llmslo_engine_requests_running",
    "requests_waiting": "llmslo_engine_requests_waiting",
    "kv_cache_usage_ratio_max": "llmslo_engine_kv_cache_usage_ratio",
    "kv_cache_capacity_tokens": "llmslo_engine_kv_cache_capacity_tokens",
    "preemptions_total": "llmslo_engine_preemptions_total",
    "prefix_cache_queries_tokens_total": "llmslo_engine_prefix_cache_queries_total",
    "prefix_cache_hits_tokens_total": "llmslo_engine_prefix_cache_hits_total",
    "prompt_tokens_total": "llmslo_engine_prompt_tokens_total",
    "generation_tokens_total": "llmslo_engine_generation_tokens_total",
    "requests_finished_total": "llmslo_engine_requests_total",
    "speculation_drafts_total": "llmslo_engine_speculation_drafts_total",
    "speculation_draft_tokens_total": "llmslo_engine_speculation_draft_tokens_total",
    "speculation_accepted_tokens_total": "llmslo_engine_speculation_accepted_tokens_total",
    "speculation_acceptance_ratio": "llmslo_engine_speculation_acceptance_ratio",
    "speculation_length_tokens": "llmslo_engine_speculation_length_tokens",
    "kv_transfer_failures_total": "llmslo_engine_kv_transfer_failures_total",
    "requests_deferred": "llmslo_engine_requests_deferred",
    "sleeping": "llmslo_engine_sleeping",
    "pool_saturation_ratio": "llmslo_engine_pool_saturation_ratio",
    "requests_judged_total": "llmslo_engine_requests_judged_total",
    "requests_failed_total": "llmslo_engine_requests_failed_total",
    "requests_rejected_total": "llmslo_engine_requests_rejected_total",
    "http_errors_total": "llmslo_engine_http_errors_total",
    "grammar_timeouts_total": "llmslo_engine_grammar_timeouts_total",
    "ttft_slo_violations_total": "llmslo_engine_ttft_slo_violations_total",
    "tpot_slo_violations_total": "llmslo_engine_tpot_slo_violations_total",
    "kv_offload_load_seconds_total": "llmslo_engine_kv_offload_load_seconds_total",
    "kv_offload_load_bytes_total": "llmslo_engine_kv_offload_load_bytes_total",
    "kv_offload_failures_total": "llmslo_engine_kv_offload_failures_total",
}
HISTOGRAMS = {
    "ttft_seconds": "llmslo_engine_ttft_seconds",
    "itl_seconds": "llmslo_engine_itl_seconds",
    "queue_seconds": "llmslo_engine_queue_seconds",
    "kv_transfer_seconds": "llmslo_engine_kv_transfer_seconds",
    "prefill_seconds": "llmslo_engine_prefill_seconds",
    "decode_seconds": "llmslo_engine_decode_seconds",
    "tpot_seconds": "llmslo_engine_tpot_seconds",
    "predicted_ttft_seconds": "llmslo_engine_predicted_ttft_seconds",
    "predicted_tpot_seconds": "llmslo_engine_predicted_tpot_seconds",
    "outcome_ttft_seconds": "llmslo_engine_outcome_ttft_seconds",
    "outcome_tpot_seconds": "llmslo_engine_outcome_tpot_seconds",
}


def test_each_value_of_an_engine_is_exported_under_its_name() -> None:
    """Each by its own number; and histograms with the engine's buckets, counts and sums."""
    gateway = Gateway()
    target = gateway.target()
    numbers = {field: float(number) for number, field in enumerate(NAMES, 1)}
    engines = {
        field: EngineHistogram((0.1, 1.0), (number, 5.0, 9.0), 4.0) for number, field in enumerate(HISTOGRAMS, 1)
    }
    signals = replace(page("large").signals, **numbers, **engines)  # type: ignore[arg-type]
    target.page_read(PageReading(0, 0, signals))
    text = b"".join(metrics_page(list(gateway.registry.values()), openmetrics=False)).decode()
    for field, value in numbers.items():
        assert f'\n{NAMES[field]}{{target="t"}} {value}\n' in text
    for field, engines_own in engines.items():
        assert f'\n{HISTOGRAMS[field]}_bucket{{target="t",le="0.1"}} {float(engines_own.counts[0])}\n' in text
        assert f'\n{HISTOGRAMS[field]}_count{{target="t"}} 9.0\n' in text
        assert f'\n{HISTOGRAMS[field]}_sum{{target="t"}} 4.0\n' in text


# Tiers that the answers name; the events, and the tiers shown.
SERVED: dict[str, tuple[list[str], list[str], list[str]]] = {
    "no name is no tier": ([""] * 9, [], []),
    "the first is no change, nor is an answer without a name": (["default", "", "default", "", ""], [], ["default"]),
    "a single other one is no change": (["default"] * 9 + ["priority"], [], ["default"]),
    "another one": (["default"] * 5 + ["flex"] * 5, ["answers name the service tier flex, before it was default"], ["flex"]),
    "in turn is one event, however often": (
        ["default", "priority"] * 500,
        ["answers name the service tier default and priority in turn, before it was default"],
        ["default", "priority"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SERVED)
def test_a_service_tier_that_changes_is_one_event_and_no_change_of_the_engine(name: str) -> None:
    """An engine change would withdraw the headroom and begin a baseline. A neighbour is unaffected."""
    tiers, texts, shown = SERVED[name]
    gateway = Gateway()
    target, neighbour = gateway.target(), gateway.target("n", NO_PAGE.model_copy(update={"name": "n"}))
    served(target, *tiers)
    served(neighbour, *["standard"] * 5)
    assert gateway.texts() == texts
    family = gateway.registry.family(series.SERVICE_TIER_INFO)
    assert sorted(family.of("t")) == [("t", tier) for tier in shown]
    assert family.of("n") == [("n", "standard")]
    assert gateway.model_changes() == 0
    assert target.summary()["service_tier"] == "|".join(shown)


def test_the_service_tier_survives_a_restart_of_the_prober() -> None:
    """A change meanwhile is told; a tier of another model or address is not compared."""
    gateway = Gateway()
    served(gateway.target(), "priority")
    saved = dict(gateway.monitor.states())
    later, other = Gateway(saved), Gateway(saved)
    served(later.target(), *["default"] * 3)
    assert later.texts() == ["answers name the service tier default, before it was priority"]
    served(other.target(spec=NO_PAGE.model_copy(update={"model": "small"})), *["default"] * 3)
    assert other.texts() == []


async def test_an_engine_that_sleeps_is_asleep_until_it_wakes_or_its_page_is_lost() -> None:
    """Probes that it leaves unanswered meanwhile are no failures of it; a neighbour that answers nobody is failing."""
    gateway = Gateway()
    sleeper, neighbour = (gateway.target(name, NO_PAGE.model_copy(update={"name": name})) for name in ("s", "n"))

    def read(sleeping: float | None) -> None:
        info = EngineInfo("vllm", "0.32.0", "large")
        sleeper.page_read(None if sleeping is None else PageReading(0, 0, EngineSignals(info, sleeping=sleeping)))

    def unanswered(target: ObservedTarget) -> None:
        for _ in range(3):
            clock = target.target.clock
            clock.ns += 5 * 10**9  # type: ignore[attr-defined]
            timeline = Timeline(clock.now_ns(), sent_ns=clock.now_ns())
            target.target.probed(
                ProbeResult(target.name, "probe", "id", 0.0, Outcome.TIMEOUT_FIRST_TOKEN, "silent", timeline)
            )

    def state() -> str:
        return sleeper.target.state.value

    read(0.0)
    assert state() == "pending"
    read(1.0)
    assert (state(), sleeper.target.reason) == ("asleep", "its metrics page says so")
    unanswered(sleeper)
    unanswered(neighbour)
    assert (state(), neighbour.target.state.value) == ("asleep", "failing")
    read(0.0)
    assert (state(), sleeper.target.reason) == ("pending", "")
    unanswered(sleeper)
    assert state() == "failing", "it is awake, and answers nobody"
    read(1.0)
    read(None)
    assert state() == "pending", "nothing is known of it"
    sleeper.target.end(True)
    read(1.0)
    assert state() == "draining", "its server ends"

"""One target with its demand and its sweeps, as the fleet observes it, and mock engines to sweep."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from prober.config.load import load
from prober.config.target import TargetSpec
from prober.daemon.registry import registry
from prober.exposition.families import Value
from prober.features.budget.monitor import TargetBudgets
from prober.features.capacity.headroom import Headroom, TargetDemand
from prober.features.capacity.monitor import Sweeps
from prober.features.capacity.series import SWEEP_REFUSALS
from prober.features.capacity.target_sweeps import TargetSweeps
from prober.measure.engines import DIALECTS
from prober.measure.target_state import TargetState
from prober.mock.delays import constant
from prober.mock.server import create_app
from prober.mock.service import Behaviour, Settings
from prober.probing.history import EventLog
from prober.probing.observer import ObservedTarget
from prober.probing.replicas import Leadership
from prober.probing.target import Target
from prober.storage.store import Store
from tests.observed import shared
from tests.serving import serving
from tests.serving import until as serving_until
from tests.virtual import make_clock

TEXT = """
prometheus: {{url: '{prometheus}'}}
slos: {{quick: {{signal: ttft, threshold: {threshold}, objective: 90%}}}}
workloads: {{tiny: {{prompt_tokens: 20, output_tokens: 4}}}}
targets: [{{name: t, url: '{url}', {probes}
  budget: {{{budget}price_per_million: {{prompt: 10, completion: 100}}}},
  metrics: {{url: {page}}}, sweep: {{{workload}{rates}{more}}}}}]
"""
DEFAULTS = {
    **{"threshold": "200ms", "least": "30/s", "page": "auto", "prometheus": "http://127.0.0.1:1"},
    **{
        "budget": "",
        "probes": "",
        "workload": "workload: tiny, ",
        "rates": "min_rate: {least}, max_rate: 400/s, mode: adaptive",
    },
}
# Four at a time of some 40 ms each: 100 a second, and a queue beyond.
SLOTS = Settings(behaviour=Behaviour(ttft=constant(0.03), itl=constant(0.003), slots=4))


def target_spec(url: str, more: str = "", **changed: str) -> TargetSpec:
    """A target `t` with a sweep. more: of its `sweep:` block; changed: of DEFAULTS"""
    values = DEFAULTS | changed
    values["rates"] = values["rates"].format(**values)
    text = TEXT.format(url=url, more=f", {more}" if more else "", **values)
    return load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path).targets[0]


class Stage:
    """leadership: None: no replicas; folder: of the store, None: without one."""

    def __init__(
        self,
        url: str,
        more: str = "",
        folder: Path | None = None,
        leadership: Leadership | None = None,
        instance: str = "test",
        **changed: str,
    ) -> None:
        self.families, self.clock, self.events = registry(), make_clock(), EventLog()
        self.store = Store(str(folder)) if folder else None
        self.headroom = Headroom(self.families)
        own = {"events": self.events, "store": self.store, "leadership": leadership or Leadership()}
        self.sweeps = Sweeps(shared(self.families, self.clock, instance=instance, **own), self.headroom)
        self.headroom.prometheus_url = changed.get("prometheus")
        self.target = Target(target_spec(url, more, **changed), self.clock)
        self.target.state = TargetState.READY
        self.observe()

    def value(self, name: str, *labels: str) -> float:
        child = self.families[name].children.get(("t", *labels))
        return child.value if isinstance(child, Value) else 0.0

    def refused(self) -> dict[str, float]:
        counts = {reason: self.value("llmslo_sweeps_refused_total", reason) for reason in SWEEP_REFUSALS}
        return {reason: count for reason, count in counts.items() if count}

    def ended(self) -> float:
        children = self.families["llmslo_sweeps_total"].children.values()
        return sum(child.value for child in children if isinstance(child, Value))

    def observe(self) -> None:
        """As the fleet begins a target."""
        features = (partial(TargetBudgets, self.families), self.headroom.observe, self.sweeps.observe)
        self.observed = ObservedTarget(self.target, features)

    @property
    def demand(self) -> TargetDemand:
        demand = self.observed.find(TargetDemand)
        assert demand is not None
        return demand

    @property
    def target_sweeps(self) -> TargetSweeps:
        sweeps = self.observed.find(TargetSweeps)
        assert sweeps is not None
        return sweeps

    def reconfigure(self, spec: TargetSpec) -> None:
        """As a reload does."""
        self.remove()
        state = self.target.state
        self.target = Target(spec, self.clock)
        self.target.state = state
        self.observe()

    def is_swept(self) -> bool:
        """Whether a sweep has ended and none is under way."""
        return bool(self.ended()) and not self.sweeps.under_way

    def remove(self) -> None:
        """As the fleet forgets a target."""
        self.observed.stopped()
        self.observed.removed()
        self.families.remove("t")

    def left(self) -> list[tuple[str, tuple[str, ...]]]:
        """Series of the target, and their labels."""
        families = self.families.items()
        return [(name, labels) for name, family in families for labels in family.children if labels[:1] == ("t",)]


@asynccontextmanager
async def staged(
    url: str, more: str = "", folder: Path | None = None, leadership: Leadership | None = None, **changed: str
) -> AsyncIterator[Stage]:
    stage = Stage(url, more, folder, leadership, **changed)
    try:
        yield stage
    finally:
        await stage.sweeps.close()
        stage.clock.close()
        if stage.store:
            stage.store.close()


async def until(true: Callable[[], Any], seconds: float = 600.0) -> None:
    """Wait, for virtual seconds in most tests: a sweep with random arrivals takes one to three minutes."""
    await serving_until(true, seconds)


@asynccontextmanager
async def behind_a_gateway(
    answered: int, headers: dict[str, str] | None = None, status: int = 429
) -> AsyncIterator[tuple[str, list[str]]]:
    """URL of SLOTS behind a gateway, and the ids of the requests that reached it.

    answered: requests that it lets through, before it answers with this status and `headers`
    """
    received: list[str] = []

    @web.middleware
    async def gateway(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        if request.path == "/v1/chat/completions":
            received.append(request.headers["X-Request-Id"])
            if len(received) > answered:
                return web.Response(status=status, headers=headers)
        response: web.StreamResponse = await handler(request)
        return response

    app = create_app(SLOTS, make_clock)
    app.middlewares.append(gateway)
    async with serving(app) as url:
        yield url, received

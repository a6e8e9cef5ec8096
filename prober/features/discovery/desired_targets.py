"""Desired targets: configured and discovered ones in one list, to which the fleet is reconciled.

Changes in quick succession are applied together, and only changed labels are evaluated.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from prober.config.configuration import Configuration
from prober.config.discovery import DiscoverySpec, DnsSpec, FileSpec, HttpSpec, KubernetesSpec, Unfit, target_of
from prober.config.target import TargetSpec
from prober.config.units import counted, first_names
from prober.exposition.families import AnySeries, Registry
from prober.features.discovery import series as discovery_series
from prober.features.discovery.discovered_targets import DiscoveredTargets, Source, TargetLabels
from prober.measure.printable import shown_name
from prober.probing.supervisor import Supervisor

DEBOUNCE_S = 0.5  # from the first change; further changes are included
MAX_EVALUATED = 100  # targets per turn of the event loop: thousands would block it for a second
MAX_LOGGED_REASONS = 10  # per update
SERIES: tuple[AnySeries, ...] = (
    *(discovery_series.DISCOVERY_UP, discovery_series.DISCOVERY_TARGETS),
    *(discovery_series.DISCOVERY_REFUSED, discovery_series.DISCOVERY_FAILURES),
)
log = logging.getLogger(__name__)

Key = tuple[str, str]  # scope and owner


@dataclass(slots=True)
class _Fit:
    """The targets made from one pod's (or file entry's) labels, and why others were not."""

    labels: TargetLabels
    specs: tuple[TargetSpec, ...]
    problems: tuple[str, ...]


@dataclass(slots=True)
class _Group:
    """A configured discovery and its targets. before: the previous configuration, in use until the new source has answered"""

    spec: DiscoverySpec
    discovered: DiscoveredTargets
    task: "asyncio.Task[None] | None" = None
    before: "_Group | None" = None
    fits: dict[Key, _Fit] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)
    counted: int = 0
    probed: frozenset[str] = frozenset()  # keys of its desired targets

    def current(self) -> "_Group":
        """The group whose targets are in use: this one or the previous one."""
        if self.before is None or self.discovered.complete:
            self.before = None
            return self
        return self.before.current()

    async def evaluate(self) -> tuple[list[TargetSpec], list[str]]:
        """(valid targets sorted by name and URL, problems of the others). Evaluates only changed labels."""
        fits: dict[Key, _Fit] = {}
        for index, (key, labels) in enumerate(list(self.discovered.items()), 1):
            fit = self.fits.get(key)
            fits[key] = fit if fit is not None and fit.labels is labels else _fit(labels, self.spec)
            if not index % MAX_EVALUATED:
                await asyncio.sleep(0)
        self.fits = fits
        specs = sorted((spec for fit in fits.values() for spec in fit.specs), key=_order)
        return specs, [problem for fit in fits.values() for problem in fit.problems]


class DesiredTargets:
    """Joins the configured and the discovered targets.

    change: reconciles the fleet; may return before removed targets have ended
    """

    def __init__(self, families: Registry, change: Callable[[list[TargetSpec]], Awaitable[None]]) -> None:
        self._families, self._change, self._supervisor = families, change, Supervisor(families)
        self._static: tuple[TargetSpec, ...] = ()
        self._groups: dict[str, _Group] = {}
        self._admitted: set[str] = set()
        self._changed = asyncio.Event()
        self._configuring, self._changing = asyncio.Lock(), asyncio.Lock()

    async def configure(self, specs: Configuration) -> None:
        """Apply a configuration together with the targets discovered so far."""
        async with self._configuring:
            self._static = specs.probed
            for name in self._groups.keys() - {spec.name for spec in specs.discovery}:
                await _end(self._groups.pop(name))
                for series in SERIES:
                    self._families.keep(series, (), name)
            self._groups = {spec.name: await self._group(spec, self._groups.get(spec.name)) for spec in specs.discovery}
            await self.apply()

    @property
    def is_applied(self) -> bool:
        """True if every source has answered and the fleet probes its targets."""
        has_answered = all(group.before or group.discovered.complete for group in list(self._groups.values()))
        return has_answered and not (self._changed.is_set() or self._changing.locked())

    async def run(self) -> None:
        """Apply changes until cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(DEBOUNCE_S)
            await self.apply()

    async def close(self) -> None:
        """Stop all sources."""
        for group in self._groups.values():
            await _end(group)

    async def apply(self) -> None:
        """Reconcile the fleet with the desired targets."""
        async with self._changing:
            self._changed.clear()
            await self._change(await self._joined())

    async def _group(self, spec: DiscoverySpec, old: _Group | None) -> _Group:
        if old is not None and (old.spec.source, old.spec.reads) == (spec.source, spec.reads):
            if old.spec != spec:
                old.spec, old.fits = spec, {}
            return old
        if old is not None:
            await _end(old)
        group = _Group(
            spec, DiscoveredTargets(spec.name, self._changed.set), before=old.current() if old is not None else None
        )
        group.probed = old.probed if old is not None else frozenset()
        source = _source(spec, group.discovered)
        group.task = self._supervisor.start("discovery", source.run, f"discovery={spec.name}")
        self._families.value(discovery_series.DISCOVERY_FAILURES, spec.name)
        return group

    async def _joined(self) -> list[TargetSpec]:
        """Configured targets, then those of each discovery in order, without repeated names or URLs."""
        desired = list(self._static)
        names = {spec.key for spec in desired}
        places = {(spec.url, spec.model, spec.rank) for spec in desired}
        before, self._admitted = self._admitted, set()
        for name, group in self._groups.items():
            specs, unfit = await group.current().evaluate()
            refused = dict.fromkeys(discovery_series.DISCOVERY_REFUSALS, 0) | {"unfit": len(unfit)}
            reasons = list(unfit)
            fine: list[TargetSpec] = []
            for spec in specs:
                if spec.key in names or (spec.url, spec.model, spec.rank) in places:
                    if fine and _order(fine[-1]) == _order(spec):
                        continue  # a repeated target, as in two endpoint slices of a service
                    refused["duplicate"] += 1
                    reasons.append(f"{spec.key} ({spec.url}): another target has this name or URL")
                    continue
                names.add(spec.key)
                places.add((spec.url, spec.model, spec.rank))
                fine.append(spec)
            admitted = fine
            if len(fine) > group.spec.limit:  # targets already probed come first, then alphabetically
                admitted = sorted(fine, key=lambda spec: (spec.key not in before, spec.key))[: group.spec.limit]
                refused["limit"] = len(fine) - len(admitted)
                reasons.append(f"{refused['limit']} targets exceed the limit of {group.spec.limit:,}; raise `limit`")
            self._admitted |= {spec.key for spec in admitted}
            desired += admitted
            self._report(name, group, len(admitted), refused, reasons)
            now = frozenset(spec.key for spec in admitted)
            changes = {"added": now - group.probed, "removed": group.probed - now}
            group.probed = now
            texts = [
                f"{counted(len(keys), 'target')} {verb}: {first_names(keys, MAX_LOGGED_REASONS)}"
                for verb, keys in changes.items()
                if keys
            ]
            if texts:
                log.info("discovery=%s %s", name, "; ".join(texts))
        return desired

    def _report(self, name: str, group: _Group, targets: int, refused: dict[str, int], reasons: Iterable[str]) -> None:
        families, discovered = self._families, group.discovered
        families.show(discovery_series.DISCOVERY_TARGETS, targets, name)
        is_up = not discovered.problems and discovered.complete
        families.show(discovery_series.DISCOVERY_UP, float(is_up), name)
        for reason, count in refused.items():
            families.show(discovery_series.DISCOVERY_REFUSED, count, name, reason)
        families.value(discovery_series.DISCOVERY_FAILURES, name).inc(discovered.failures - group.counted)
        group.counted = discovered.failures
        now = set(reasons)
        fresh = sorted(now - group.logged)
        group.logged = now
        for reason in fresh[:MAX_LOGGED_REASONS]:
            log.warning("discovery=%s not probed: %s", name, reason)
        if len(fresh) > MAX_LOGGED_REASONS:
            log.warning("discovery=%s not probed: %d more", name, len(fresh) - MAX_LOGGED_REASONS)


def _fit(targets: TargetLabels, spec: DiscoverySpec) -> _Fit:
    specs: list[TargetSpec] = []
    problems: list[str] = []
    for labels in targets:
        try:
            target = target_of(labels, spec)
        except Unfit as problem:
            name = shown_name(labels.get("name") or labels.get("__address__"), 100)
            problems.append(f"{name!r}: {problem}")
        else:
            specs += target.per_rank() if target is not None else ()
    return _Fit(targets, tuple(specs), tuple(problems))


def _order(spec: TargetSpec) -> tuple[str, str, str]:
    return spec.key, spec.url, spec.model or ""


def _source(spec: DiscoverySpec, discovered: DiscoveredTargets) -> Source:
    """Create the source of a discovery; imports only the module of its kind."""
    match spec.source:
        case FileSpec() as source:
            from prober.features.discovery.lists import Files

            return Files(source, spec.reads, discovered)
        case HttpSpec() as source:
            from prober.features.discovery.lists import Http

            return Http(source, spec.reads, discovered)
        case DnsSpec() as source:
            from prober.features.discovery.dns import Dns

            return Dns(source, spec.reads, discovered)
        case KubernetesSpec() as source:
            from prober.features.discovery.kubernetes import Kubernetes

            return Kubernetes(source, spec.reads, discovered)


async def _end(group: _Group) -> None:
    task: asyncio.Task[Any] | None = group.task
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

"""Loads a configuration. One pass reports all errors: an invalid block does not hide errors elsewhere."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel

from prober.config.configuration import Configuration, DriftSpec, GrafanaSpec, PrometheusSpec, StorageSpec
from prober.config.discovery import DiscoverySpec
from prober.config.document import Problems
from prober.config.fields import Block, Document
from prober.config.hosts import is_loopback
from prober.config.problems import REPORTED, below, closest, path_of, unknown_key
from prober.config.server import plain_secrets, unexpanded_variables
from prober.config.slos import SloSpec
from prober.config.target import Overridable, TargetSpec
from prober.config.workloads import WorkloadSpec, resolve_workloads
from prober.workload.workloads import Mix, Workload

M = TypeVar("M", bound=BaseModel)
SINGLE: dict[str, type[Block]] = {
    "drift": DriftSpec,
    "storage": StorageSpec,
    "prometheus": PrometheusSpec,
    "grafana": GrafanaSpec,
}
# What Kubernetes puts behind a workload's name: hash and suffix, in an alphabet of its own, or a number of a StatefulSet.
POD_SUFFIX = re.compile(r"-(?:(?:[b-df-hj-np-tv-xz24-9]{6,10}-)?[b-df-hj-np-tv-xz24-9]{5}|\d+)$")
MINIMAL = "the least that works is `targets: [{url: http://localhost:8000}]`"
LISTS = {
    "targets": "needed: a list of targets, such as [{url: http://localhost:8000}]",
    "discovery": "needed: a list, such as [{file: {files: [targets.json]}}]",
}


def load(
    text: str,
    *,
    source: str,
    engines: Collection[str],
    environment: Mapping[str, str],
    read: Callable[[str], str],
    examine: Callable[[TargetSpec | GrafanaSpec], Mapping[str, str]] = lambda _: {},
) -> Configuration:
    """Parse and validate a configuration. Raises ConfigError.

    source: name of the text in messages; engines: known dialects; environment: variables for the downward API and `${NAME}`
    read: returns the content of a file that the configuration names, or raises OSError
    examine: returns {key: error} of a valid block for errors on this machine, such as unreadable certificates
    """
    problems = Problems(source, text)
    raw = problems.mapping(MINIMAL, as_written=("discovery", "relabel"))
    _refuse_variables(raw, problems)
    reader = _Reader(raw, problems, Document(engines, environment, read))
    configuration = reader.configuration(examine)
    problems.end()
    configuration._file = problems
    unchecked = [
        (f"workloads.{name}.sampling", workload.unchecked)
        for name, workload in reader.document.workloads.items()
        if isinstance(workload, Workload) and workload.unchecked
    ]
    configuration._warnings = tuple(problems.line(*warning) for warning in (*plain_secrets(raw), *unchecked))
    return configuration


def load_workloads(text: str, *, source: str, read: Callable[[str], str]) -> dict[str, Workload | Mix]:
    """The built-in workloads and those of a configuration. Its other blocks are ignored. Raises ConfigError."""
    problems = Problems(source, text)
    raw = problems.mapping("leave it out to use a built-in workload")
    if not raw.get("workloads"):
        problems.add("workloads", "none is there; leave it out to use a built-in one")
    _refuse_variables({"workloads": raw.get("workloads")}, problems)
    reader = _Reader(raw, problems, Document((), {}, read))
    reader.read_workloads()
    problems.end()
    return reader.document.workloads


def _refuse_variables(raw: dict[Any, Any], problems: Problems) -> None:
    """Report variables in texts that are not expanded, and replace those texts by REPORTED."""
    for keys, message in list(unexpanded_variables(raw)):
        problems.add(path_of(keys), message)
        reduce(getitem, keys[:-1], raw)[keys[-1]] = REPORTED


@dataclass(frozen=True, slots=True)
class _Reader:
    """Validates a file block by block. problems: all errors; document: names that later blocks use, and broken blocks"""

    raw: dict[Any, Any]
    problems: Problems
    document: Document

    def configuration(self, examine: Callable[[TargetSpec | GrafanaSpec], Mapping[str, str]]) -> Configuration:
        """Read the configuration. The result is not valid if there are problems."""
        raw, fields, broken = self.raw, Configuration.model_fields, self.document.broken
        for key in map(str, raw.keys() - fields.keys()):
            self.problems.add(key, unknown_key(key, fields))
            names = raw[key] if isinstance(raw.get(key), dict) else (None,)
            broken |= {(closest(key, fields), name) for name in names}
        misspelt = {path for path, _ in broken}
        if not raw.get("targets") and not raw.get("discovery") and not misspelt & LISTS.keys():
            self.problems.add("targets", LISTS["targets"])
        slos = self._named(SloSpec, "slos")
        self.document.slos = {name: slo.named(name) for name, slo in slos.items()}
        defaults = self._defaults()
        workloads = self.read_workloads()
        singles: dict[str, Any] = {
            key: self._block(model, raw[key], key) for key, model in SINGLE.items() if raw.get(key) is not None
        }
        targets, discovery = self._targets(), self._discovery()
        configuration = Configuration.model_construct(
            defaults=defaults,
            slos=slos,
            workloads=workloads,
            targets=tuple(targets.values()),
            discovery=tuple(discovery.values()),
            **{key: block for key, block in singles.items() if block is not None},
        )
        places = {f"targets[{index}]": target for index, target in targets.items()}
        places |= {f"discovery[{index}].target": spec.template for index, spec in discovery.items()}
        for place, block in {**places, "grafana": configuration.grafana}.items():
            for key, message in (examine(block) if block is not None else {}).items():
                self.problems.add(below(place, key), message)
        asking = [place for place, target in places.items() if target.sweep and target.sweep.demand_query]
        for place in asking if not raw.get("prometheus") and "prometheus" not in misspelt else ():
            problem = "nobody can be asked; add prometheus: {url: http://prometheus:9090}"
            self.problems.add(f"{place}.sweep.demand_query", problem)
        used = {slo.name for target in places.values() for slo in dict(target.uses())}
        used |= {slo.name for target in places.values() if target.sweep for slo in target.sweep.slos}
        used |= {slo.name for target in places.values() for slo in target.traffic_slos}
        for name in slos.keys() - used if not any(path in LISTS for path, _ in broken) else ():
            self.problems.add(f"slos.{name}", "no probe uses it; list it in the `slos` of one, or remove it")
        return configuration

    def _defaults(self) -> Overridable:
        """Read the block `defaults`. Invalid keys become REPORTED, so that targets that inherit them do not report them again."""
        raw = self.raw.get("defaults") or {}
        if not isinstance(raw, dict):
            self._block(Overridable, raw, "defaults")
            raw = {}
        valid = {
            key: item for key, item in raw.items() if self._block(Overridable, {key: item}, "defaults") is not None
        }
        known = {key: REPORTED for key in raw if key in Overridable.model_fields}
        self.document.defaults = known | valid
        return Overridable.model_validate(valid, context=self.document)

    def read_workloads(self) -> dict[str, WorkloadSpec]:
        """Read the workloads, so that later blocks can name them."""
        workloads = self._named(WorkloadSpec, "workloads")
        self.document.workloads = resolve_workloads(workloads, self.problems, self.document)
        return workloads

    def _targets(self) -> dict[int, TargetSpec]:
        """Valid targets by index in the list, with unique names."""
        targets = self._listed(TargetSpec, "targets")
        environment = self.document.environment
        namespace = environment.get("POD_NAMESPACE")
        workload = environment.get("POD_WORKLOAD") or POD_SUFFIX.sub("", environment.get("POD_NAME", ""))
        is_alone = sum(target.name is None for target in targets.values()) == 1
        pod = f"{namespace}/{workload}" if namespace and workload and is_alone else None
        for index, target in targets.items():
            name = target.name or pod or target.model or _address(target.url)
            targets[index] = target.model_copy(update={"name": name})
        raw = self.raw.get("targets")
        written = dict(enumerate(raw if isinstance(raw, list) else ()))
        names = {index: block.get("name") for index, block in written.items() if isinstance(block, dict)}
        of_invalid = {index: name for index, name in names.items() if isinstance(name, str)}
        self.problems.unique("targets", of_invalid | {index: target.key for index, target in targets.items()})
        ranked = {index: target.per_rank() for index, target in targets.items() if target.ranks}
        ranks = {each.key: f"rank {each.rank} of targets[{index}]" for index, of in ranked.items() for each in of}
        for index, target in targets.items():
            if target.key in ranks:
                text = f"is called {target.key!r}, as {ranks[target.key]}; give it another name"
                self.problems.add(f"targets[{index}].name", text)
        return targets

    def _discovery(self) -> dict[int, DiscoverySpec]:
        """Valid discoveries by index in the list, with unique names."""
        specs = self._listed(DiscoverySpec, "discovery")
        kinds = [spec.kind for spec in specs.values()]
        for index, spec in specs.items():
            name = spec.name or (spec.kind if kinds.count(spec.kind) == 1 else f"{spec.kind}-{index}")
            specs[index] = spec.placed(index, name)
        self.problems.unique("discovery", {index: spec.name for index, spec in specs.items()})
        return specs

    def _named(self, model: type[M], path: str) -> dict[str, M]:
        """Valid blocks by name. The names of invalid ones are added to `broken`."""
        raw = self.raw.get(path) or {}
        if not isinstance(raw, dict):
            self.problems.add(path, "must be a mapping of names")
            self.document.broken.add((path, None))
            return {}
        blocks: dict[str, M] = {}
        for name, value in raw.items():
            if not isinstance(name, str) or not name or not all(c.isalnum() or c in "_.-" for c in name):
                problem = f"{name!r} cannot be a name; use letters, digits, '_', '.' and '-'"
                self.problems.add(f"{path}.{name}", problem)
            elif (block := self._block(model, value, f"{path}.{name}")) is not None:
                blocks[name] = block
        self.document.broken |= {(path, name) for name in raw.keys() - blocks.keys()}
        return blocks

    def _listed(self, model: type[M], path: str) -> dict[int, M]:
        """Valid blocks by index in the list. Invalid ones are added to `broken`."""
        raw = self.raw.get(path) or []
        if not isinstance(raw, list):
            self.problems.add(path, LISTS[path])
            self.document.broken.add((path, None))
            return {}
        blocks = {index: self._block(model, value, f"{path}[{index}]") for index, value in enumerate(raw)}
        valid = {index: block for index, block in blocks.items() if block is not None}
        self.document.broken |= {(path, index) for index in blocks.keys() - valid.keys()}
        return valid

    def _block(self, model: type[M], raw: Any, path: str) -> M | None:
        return self.problems.validated(model, raw, path, self.document)


def _address(url: str) -> str:
    """Host of a URL for a name; with its port if it is this machine, where several engines may listen."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.netloc if is_loopback(host) else host

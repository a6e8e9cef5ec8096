"""Load a configuration. One pass reports all errors: an invalid block does not hide errors elsewhere."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from prober.config.configuration import Configuration, PrometheusSpec, StorageSpec
from prober.config.discovery import DiscoverySpec
from prober.config.document import BadYaml, parse
from prober.config.drift import DriftSpec
from prober.config.fields import Block, Document
from prober.config.grafana import GrafanaSpec
from prober.config.hosts import is_loopback
from prober.config.problems import ConfigError, Problems, below, explain, unknown_key
from prober.config.slos import SloSpec
from prober.config.target import Overridable, TargetSpec
from prober.config.variables import plain_secrets
from prober.config.workloads import WorkloadSpec, resolve_workloads
from prober.workload.workloads import Mix, Workload

M = TypeVar("M", bound=BaseModel)
SINGLE: dict[str, type[Block]] = {
    "drift": DriftSpec,
    "storage": StorageSpec,
    "prometheus": PrometheusSpec,
    "grafana": GrafanaSpec,
}
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
) -> Configuration:
    """Parse and validate a configuration. Raises ConfigError.

    source: name of the text in messages; engines: known dialects; environment: of the process, for the downward API and `${NAME}`
    read: returns the content of a file that the configuration names, or raises OSError
    """
    try:
        raw = parse(text, ("discovery", "relabel"))
    except BadYaml as problem:
        raise ConfigError(f"{source}: {problem}") from None
    if not isinstance(raw, dict):
        raise ConfigError(
            f"{source}: not a mapping; the least that works is `targets: [{{url: http://localhost:8000}}]`"
        )
    reader = _Reader(raw, Problems(source), Document(engines, environment, read))
    configuration = reader.configuration()
    if reader.problems.lines:
        raise ConfigError("\n".join(reader.problems.lines))
    configuration._warnings = tuple(f"{source}: {warning}" for warning in plain_secrets(raw))
    return configuration


def load_workloads(text: str, *, source: str, read: Callable[[str], str]) -> dict[str, Workload | Mix]:
    """Built-in workloads and those of a configuration, the rest of which is not looked at. Raises ConfigError."""
    try:
        raw = parse(text)
    except BadYaml as problem:
        raise ConfigError(f"{source}: {problem}") from None
    if not isinstance(raw, dict) or not raw.get("workloads"):
        raise ConfigError(f"{source}: workloads: none is there; leave it out to use a built-in one")
    reader = _Reader(raw, Problems(source), Document((), {}, read))
    reader.read_workloads()
    if reader.problems.lines:
        raise ConfigError("\n".join(reader.problems.lines))
    return reader.document.workloads


class _Reader:
    """Validates a file block by block. problems: all errors; document: names that later blocks refer to."""

    def __init__(self, raw: dict[Any, Any], problems: Problems, document: Document) -> None:
        self.problems, self.document = problems, document
        self._raw = raw

    def configuration(self) -> Configuration:
        """The configuration; not to be used if there are problems."""
        raw, fields = self._raw, Configuration.model_fields
        for key in raw:
            if key not in fields:
                self.problems.add("", unknown_key(key, fields))
        if not raw.get("targets") and not raw.get("discovery"):
            self.problems.add("targets", LISTS["targets"])
        defaults: Any = self._block(Overridable, raw.get("defaults") or {}, "defaults")
        slos = self._named(SloSpec, "slos")
        self.document.slos = {name: slo.named(name) for name, slo in slos.items()}
        workloads = self.read_workloads()
        self.document.defaults = (raw.get("defaults") or {}) if defaults is not None else {}
        blocks: dict[str, Any] = {
            "targets": self._targets(),
            **{key: self._block(model, raw[key], key) for key, model in SINGLE.items() if raw.get(key) is not None},
            "discovery": self._discovery(),
        }
        configuration = Configuration.model_construct(defaults=defaults, slos=slos, workloads=workloads, **blocks)
        is_valid = not self.problems.lines
        self._check_queries(configuration)
        if is_valid:
            self._check_use(configuration)
        return configuration

    def read_workloads(self) -> dict[str, WorkloadSpec]:
        """Read the workloads, so that later blocks can name them."""
        workloads = self._named(WorkloadSpec, "workloads")
        self.document.workloads = resolve_workloads(workloads, self.problems, self.document.read)
        return workloads

    def _targets(self) -> tuple[TargetSpec, ...]:
        """Valid targets with unique names."""
        targets = self._listed(TargetSpec, "targets")
        environment = self.document.environment
        namespace, workload = environment.get("POD_NAMESPACE"), environment.get("POD_WORKLOAD")
        is_alone = sum(target.name is None for target in targets.values()) == 1
        pod = f"{namespace}/{workload}" if namespace and workload and is_alone else None
        places: dict[str | None, int] = {}
        raw = self._raw.get("targets")
        for index, block in enumerate(raw if isinstance(raw, list) else ()):
            target = targets.get(index)
            if target is not None:
                name = target.name or pod or target.model or _host(target.url)
            elif not (isinstance(block, dict) and isinstance(name := block.get("name"), str)):
                continue  # invalid, and without a name
            if name in places:
                conflict = f"is called {name!r}" if name else "has no name and waits for its model's"
                self.problems.add(
                    f"targets[{index}].name", f"{conflict}, as targets[{places[name]}]; give each a name of its own"
                )
            places[name] = index
            if target is not None:
                targets[index] = target.model_copy(update={"name": name})
        return tuple(targets.values())

    def _discovery(self) -> tuple[DiscoverySpec, ...]:
        """Valid discoveries with unique names."""
        specs = self._listed(DiscoverySpec, "discovery")
        kinds = [spec.kind for spec in specs.values()]
        places: dict[str, int] = {}
        for index, spec in specs.items():
            name = spec.name or (spec.kind if kinds.count(spec.kind) == 1 else f"{spec.kind}-{index}")
            if name in places:
                self.problems.add(
                    f"discovery[{index}].name",
                    f"discovery[{places[name]}] is called {name!r} too; give each a name of its own",
                )
            places[name] = index
            specs[index] = spec.placed(index, name)
        return tuple(specs.values())

    def _check_queries(self, configuration: Configuration) -> None:
        """Report queries without a Prometheus."""
        for place, target in configuration.places.items():
            if (
                self._raw.get("prometheus") is None
                and target.sweep is not None
                and target.sweep.demand_query is not None
            ):
                self.problems.add(
                    f"{place}.sweep.demand_query",
                    "nobody can be asked; add prometheus: {url: http://prometheus:9090}",
                )

    def _check_use(self, configuration: Configuration) -> None:
        """Report SLOs without use; only of a file that is valid otherwise, as an invalid block may be the one that uses it."""
        used = set(configuration.uses())
        for target in configuration.places.values():
            used.update(target.sweep.slos if target.sweep is not None else ())
        for name in sorted(configuration.slos.keys() - {slo.name for slo in used}):
            self.problems.add(f"slos.{name}", "no probe uses it; list it in the `slos` of one, or remove it")

    def _named(self, model: type[M], path: str) -> dict[str, M]:
        """Valid blocks by name; the names of the others are broken."""
        raw = self._raw.get(path)
        if raw is not None and not isinstance(raw, dict):
            self.problems.add(path, "must be a mapping of names")
        blocks: dict[str, M] = {}
        for name, value in raw.items() if isinstance(raw, dict) else ():
            if not isinstance(name, str) or not name or not all(c.isalnum() or c in "_.-" for c in name):
                self.problems.add(path, f"{name!r} cannot be a name; use letters, digits, '_', '.' and '-'")
            elif (block := self._block(model, value, f"{path}.{name}")) is not None:
                blocks[name] = block
            else:
                self.document.broken |= {name}
        return blocks

    def _listed(self, model: type[M], path: str) -> dict[int, M]:
        """Valid blocks by their index in the list."""
        raw = self._raw.get(path) or []
        if not isinstance(raw, list):
            self.problems.add(path, LISTS[path])
            return {}
        blocks = {index: self._block(model, value, f"{path}[{index}]") for index, value in enumerate(raw)}
        return {index: block for index, block in blocks.items() if block is not None}

    def _block(self, model: type[M], raw: Any, path: str) -> M | None:
        try:
            return model.model_validate(raw, context=self.document)
        except ValidationError as error:
            for key, message in explain(error, model, raw).items():
                self.problems.add(below(path, key).removeprefix("/"), message)
            return None


def _host(url: str) -> str | None:
    """Host of a URL as a name; None for this machine."""
    host = urlsplit(url).hostname or ""
    return host if host and not is_loopback(host) else None

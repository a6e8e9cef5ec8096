"""Load a configuration. One pass reports all errors: an invalid block does not hide errors elsewhere."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from prober.config import models
from prober.config.discovery import resolve_discovery
from prober.config.document import BadYaml, parse
from prober.config.grafana import resolve_grafana
from prober.config.problems import Problems, unknown_key
from prober.config.resolve import (
    Names,
    resolve_drift,
    resolve_prometheus,
    resolve_slos,
    resolve_target,
    resolve_targets,
    resolve_workloads,
)
from prober.config.specs import Specs
from prober.config.sweep import check_nobody_asks
from prober.config.variables import Variables

M = TypeVar("M", bound=BaseModel)
SECRET = {"auth", "headers", "proxy_url", "url", "bearer_token_file"}  # keys whose values are never shown in messages

LISTED = {
    "targets": "needed: a list of targets, such as [{url: http://localhost:8000}]",
    "discovery": "needed: a list, such as [{file: {files: [targets.json]}}]",
}


class ConfigError(ValueError):
    """All errors, one per line: `source: path: error; remedy`."""


def load(
    text: str,
    *,
    source: str,
    engines: Collection[str],
    environment: Mapping[str, str],
    read: Callable[[str], str],
) -> Specs:
    """What `text` describes.

    source names the text in messages; engines are the known dialects; environment is the process's (for the downward API, and
    `${NAME}` in values); read gives the content of a file that the configuration names and raises OSError. Raises ConfigError.
    """
    problems = Problems(source)
    variables = Variables(environment, problems)
    try:
        raw = parse(text)
    except BadYaml as problem:
        raise ConfigError(f"{source}: {problem}") from None
    if not isinstance(raw, dict):
        raise ConfigError(
            f"{source}: not a mapping; the least that works is `targets: [{{url: http://localhost:8000}}]`"
        )
    for key in raw:
        if key not in models.Config.model_fields:
            problems.add("", unknown_key(key, models.Config.model_fields))
    defaults = _block(models.Overridable, raw.get("defaults") or {}, "defaults", problems) or models.Overridable()
    slos = _blocks(models.Slo, raw.get("slos"), "slos", problems)
    workloads = _blocks(models.WorkloadBlock, raw.get("workloads"), "workloads", problems)
    targets = _listed(models.Target, raw.get("targets"), "targets", problems)
    discovery = _listed(models.Discovery, raw.get("discovery"), "discovery", problems)
    if not raw.get("targets") and not raw.get("discovery"):
        problems.add("targets", LISTED["targets"])
    names = Names(
        slos=resolve_slos(slos, problems),
        workloads=resolve_workloads(workloads, problems, read),
        engines=frozenset(engines),
        broken=frozenset(set(_keys(raw.get("slos"))) - set(slos) | set(_keys(raw.get("workloads"))) - set(workloads)),
        read=read,
        variables=variables,
    )
    specs = Specs(
        resolve_targets(targets, defaults, names, environment, problems),
        resolve_drift(_block(models.Drift, raw.get("drift") or {}, "drift", problems) or models.Drift(), problems),
        (_block(models.Storage, raw.get("storage") or {}, "storage", problems) or models.Storage()).path,
        resolve_prometheus(_block(models.Prometheus, raw["prometheus"], "prometheus", problems), variables, problems)
        if raw.get("prometheus") is not None
        else None,
        resolve_grafana(_block(models.Grafana, raw["grafana"], "grafana", problems), problems)
        if raw.get("grafana") is not None
        else None,
        resolve_discovery(
            discovery, lambda target, path: resolve_target(target, defaults, names, path, problems), variables, problems
        ),
        tuple(f"{source}: {each}" for each in variables.warnings),
    )
    if raw.get("prometheus") is None:
        places = {f"targets[{index}]": target for index, target in zip(targets, specs.targets, strict=True)}
        check_nobody_asks(places | {each.template.key: each.template for each in specs.discovery}, problems)
    if not problems.lines:
        swept = {slo.name for target in specs.kinds if target.sweep for slo in target.sweep.slos}
        unused = set(names.slos) - {slo.name for slo in specs.uses()} - swept
        for name in sorted(unused):
            problems.add(f"slos.{name}", "no probe uses it; list it in the `slos` of one, or remove it")
    if problems.lines:
        raise ConfigError("\n".join(problems.lines))
    return specs


def nothing() -> Specs:
    """Defaults without targets, used while there is no valid configuration."""
    return Specs((), resolve_drift(models.Drift(), Problems("")), None, None)


def _keys(value: Any) -> Iterable[str]:
    return value if isinstance(value, dict) else ()


def _blocks(model: type[M], raw: Any, path: str, problems: Problems) -> dict[str, M]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        problems.add(path, "must be a mapping of names")
        return {}
    found: dict[str, M] = {}
    for name, value in raw.items():
        if not isinstance(name, str) or not name or not all(c.isalnum() or c in "_.-" for c in name):
            problems.add(path, f"{name!r} cannot be a name; use letters, digits, '_', '.' and '-'")
        elif block := _block(model, value, f"{path}.{name}", problems):
            found[name] = block
    return found


def _listed(model: type[M], raw: Any, path: str, problems: Problems) -> dict[int, M]:
    """Valid items by their index in the list."""
    if raw is None:
        return {}
    if not isinstance(raw, list):
        if raw:
            problems.add(path, LISTED[path])
        return {}
    return {
        index: block
        for index, entry in enumerate(raw)
        if (block := _block(model, entry, f"{path}[{index}]", problems)) is not None
    }


def _block(model: type[M], raw: Any, path: str, problems: Problems) -> M | None:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        shown: set[str] = set()
        for item in error.errors(include_url=False, include_context=True):
            where, message = _explain(model, path, item)
            if where not in shown:  # one line per path: all branches of a union fail together
                shown.add(where)
                problems.add(where, message)
        return None


def _explain(model: type[BaseModel], path: str, item: Any) -> tuple[str, str]:
    kind, given, where, place = item["type"], item.get("input"), path, item["loc"]
    if SECRET & set(map(str, place)) or isinstance(given, list | dict):
        given = "…"
    if kind == "extra_forbidden":
        *place, last = place  # a key of the user, which may look like a branch
    keys = [part for part in place if not _is_branch(part)]
    for key in keys:
        where += f"[{key}]" if isinstance(key, int) else f".{key}"
    if kind == "extra_forbidden":
        return where + f".{last}", unknown_key(last, fields_of(model, keys))
    if kind == "missing":
        return where, "needed, but not given"
    if kind == "unit":
        return where, item["msg"]
    if kind == "literal_error":
        return where, f"{given!r} is not one of {item['ctx']['expected']}"
    if kind == "model_type":
        return where, f"{given!r} is not a mapping of keys; write it as key: value"
    return where, f"{given!r}: {item['msg'][0].lower()}{item['msg'][1:]}"


def _is_branch(part: int | str) -> bool:
    """Remove union branches, which Pydantic adds to the location, from the path."""
    return isinstance(part, str) and (part[:1].isupper() or "[" in part or part in ("int", "decimal", "str"))


def fields_of(model: type[BaseModel], keys: list[int | str]) -> Iterable[str]:
    """Known keys of the block at path `keys` of `model`."""
    for key in keys:
        field = model.model_fields.get(str(key))
        found = _model_of(field.annotation) if field else None
        model = found or model
    return model.model_fields


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if found := _model_of(argument):
            return found
    return None

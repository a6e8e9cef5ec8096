"""Resolve blocks to specifications: fill in defaults, look up names, and check blocks against each other."""

import ipaddress
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal, TypeVar, cast
from urllib.parse import urlsplit

from prober.config import models
from prober.config.problems import Problems, is_http, no_such, shown
from prober.config.serving import resolve_decode_bound, resolve_gpus, resolve_metrics, resolve_tls
from prober.config.specs import (
    ArrivalsSpec,
    BudgetSpec,
    DriftSpec,
    ProbeSpec,
    TargetSpec,
    Timeouts,
    estimate_per_day,
)
from prober.config.sweep import resolve_sweep
from prober.config.variables import Variables
from prober.measure.burn_rate_windows import MIN_SLO_WINDOW_S, promql
from prober.measure.objective import SIGNALS_WITHOUT_STREAM, SIGNALS_WITHOUT_THRESHOLD, Slo
from prober.measure.quality import Expectation, expectation_problem
from prober.workload.prompts import BadPrompts, GoldenPrompt, parse_prompts
from prober.workload.shapes import Empirical, Fixed, LengthDistribution, Lognormal, Uniform
from prober.workload.trace import BadTrace, parse_trace
from prober.workload.workloads import BUILT_IN, Mix, Prefix, Workload

V = TypeVar("V")
GOLDEN_OUTPUT = 64
GOLDEN_LONGEST = 4_096
OWN_HEADERS = frozenset(
    [
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "x-request-id",
    ]
)


@dataclass(frozen=True, slots=True)
class Names:
    """Names that targets can refer to. `broken` names have errors themselves, which are reported once, not at each use."""

    slos: Mapping[str, Slo]
    workloads: Mapping[str, Workload | Mix]
    engines: Collection[str]
    broken: frozenset[str]
    read: Callable[[str], str]
    variables: Variables


def resolve_slos(blocks: Mapping[str, models.Slo], problems: Problems) -> dict[str, Slo]:
    """Objectives by name."""
    found: dict[str, Slo] = {}
    for name, slo in blocks.items():
        path = f"slos.{name}"
        if not 0 < slo.objective < 1:
            problems.add(
                f"{path}.objective", f"{slo.objective * 100}% leaves nothing to judge; use 0% < objective < 100%"
            )
        if slo.signal in SIGNALS_WITHOUT_THRESHOLD and slo.threshold is not None:
            problems.add(f"{path}.threshold", f"`{slo.signal}` has no threshold; remove it")
        elif slo.signal not in SIGNALS_WITHOUT_THRESHOLD and not slo.threshold:
            problems.add(f"{path}.threshold", f"needed for signal `{slo.signal}`: a duration above 0, such as 500ms")
        if slo.window < MIN_SLO_WINDOW_S:
            least = promql(MIN_SLO_WINDOW_S)
            problems.add(
                f"{path}.window",
                f"{promql(slo.window)} is too short for its burn-rate windows, which are 5m/1h to 6h/3d of 30d and shrink with "
                f"it to less than a scrape or two; use at least {least}",
            )
        found[name] = Slo(name, slo.signal, slo.threshold, slo.objective, slo.window)
    return found


def resolve_workloads(
    blocks: Mapping[str, models.WorkloadBlock], problems: Problems, read: Callable[[str], str]
) -> dict[str, Workload | Mix]:
    """Workloads by name, including built-in ones; mixes last, since they refer to others."""
    found: dict[str, Workload | Mix] = dict(BUILT_IN)
    for name, block in blocks.items():
        if block.mix is None:
            found[name] = _workload(name, block, problems, read)
    for name, block in blocks.items():
        if block.mix is not None:
            found[name] = _mix(name, block, found, problems)
    return found


def _mix(name: str, block: models.WorkloadBlock, known: Mapping[str, Workload | Mix], problems: Problems) -> Mix:
    path = f"workloads.{name}.mix"
    if block.model_fields_set != {"mix"}:
        others = ", ".join(sorted(block.model_fields_set - {"mix"}))
        problems.add(path, f"a mix has no {others} of its own; set them in its parts")
    parts: list[tuple[Workload, float]] = []
    for index, part in enumerate(block.mix or ()):
        workload = known.get(part.workload)
        if isinstance(workload, Workload):
            parts.append((workload, part.weight))
        else:
            problems.add(f"{path}[{index}].workload", no_such("workload that is no mix", part.workload, known))
    if not parts:
        problems.add(path, "needs at least one part, such as {workload: chat, weight: 2}")
    return Mix(name, tuple(parts))


def _workload(name: str, block: models.WorkloadBlock, problems: Problems, read: Callable[[str], str]) -> Workload:
    path = f"workloads.{name}"
    texts = [key for key in ("prompts", "trace", "golden") if getattr(block, key) is not None]
    if len(texts) > 1:
        problems.add(path, f"has {' and '.join(f'`{key}`' for key in texts)}; keep one of them")
    output = GOLDEN_OUTPUT if block.golden is not None and block.output_tokens is None else block.output_tokens
    for key, given, needless in (
        ("prompt_tokens", block.prompt_tokens, bool(texts)),
        ("output_tokens", output, block.trace is not None),
        ("prefix", block.prefix, bool(texts)),
    ):
        if needless and given is not None:
            problems.add(f"{path}.{key}", f"comes with `{texts[0]}`; remove it here, or that")
        elif not needless and given is None and key != "prefix":
            problems.add(f"{path}.{key}", "needed: a number of tokens or a distribution")
    if "seed" in (block.sampling or {}):
        problems.add(f"{path}.sampling.seed", "is never sent: with a long prompt it kills some engines; remove it")
    workload = Workload(
        name,
        prompt_tokens=_shape(block.prompt_tokens, f"{path}.prompt_tokens", problems),
        output_tokens=_shape(output, f"{path}.output_tokens", problems),
        prefix=_prefix(block.prefix),
        sampling=block.sampling if block.sampling is not None else {"temperature": 0},
    )
    return _with_texts(workload, block, path, problems, read)


def _with_texts(
    workload: Workload, block: models.WorkloadBlock, path: str, problems: Problems, read: Callable[[str], str]
) -> Workload:
    if block.prompts:
        try:
            workload = replace(workload, prompts=parse_prompts(read(block.prompts.file), block.prompts.file))
        except (OSError, UnicodeDecodeError) as problem:
            problems.add(f"{path}.prompts.file", f"cannot be read: {problem}; name a file that is there")
        except BadPrompts as problem:
            problems.add(f"{path}.prompts.file", str(problem))
    if block.trace:
        try:
            trace = parse_trace(read(block.trace.file), block.trace.file)
            workload = replace(workload, trace=trace, speed=block.trace.speed)
        except (OSError, UnicodeDecodeError) as problem:
            problems.add(f"{path}.trace.file", f"cannot be read: {problem}; name a file that is there")
        except BadTrace as problem:
            problems.add(f"{path}.trace.file", str(problem))
    if block.golden is not None:
        workload = replace(workload, golden=_golden(block.golden, f"{path}.golden", problems))
        if workload.output_tokens.maximum > GOLDEN_LONGEST:
            problems.add(
                f"{path}.output_tokens",
                f"of golden prompts are at most {GOLDEN_LONGEST:,}, as the answer is kept to be judged",
            )
    return workload


def _golden(prompts: list[models.GoldenPrompt], path: str, problems: Problems) -> tuple[GoldenPrompt, ...]:
    found: list[GoldenPrompt] = []
    if not prompts:
        problems.add(path, "is empty; give it prompts, such as [{prompt: What is 2 + 2?, expect: {regex: '4'}}]")
    for index, block in enumerate(prompts):
        place = f"{path}[{index}].expect"
        given = block.expect.model_dump(exclude_none=True) if block.expect else {}
        if len(given) != 1:
            problems.add(
                place,
                "needed: one of {text: …}, {regex: …} and {json_schema: {…}}; without it there is nothing to check",
            )
            continue
        ((kind, wanted),) = given.items()
        expectation = Expectation(cast(Literal["text", "regex", "json_schema"], kind), wanted)
        if problem := expectation_problem(expectation):
            problems.add(f"{place}.{kind}", problem)
        found.append(GoldenPrompt(block.prompt, expectation))
    return tuple(found)


def _prefix(block: models.PrefixBlock | None) -> Prefix | None:
    if block is None:
        return None
    return Prefix(block.tokens, block.reuse)


def _shape(length: models.Length | None, path: str, problems: Problems) -> LengthDistribution:
    shape: LengthDistribution = Fixed(1)
    match length:
        case None:
            return shape
        case int():
            return Fixed(length)
        case models.FixedLength():
            return Fixed(length.fixed)
        case models.UniformLength(uniform=u):
            shape = Uniform(u.min, u.max)
            fits = u.min <= u.max
        case models.LognormalLength(lognormal=p):
            shape = Lognormal(p.median, p.sigma, p.min, p.max)
            fits = p.min <= p.median <= p.max
        case models.EmpiricalLength(empirical=e):
            pairs = tuple(sorted(e.quantiles.items()))
            values = [value for _, value in pairs]
            shape = Empirical(pairs)
            if not pairs or pairs[0][0] != 0 or pairs[-1][0] != 1 or values != sorted(values):
                problems.add(path, "quantiles must go from 0 to 1 and rise, such as {0: 10, 0.5: 100, 1: 2000}")
            return shape
    if not fits:
        problems.add(path, "min, median and max are not in order; it must be min ≤ median ≤ max")
    return shape


def resolve_drift(block: models.Drift, problems: Problems) -> DriftSpec:
    """Settings of drift detection."""
    if not Decimal("0.05") <= block.material <= 1:
        problems.add(
            "drift.material",
            f"{(block.material * 100).normalize():f}% cannot be told from the wander of a healthy engine; use 5% to 100%",
        )
    return DriftSpec(block.false_alarms, float(block.material), block.accept_after)


def resolve_prometheus(block: models.Prometheus | None, variables: Variables, problems: Problems) -> str | None:
    """Base URL without a trailing slash."""
    if block is None:
        return None
    url = variables.url(block.url, "prometheus.url")
    if not is_http(url):
        said = f"{shown(block.url)!r} is not an http or https URL; write http://prometheus:9090"
        problems.add("prometheus.url", said)
    return url.rstrip("/")


def resolve_targets(
    targets: Mapping[int, models.Target],
    defaults: models.Overridable,
    names: Names,
    environment: Mapping[str, str],
    problems: Problems,
) -> tuple[TargetSpec, ...]:
    """Complete targets with unique names."""
    specs: list[TargetSpec] = []
    seen: dict[str | None, int] = {}
    unnamed = sum(1 for target in targets.values() if target.name is None)
    for index, target in targets.items():
        path = f"targets[{index}]"
        spec = resolve_target(target, defaults, names, path, problems)
        spec = replace(spec, name=_name(target, environment, alone=unnamed == 1))
        spec = replace(spec, key=spec.name or spec.url)
        if spec.name in seen:
            called = f"is called {spec.name!r}" if spec.name else "has no name and waits for its model's"
            problems.add(f"{path}.name", f"{called}, as targets[{seen[spec.name]}]; give each a name of its own")
        seen[spec.name] = index
        specs.append(spec)
    return tuple(specs)


def _name(target: models.Target, environment: Mapping[str, str], *, alone: bool) -> str | None:
    if target.name is not None:
        return target.name
    namespace, workload = environment.get("POD_NAMESPACE"), environment.get("POD_WORKLOAD")
    if namespace and workload and alone:
        return f"{namespace}/{workload}"
    if target.model != "auto":
        return target.model
    try:
        host = urlsplit(target.url).hostname or ""
    except ValueError:
        return None
    return None if _is_loopback(host) else host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("", "localhost") or host.endswith(".localhost")


def resolve_target(
    target: models.Target, defaults: models.Overridable, names: Names, path: str, problems: Problems
) -> TargetSpec:
    """A complete target except for key and name."""
    if target.engine != "auto" and target.engine not in names.engines:
        problems.add(f"{path}.engine", no_such("engine", target.engine, [*names.engines, "auto"]))
    headers = {key: names.variables.header(key, text, f"{path}.headers.{key}") for key, text in target.headers.items()}
    for key, value in headers.items():
        _check_header(key, value, target, f"{path}.headers.{key}", problems)
    timeouts = target.timeouts or defaults.timeouts or models.Timeouts()
    base = TargetSpec(
        key="",
        name=None,
        url=_url(target.url, f"{path}.url", problems),
        model=None if target.model == "auto" else target.model,
        api=target.api,
        stream=target.stream,
        engine=None if target.engine == "auto" else target.engine,
        bearer_token_file=target.auth.bearer_token_file if target.auth else None,
        headers=tuple(headers.items()),
        tls=resolve_tls(target.tls, f"{path}.tls", problems),
        proxy_url=_proxy(target.proxy_url, f"{path}.proxy_url", names.variables, problems),
        metrics=resolve_metrics(target.metrics, f"{path}.metrics", names.variables, problems),
        gpus=resolve_gpus(target.gpus),
        decode_bound=resolve_decode_bound(target.decode_bound, f"{path}.decode_bound", problems, names.read),
        probes=(),
        sweep=None,
        budget=None,
        timeouts=Timeouts(timeouts.connect, timeouts.first_token, timeouts.stall, timeouts.total),
        max_in_flight=_inherit(target.max_in_flight, defaults.max_in_flight, 16),
        warmup=_inherit(target.warmup, defaults.warmup, 3),
        starting_timeout_s=_inherit(target.starting_timeout, defaults.starting_timeout, 1200.0),
        connect_lead_s=_inherit(target.connect_lead, defaults.connect_lead, 1.0),
        max_send_lag_s=_inherit(target.max_send_lag, defaults.max_send_lag, 0.010),
        allow_link_local=_inherit(target.allow_link_local, defaults.allow_link_local, False),
    )
    rate = target.rate or defaults.rate or 0.2
    arrivals = target.arrivals or defaults.arrivals or "poisson"
    probes: list[ProbeSpec] = []
    series: dict[str, int] = {}
    for index, probe in enumerate(target.probes if target.probes is not None else [models.Probe()]):
        place = f"{path}.probes[{index}]"
        workload = names.workloads.get(probe.workload)
        if workload is None:
            if probe.workload not in names.broken:
                problems.add(f"{place}.workload", no_such("workload", probe.workload, names.workloads))
            continue
        for name in workload.series:
            if name in series:
                other = f"{path}.probes[{series[name]}]"
                problems.add(f"{place}.workload", f"{other} fills the same series {name!r}; keep one of the two")
            series[name] = index
        spec = _arrivals(workload, probe.arrivals or arrivals, probe.rate or rate, place, problems)
        probes.append(replace(spec, slos=_slos(probe, names, base, place, problems)))
    if not probes and target.probes == []:
        problems.add(f"{path}.probes", "is empty; remove it for the default probe, or remove the target")
    base = replace(base, probes=tuple(probes))
    base = replace(base, budget=_budget(target.budget, base, f"{path}.budget", problems))
    sweep = resolve_sweep(target.sweep, base, names.workloads, names.slos, f"{path}.sweep", problems)
    return replace(base, sweep=sweep)


def _inherit(own: V | None, default: V | None, built_in: V) -> V:
    return own if own is not None else default if default is not None else built_in


def _arrivals(
    workload: Workload | Mix, arrivals: models.Arrivals, rate: float, path: str, problems: Problems
) -> ProbeSpec:
    if isinstance(arrivals, models.Gamma):
        return ProbeSpec(workload, rate, ArrivalsSpec("gamma", arrivals.gamma.shape), ())
    if arrivals == "trace":
        trace = workload.trace if isinstance(workload, Workload) else None
        if trace is None or isinstance(workload, Mix):
            problems.add(f"{path}.arrivals", f"workload {workload.name!r} has no trace; give it one, or use poisson")
            return ProbeSpec(workload, rate, ArrivalsSpec("poisson"), ())
        rate = trace.rate_per_s * workload.speed
    return ProbeSpec(workload, rate, ArrivalsSpec(arrivals), ())


def _slos(probe: models.Probe, names: Names, target: TargetSpec, path: str, problems: Problems) -> tuple[Slo, ...]:
    chosen: list[Slo] = []
    workload = names.workloads.get(probe.workload)
    golden = workload is not None and any(part.golden for _, part, _ in workload.shares())
    measured = [
        name
        for name, slo in names.slos.items()
        if (target.stream or slo.signal in SIGNALS_WITHOUT_STREAM) and (golden or slo.signal != "quality")
    ]
    for index, name in enumerate(probe.slos if probe.slos is not None else measured):
        slo = names.slos.get(name)
        if slo is None:
            if name not in names.broken:
                problems.add(f"{path}.slos[{index}]", no_such("SLO", name, names.slos))
            continue
        t = target.timeouts
        cut = {"ttft": ("first_token", t.first_token_s), "itl": ("stall", t.stall_s), "tpot": ("stall", t.stall_s)}
        key, limit = cut.get(slo.signal, ("total", t.total_s))
        if slo.threshold_s is not None and slo.threshold_s >= limit:
            problems.add(
                f"slos.{name}.threshold",
                f"{slo.threshold_s:g}s is not below timeouts.{key} of {limit:g}s, which would cut it; lower it or raise that",
            )
        if slo.signal == "quality" and not golden:
            said = f"{name!r} judges quality, but workload {probe.workload!r} has no golden prompts; give it `golden`"
            problems.add(f"{path}.slos", f"{said}, or list other SLOs")
        if not target.stream and slo.signal not in SIGNALS_WITHOUT_STREAM:
            problems.add(
                f"{path}.slos", f"{name!r} judges {slo.signal}, which `stream: false` cannot see; list other SLOs"
            )
        chosen.append(slo)
    return tuple(chosen)


def _budget(block: models.Budget | None, target: TargetSpec, path: str, problems: Problems) -> BudgetSpec | None:
    if block is None:
        return None
    price = block.price_per_million
    if block.cost_per_day is not None and price is None:
        problems.add(f"{path}.price_per_million", "needed with cost_per_day: {prompt: 0.60, completion: 0.60}")
    budget = BudgetSpec(
        block.tokens_per_day,
        block.cost_per_day,
        price.prompt if price else None,
        price.completion if price else None,
    )
    use = estimate_per_day(replace(target, budget=budget))
    tokens = use.tokens
    if budget.tokens_per_day is not None and tokens > budget.tokens_per_day:
        said = f"{budget.tokens_per_day:,} a day, but the schedule needs about {tokens:,.0f}"
        problems.add(f"{path}.tokens_per_day", f"{said}; lower the rate or raise the budget")
    if budget.cost_per_day is not None and use.dollars is not None and use.dollars > budget.cost_per_day:
        said = f"${budget.cost_per_day:.2f} a day, but the schedule needs about ${use.dollars:.2f}"
        problems.add(f"{path}.cost_per_day", f"{said}; lower the rate or raise the budget")
    return budget


def _url(text: str, path: str, problems: Problems) -> str:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as problem:
        why = "" if "@" in text else f" ({problem})"  # the message may contain a password
        problems.add(path, f"{shown(text)!r} is not a URL{why}; write http://host:port")
        return text
    if parts.scheme not in ("http", "https") or not parts.hostname:
        problems.add(path, f"{shown(text)!r} is not an http or https URL; write http://host:port")
    elif parts.username or parts.password:
        problems.add(path, "has credentials in it, which end up in logs; use auth.bearer_token_file")
    elif parts.query or parts.fragment:
        problems.add(path, "has a query or fragment; give the base address only")
    base = text.rstrip("/")
    return base if parts.path.strip("/") else f"{base}/v1"


def _proxy(text: str | None, path: str, variables: Variables, problems: Problems) -> str | None:
    if text is None:
        return None
    url = variables.url(text, path)
    try:
        parts = urlsplit(url)
        fine = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # not shown: it may contain a password
        fine = False
    if not fine:
        problems.add(path, f"{shown(text)!r} is not an http proxy; write http://host:port")
    return url


def _check_header(key: str, value: str, target: models.Target, path: str, problems: Problems) -> None:
    if key.lower() in OWN_HEADERS or (key.lower() == "authorization" and target.auth):
        problems.add(path, "is set by the prober itself; remove it")
    elif not key or not all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in key) or not key.isascii():
        problems.add(path, f"{key!r} is not a header name")
    elif any(c in value for c in "\r\n\0") or not value.isascii():
        problems.add(path, "has a line break or a character outside ASCII in its value; remove it")

"""Where targets are found: blocks to specifications, and what is found to targets.

Who writes the labels of a discovered target says where it is and what it and its model are called, nothing more: files, tokens,
headers, proxies and certificates come from the configuration, and go only to hosts that it names.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit

from prober.config import models
from prober.config.problems import Problems, no_such
from prober.config.relabel import Labels, Rule, compiled, relabel
from prober.config.serving import resolve_tls
from prober.config.specs import (
    DiscoverySpec,
    DnsSpec,
    FileSpec,
    HttpSpec,
    KubernetesSpec,
    TargetSpec,
)
from prober.config.units import duration
from prober.config.variables import Variables

KINDS = ("file", "http", "dns", "kubernetes")
KEPT = ("__address__", "__scheme__", "__path__", "name", "model")
MOST = 50_000
PLACEHOLDER = "https://discovered.invalid"  # RFC 6761: never an address
LONGEST = 200  # characters of a name, and of a model's
SHORTEST_S = {"file": duration("1s"), "http": duration("5s"), "dns": duration("1s")}
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?)(:(\d{1,5}))?")
_PATH = re.compile(r"(/[A-Za-z0-9._~%!$&'()*+,;=:@-]*){0,50}")
_NUMERIC = re.compile(r"(0[xX][0-9A-Fa-f]*|\d+)")
_LABEL = re.compile(r"[A-Za-z_]\w*", re.ASCII)

META: dict[
    str, tuple[str, ...]
] = {  # what each kind says of a target, beside the labels that are kept; * stands for a name
    "dns": ("__meta_dns_name", "__meta_dns_srv_record_target", "__meta_dns_srv_record_port"),
    "pod": (
        "__meta_kubernetes_namespace",
        "__meta_kubernetes_pod_annotation_*",
        "__meta_kubernetes_pod_container_name",
        "__meta_kubernetes_pod_container_port_name",
        "__meta_kubernetes_pod_container_port_number",
        "__meta_kubernetes_pod_controller_kind",
        "__meta_kubernetes_pod_controller_name",
        "__meta_kubernetes_pod_ip",
        "__meta_kubernetes_pod_label_*",
        "__meta_kubernetes_pod_name",
        "__meta_kubernetes_pod_node_name",
        "__meta_kubernetes_pod_phase",
        "__meta_kubernetes_pod_ready",
    ),
    "endpointslice": (
        "__meta_kubernetes_namespace",
        "__meta_kubernetes_endpointslice_address_target_kind",
        "__meta_kubernetes_endpointslice_address_target_name",
        "__meta_kubernetes_endpointslice_address_type",
        "__meta_kubernetes_endpointslice_annotation_*",
        "__meta_kubernetes_endpointslice_endpoint_conditions_ready",
        "__meta_kubernetes_endpointslice_endpoint_conditions_serving",
        "__meta_kubernetes_endpointslice_endpoint_conditions_terminating",
        "__meta_kubernetes_endpointslice_endpoint_hostname",
        "__meta_kubernetes_endpointslice_endpoint_node_name",
        "__meta_kubernetes_endpointslice_endpoint_zone",
        "__meta_kubernetes_endpointslice_label_*",
        "__meta_kubernetes_endpointslice_name",
        "__meta_kubernetes_endpointslice_port",
        "__meta_kubernetes_endpointslice_port_name",
        "__meta_kubernetes_service_name",
    ),
}


class Unfit(ValueError):
    """What was found is no target: the message says why."""


def target_of(labels: Labels, spec: DiscoverySpec) -> TargetSpec | None:
    """The target that these labels describe; None where a rule drops it. Raises Unfit."""
    found = relabel(labels, spec.rules)
    if found is None:
        return None
    address, path = found.get("__address__", ""), found.get("__path__", "")
    scheme = found.get("__scheme__", "http")
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[4] or 80) < 65_536:
        raise Unfit(f"__address__ {_shown(address)} is not host:port")
    if scheme not in ("http", "https"):
        raise Unfit(f"__scheme__ {_shown(scheme)} is not http or https")
    if _PATH.fullmatch(path) is None or len(path) > LONGEST:
        raise Unfit(f"__path__ {_shown(path)} is not a path such as /v1")
    _check_host(match[1].strip("[]").lower(), spec.hosts)
    name, model = found.get("name") or address, found.get("model") or spec.template.model
    for key, text in (("name", name), ("model", model or "")):
        if len(text) > LONGEST or not text.isprintable():
            raise Unfit(f"{key} {_shown(text)} is longer than {LONGEST} characters, or has some that cannot be shown")
    base = f"{scheme}://{address}{path}".rstrip("/")
    url = base if path.strip("/") else f"{base}/v1"
    return replace(spec.template, key=name, name=name, url=url, model=model)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")


def _check_host(host: str, hosts: Sequence[str]) -> None:
    """Raises Unfit for a host that is not among `hosts`, or without any for what only this machine itself can reach."""
    try:
        at = ipaddress.ip_address(host)
    except ValueError:
        if _NUMERIC.fullmatch(host.rpartition(".")[2]):
            # What a resolver takes for an address, such as 127.1 and 0x7f000001, would get round every rule on addresses.
            raise Unfit(f"__address__ {_shown(host)} is neither a name nor an address") from None
        near = host == "localhost" or host.endswith(".localhost")
        allowed = any(_fits_name(host, each) for each in hosts)
    else:
        at = getattr(at, "ipv4_mapped", None) or at
        near = at.is_loopback or at.is_link_local or at.is_unspecified or at.is_multicast
        allowed = any(at in network for network in map(_network, hosts) if network is not None)
    if hosts and not allowed:
        raise Unfit(f"{host} is not among `hosts`")
    if not hosts and near:
        raise Unfit(f"{host} is this machine itself, or its own link; if it is meant, add it to `hosts`")


def _fits_name(host: str, pattern: str) -> bool:
    return host.endswith(pattern[1:].lower()) if pattern.startswith("*.") else host == pattern.lower()


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def resolve_discovery(
    blocks: Mapping[int, models.Discovery],
    template: Callable[[models.Target, str], TargetSpec],
    variables: Variables,
    problems: Problems,
) -> tuple[DiscoverySpec, ...]:
    """All of them with everything filled in; template: what a target block, at its place, comes to."""
    found: list[DiscoverySpec] = []
    names: dict[str, int] = {}
    for index, block in blocks.items():
        path = f"discovery[{index}]"
        given = [kind for kind in KINDS if getattr(block, kind) is not None]
        if len(given) != 1:
            said = f"has {' and '.join(given)}; keep one of them" if given else f"needed: one of {', '.join(KINDS)}"
            problems.add(path, said)
            continue
        kind = given[0]
        alone = sum(getattr(other, kind) is not None for other in blocks.values()) == 1
        name = block.name or (kind if alone else f"{kind}-{index}")
        if name in names:
            other = f"discovery[{names[name]}]"
            problems.add(f"{path}.name", f"{other} is called {name!r} too; give each a name of its own")
        names[name] = index
        where = getattr(block, kind)
        if isinstance(where, models.HttpDiscovery):
            where = where.model_copy(update={"url": variables.url(where.url, f"{path}.http.url")})
        source = _SOURCES[kind](where, f"{path}.{kind}", problems)
        rules = tuple(
            _rule(rule, f"{path}.relabel[{place}]", _meta(source), problems) for place, rule in enumerate(block.relabel)
        )
        if block.limit > MOST:
            problems.add(
                f"{path}.limit", f"{block.limit:,} targets are more than one prober can have; use {MOST:,} or less"
            )
        target = models.Target.model_construct(
            url=PLACEHOLDER, **{key: getattr(block.target, key) for key in models.Template.model_fields}
        )
        common = replace(template(target, f"{path}.target"), key=f"{path}.target")
        if common.gpus.chosen is None:
            common = replace(common, gpus=replace(common.gpus, chosen=()))
        _check_target(common, block.hosts, path, problems)
        found.append(DiscoverySpec(name, source, rules, tuple(block.hosts), block.limit, common))
    return tuple(found)


def _check_target(common: TargetSpec, hosts: Sequence[str], path: str, problems: Problems) -> None:
    """What all of them would have, and must not be given to anybody."""
    for index, each in enumerate(hosts):
        if _network(each) is None and not re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", each):
            problems.add(f"{path}.hosts[{index}]", f"{each!r} is no name, *.name or network such as 10.0.0.0/8")
    if not hosts and (secret := _credentials(common)):
        said = f"needed, as `target.{secret}` is sent to whatever is found: say where that may be, such as [10.0.0.0/8]"
        problems.add(f"{path}.hosts", said)
    if common.metrics is not None and common.metrics.url is not None:
        problems.add(f"{path}.target.metrics.url", "is one page for all of them; use auto or none")


def _credentials(common: TargetSpec) -> str:
    """The key of something secret that every target is sent, if there is one."""
    if common.bearer_token_file is not None:
        return "auth"
    if common.headers:
        return "headers"
    return "tls" if common.tls is not None and common.tls.cert_file is not None else ""


def _meta(source: object) -> tuple[str, ...] | None:
    """Labels that a source can have beside those that are kept; None where others choose them."""
    match source:
        case DnsSpec():
            return META["dns"]
        case KubernetesSpec(role=role):
            return META[role]
    return None


def _rule(block: models.Relabel, path: str, meta: Sequence[str] | None, problems: Problems) -> Rule:
    try:
        compiled(block.regex)
    except ValueError as problem:
        problems.add(f"{path}.regex", f"{block.regex!r} is no expression of RE2: {problem}")
    if block.action == "replace":
        if block.target_label is None:
            problems.add(f"{path}.target_label", f"needed: one of {', '.join(KEPT)}, or __tmp_… for rules that follow")
        elif block.target_label not in KEPT and not block.target_label.startswith("__tmp"):
            said = (
                f"{no_such('label that is kept', block.target_label, KEPT)}; __tmp_… can be used by rules that follow"
            )
            problems.add(f"{path}.target_label", said)
    else:
        for key in sorted({"target_label", "replacement"} & block.model_fields_set):
            problems.add(f"{path}.{key}", f"is for action replace; `{block.action}` looks only")
        if not block.source_labels:
            problems.add(f"{path}.source_labels", f"needed with action {block.action}")
    for index, name in enumerate(block.source_labels):
        if not _LABEL.fullmatch(name):
            problems.add(f"{path}.source_labels[{index}]", f"{name!r} is no name of a label")
        elif meta is not None and not any(_is_meta(name, each) for each in (*KEPT, *meta, "__tmp*")):
            problems.add(f"{path}.source_labels[{index}]", no_such("label", name, (*KEPT, *meta)))
    return Rule(
        block.action, tuple(block.source_labels), block.separator, block.regex, block.target_label, block.replacement
    )


def _is_meta(name: str, known: str) -> bool:
    return name.startswith(known[:-1]) if known.endswith("*") else name == known


def _file(block: models.FileDiscovery, path: str, problems: Problems) -> FileSpec:
    for index, name in enumerate(block.files):
        if not name.endswith((".json", ".yml", ".yaml")):
            problems.add(f"{path}.files[{index}]", f"{name!r} ends in none of .json, .yml and .yaml")
    return FileSpec(tuple(block.files), _interval(block.interval, "file", path, problems))


def _http(block: models.HttpDiscovery, path: str, problems: Problems) -> HttpSpec:
    parts = _address(block.url, f"{path}.url", problems)
    if block.auth is not None and parts == "http":
        problems.add(f"{path}.url", "would show the token to everybody on the way; use https")
    tls = resolve_tls(block.tls, f"{path}.tls", problems)
    if tls is not None and tls.server_name:
        problems.add(f"{path}.tls.server_name", "is for targets only; give the url the name in the certificate")
    token = block.auth.bearer_token_file if block.auth else None
    return HttpSpec(block.url, _interval(block.interval, "http", path, problems), token, tls)


def _dns(block: models.DnsDiscovery, path: str, problems: Problems) -> DnsSpec:
    if (block.type == "SRV") == (block.port is not None):
        said = "comes with each SRV record; remove it" if block.port else f"needed with type {block.type}"
        problems.add(f"{path}.port", said)
    for index, name in enumerate(block.names):
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?", name) or len(name) > 254:
            problems.add(f"{path}.names[{index}]", f"{name!r} is no name of DNS")
    server = None
    if block.server is not None:
        try:
            parts = urlsplit(f"//{block.server}")
            server = (str(ipaddress.ip_address(parts.hostname or "")), parts.port or 53)
        except ValueError:
            problems.add(f"{path}.server", f"{block.server!r} is not IP:port, such as 10.0.0.2:53")
    return DnsSpec(tuple(block.names), block.type, block.port, _interval(block.interval, "dns", path, problems), server)


def _kubernetes(block: models.KubernetesDiscovery, path: str, problems: Problems) -> KubernetesSpec:
    if block.api_server is None:
        for key in ("auth", "ca_file"):
            if getattr(block, key) is not None:
                problems.add(f"{path}.{key}", "is the service account's own in a cluster; add api_server, or remove it")
    elif _address(block.api_server, f"{path}.api_server", problems) == "http" and block.auth is not None:
        problems.add(f"{path}.api_server", "would show the token to everybody on the way; use https")
    if block.api_server is not None and not block.namespaces:
        problems.add(f"{path}.namespaces", "needed with api_server: names, or ['*'] for all")
    if "*" in block.namespaces and len(block.namespaces) > 1:
        problems.add(f"{path}.namespaces", "'*' is all of them; remove the others")
    for index, name in enumerate(block.namespaces):
        if name != "*" and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name):
            problems.add(f"{path}.namespaces[{index}]", f"{name!r} is no name of a namespace")
    if block.role == "endpointslice" and block.port_annotation is not None:
        problems.add(f"{path}.port_annotation", "is for pods; endpoint slices say their ports")
    return KubernetesSpec(
        block.role,
        tuple(block.namespaces),
        block.label_selector,
        block.field_selector,
        tuple(sorted(block.annotations.items())),
        block.port,
        block.port_annotation,
        block.unready,
        block.api_server.rstrip("/") if block.api_server else None,
        block.auth.bearer_token_file if block.auth else None,
        block.ca_file,
    )


_SOURCES: dict[str, Callable[[Any, str, Problems], FileSpec | HttpSpec | DnsSpec | KubernetesSpec]] = {
    "file": _file,
    "http": _http,
    "dns": _dns,
    "kubernetes": _kubernetes,
}


def _interval(seconds: float, kind: str, path: str, problems: Problems) -> float:
    if seconds < SHORTEST_S[kind]:
        problems.add(f"{path}.interval", f"{seconds:g}s is too often; use {SHORTEST_S[kind]:g}s or more")
    return seconds


def _address(url: str, path: str, problems: Problems) -> Literal["http", "https"] | None:
    """The scheme; for this machine itself `https`, as nobody is on the way. What is secret in a URL is not repeated."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # which repeats what may be a password
        problems.add(path, "is no address; write https://host:port")
        return None
    if parts.username or parts.password:
        problems.add(path, "has a user or password in it; give a token as a file")
    elif parts.scheme not in ("http", "https") or not parts.hostname:
        problems.add(path, "is not an http or https URL; write https://host:port")
    else:
        near = parts.hostname == "localhost" or parts.hostname.startswith("127.") or parts.hostname == "::1"
        return "https" if near or parts.scheme == "https" else "http"
    return None

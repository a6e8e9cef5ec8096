"""Discovery of targets: its settings, and conversion of discovered labels to targets.

The labels of a discovered target only set its address, name and model. Files, tokens, headers, proxies and certificates come from the
configuration and are sent only to hosts that it names.
"""

import ipaddress
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from prober.config.fields import (
    Block,
    Duration,
    Items,
    Mistakes,
    PositiveCount,
    at_least,
    matching,
    mistake,
    present,
    require,
)
from prober.config.hosts import is_loopback, refused_kind
from prober.config.labels import MAX_VALUE_CHARS, TARGET_LABELS, LabelNames, Labels, Rule, relabel
from prober.config.problems import no_such
from prober.config.server import Auth, TlsSpec, environment, expand_url, server_auth, server_problem, server_tls
from prober.config.target import TargetSpec, Template
from prober.config.units import shortened
from prober.measure.printable import name_problem, shown_name

KINDS = ("file", "http", "dns", "kubernetes")
MAX_TARGETS = 50_000  # per prober and per list; each takes some 4 kB when read
_TOO_MANY = f"{{:,}} targets are more than one prober can have; use {MAX_TARGETS:,} or less"
PLACEHOLDER = "https://discovered.invalid"  # RFC 6761: never an address
MAX_NAME_CHARS = 200  # of a target's or model's name
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?)(:(\d{1,5}))?")
_PATH = re.compile(r"(/[A-Za-z0-9._~%!$&'()*+,;=:@-]*){0,50}")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_DNS_NAME = matching(r"(?!.{255})[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?", "is no name of DNS")
_NAMESPACE = matching(r"\*|[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "is no name of a namespace")
_ALLOWED_HOST = require(
    lambda host: _network(host) is not None or _HOST.fullmatch(host),
    "{!r} is no name, *.name or network such as 10.0.0.0/8",
)
_NUMERIC = re.compile(r"(0[xX][0-9A-Fa-f]*|\d+)")

_POD = (
    "annotation_* container_name container_port_name container_port_number controller_kind controller_name ip label_* name "
    "node_name phase ready"
)
_ENDPOINT_SLICE = (
    "address_target_kind address_target_name address_type annotation_* endpoint_conditions_ready endpoint_conditions_serving "
    "endpoint_conditions_terminating endpoint_hostname endpoint_node_name endpoint_zone label_* name port port_name"
)
# Labels that a source sets in addition to TARGET_LABELS; * stands for a name.
META = {
    "dns": ("__meta_dns_name", "__meta_dns_srv_record_target", "__meta_dns_srv_record_port"),
    "pod": ("__meta_kubernetes_namespace", *(f"__meta_kubernetes_pod_{name}" for name in _POD.split())),
    "endpointslice": (
        "__meta_kubernetes_namespace",
        "__meta_kubernetes_service_name",
        *(f"__meta_kubernetes_endpointslice_{name}" for name in _ENDPOINT_SLICE.split()),
    ),
}


class FileSpec(Block):
    """Discovery from files."""

    files: Annotated[
        Items[Annotated[str, matching(r"(?s).*\.(json|yml|yaml)", "ends in none of .json, .yml and .yaml")]],
        Field(min_length=1),
    ] = Field(
        description="lists of targets in Prometheus's file_sd format, .json, .yml or .yaml; names may contain * and ?"
    )
    interval: Annotated[Duration, at_least(1.0)] = Field(5.0, description="time between checks")


class HttpSpec(Block):
    """Discovery from an HTTP server."""

    url: Annotated[str, AfterValidator(lambda url, info: expand_url(url, environment(info)))] = Field(
        description="URL of a list of targets in Prometheus's http_sd format; may contain `${NAME}` of the environment",
        repr=False,
    )
    interval: Annotated[Duration, at_least(5.0)] = Field(60.0, description="time between requests")
    auth: Annotated[Auth, AfterValidator(server_auth)] | None = Field(
        None, description="bearer token, for this server only"
    )
    tls: Annotated[TlsSpec, AfterValidator(server_tls)] | None = Field(None, description="settings for https")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if problem := _server_problem(self.url, self.auth):
            raise mistake(problem, "url")
        return self


def _resolver(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        parts = urlsplit(f"//{value}")
        return str(ipaddress.ip_address(parts.hostname or "")), parts.port or 53
    except ValueError:
        raise mistake(f"{value!r} is not IP:port, such as 10.0.0.2:53") from None


class DnsSpec(Block):
    """Discovery from DNS. server: (address, port); None: the system's resolver"""

    names: Annotated[Items[Annotated[str, _DNS_NAME]], Field(min_length=1)] = Field(description="names to resolve")
    type: Literal["SRV", "A", "AAAA"] = Field("SRV", description="type of the records; only SRV has ports")
    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        None, validate_default=True, description="needed for A and AAAA"
    )
    interval: Annotated[Duration, at_least(1.0)] = Field(30.0, description="time between queries")
    server: Annotated[tuple[str, int], BeforeValidator(_resolver), WithJsonSchema({"type": "string"})] | None = Field(
        None, description="IP:port of the name server; absent: from /etc/resolv.conf"
    )

    @field_validator("port")
    @classmethod
    def _check_port(cls, port: int | None, info: ValidationInfo) -> int | None:
        kind = info.data.get("type")
        if kind is not None and (kind == "SRV") is (port is not None):
            raise mistake("comes with each SRV record; remove it" if port else f"needed with type {kind}")
        return port


def _port(value: object) -> object:
    if (isinstance(value, int) and 1 <= value <= 65_535 and value is not True) or (isinstance(value, str) and value):
        return value
    raise mistake(f"{shortened(value)} is no port; write its number, such as 8000, or its name, such as http")


Port = Annotated[
    int | str,
    BeforeValidator(_port),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, {"type": "string", "minLength": 1}]}
    ),
]


class KubernetesSpec(Block):
    """Discovery from Kubernetes."""

    role: Literal["pod", "endpointslice"] = Field("pod", description="kind of objects")
    namespaces: Items[Annotated[str, _NAMESPACE]] = Field(
        (), description="namespaces; absent: that of the prober; ['*']: all"
    )
    label_selector: str | None = Field(None, description="as kubectl's -l, such as app=vllm")
    field_selector: str | None = Field(None, description="as kubectl's --field-selector")
    annotations: dict[str, str] = Field(default_factory=dict, description="required annotations and their values")
    port: Port | None = Field(None, description="number or name of the port; absent: the only declared one")
    port_annotation: str | None = Field(None, description="annotation of a pod that names its port; overrides `port`")
    unready: bool = Field(False, description="include objects that are not ready")
    api_server: Annotated[str, AfterValidator(lambda url: url.rstrip("/"))] | None = Field(
        None, description="URL; absent: that of the cluster in which the prober runs"
    )
    auth: Annotated[Auth, AfterValidator(server_auth)] | None = Field(
        None, description="with api_server; otherwise the pod's service account is used"
    )
    ca_file: str | None = Field(None, description="with api_server: the certificate authority to trust")

    @model_validator(mode="after")
    def _check(self) -> Self:
        with Mistakes() as mistakes:
            if self.api_server is None:
                for key in ("auth", "ca_file"):
                    if getattr(self, key) is not None:
                        mistakes.add(key, "is the service account's own in a cluster; add api_server, or remove it")
            else:
                if problem := _server_problem(self.api_server, self.auth):
                    mistakes.add("api_server", problem)
                if not self.namespaces:
                    mistakes.add("namespaces", "needed with api_server: names, or ['*'] for all")
            if "*" in self.namespaces and len(self.namespaces) > 1:
                mistakes.add("namespaces", "'*' is all of them; remove the others")
            if self.role == "endpointslice" and self.port_annotation is not None:
                mistakes.add("port_annotation", "is for pods; endpoint slices say their ports")
        return self


class DiscoverySpec(Block):
    """A discovery with the settings of its targets. name: empty until the discovery is in a list"""

    name: Annotated[str, Field(pattern=r"^[\w.-]{1,100}$")] = Field(
        "", description="label `discovery`; absent: its kind, with its index if there are several"
    )
    file: FileSpec | None = Field(None, description="targets from files")
    http: HttpSpec | None = Field(None, description="targets from an HTTP server")
    dns: DnsSpec | None = Field(None, description="targets from DNS")
    kubernetes: KubernetesSpec | None = Field(None, description="targets from a cluster")
    relabel: Items[Rule] = Field((), description="rules that select and rename targets, applied in order")
    hosts: Items[Annotated[str, _ALLOWED_HOST]] = Field(
        (),
        description="allowed hosts: names, *.example.org, or networks such as 10.0.0.0/8; needed if `target` has `auth`, `headers`, or "
        "a client certificate; absent: all hosts but this machine",
    )
    limit: Annotated[PositiveCount, require(lambda count: count <= MAX_TARGETS, _TOO_MANY)] = Field(
        100, description="most targets of this source"
    )
    target: Template = Field(default_factory=Template, description="settings of the targets")
    _template: TargetSpec | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _with_target(cls, value: Any) -> Any:
        return {"target": {}, **present(value)} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        kinds = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise mistake(
                f"has {' and '.join(kinds)}; keep one of them" if kinds else f"needed: one of {', '.join(KINDS)}"
            )
        with Mistakes() as mistakes:
            has_certificate = self.target.tls is not None and self.target.tls.cert_file is not None
            sent = {"auth": self.target.auth is not None, "headers": self.target.headers, "tls": has_certificate}
            if not self.hosts and (secret := next((key for key in sent if sent[key]), "")):
                mistakes.add(
                    "hosts",
                    f"needed, as `target.{secret}` is sent to whatever is found: say where that may be, such as [10.0.0.0/8]",
                )
            labels = (*TARGET_LABELS, *self.target.labels)
            for index, rule in enumerate(self.relabel):
                key, name = rule.sets
                if name and "$" not in name and name not in labels and not name.startswith("__tmp"):
                    mistakes.add(
                        f"relabel[{index}].{key}",
                        f"{no_such('label that is kept', name, labels)}; name it in `target.labels`, or use __tmp_… for later rules",
                    )
            if self.target.metrics is not None and self.target.metrics.url is not None:
                mistakes.add("target.metrics.url", "is one page for all of them; use auto or none")
        return self

    @field_validator("relabel")
    @classmethod
    def _check_labels(cls, relabel: tuple[Rule, ...], info: ValidationInfo) -> tuple[Rule, ...]:
        """Refuse source labels that the source never sets. Lists from files or HTTP may have any labels."""
        dns, kubernetes = info.data.get("dns"), info.data.get("kubernetes")
        if dns is None and kubernetes is None:
            return relabel
        known = (*TARGET_LABELS, *META[kubernetes.role if kubernetes is not None else "dns"])
        with Mistakes() as mistakes:
            for place, rule in enumerate(relabel):
                for key, name in rule.reads.items():
                    if not any(fnmatchcase(name, pattern) for pattern in (*known, "__tmp*")):
                        mistakes.add(f"[{place}].{key}", no_such("label", name, known))
                if "$" in rule.sets[1]:
                    break  # it may set any label for later rules
        return relabel

    @property
    def kind(self) -> str:
        """Key of the source: file, http, dns or kubernetes."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def source(self) -> FileSpec | HttpSpec | DnsSpec | KubernetesSpec:
        """Settings of the source."""
        source: FileSpec | HttpSpec | DnsSpec | KubernetesSpec = getattr(self, self.kind)
        return source

    @property
    def reads(self) -> LabelNames:
        """Labels of the source that its targets use or its relabelling rules read."""
        names = {*TARGET_LABELS, *self.target.labels, *(name for rule in self.relabel for name in rule.reads.values())}
        return LabelNames(frozenset(names), tuple(rule.regex for rule in self.relabel if rule.action == "labelmap"))

    @property
    def template(self) -> TargetSpec:
        """A target with these settings. Its URL is a placeholder; its name is its place in the configuration."""
        assert self._template is not None, "set by `placed`"
        return self._template

    def without_sweep(self) -> Self:
        """The discovery without sweeps of its targets."""
        spec = self.model_copy()
        spec._template = self.template.model_copy(update={"sweep": None})
        return spec

    def placed(self, index: int, name: str) -> Self:
        """The discovery with its name and its index in the list."""
        gpus = self.target.gpus  # of this machine: discovered targets have none by default
        own = {"gpus": gpus.model_copy(update={"indices": ()})} if gpus.indices is None else {}
        spec = self.model_copy(update={"name": name})
        spec._template = TargetSpec.model_construct(
            **{**dict(self.target), **own, "url": PLACEHOLDER, "name": f"discovery[{index}].target"}
        )
        return spec


class Unfit(ValueError):
    """Labels describe no valid target; the message says why."""


def target_of(labels: Labels, spec: DiscoverySpec) -> TargetSpec | None:
    """Convert labels to a target; None if a relabelling rule drops it. Raises Unfit."""
    relabelled = relabel(labels, spec.relabel)
    if relabelled is None:
        return None
    address, path = relabelled.get("__address__", ""), relabelled.get("__path__", "")
    scheme = relabelled.get("__scheme__", "http")
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[4] or 80) < 65_536:
        raise Unfit(f"__address__ {_quoted(address)} is not host:port")
    if scheme not in ("http", "https"):
        raise Unfit(f"__scheme__ {_quoted(scheme)} is not http or https")
    if _PATH.fullmatch(path) is None or len(path) > MAX_NAME_CHARS:
        raise Unfit(f"__path__ {_quoted(path)} is not a path such as /v1")
    _check_host(match[1].strip("[]").lower(), spec.hosts)
    name, model = relabelled.get("name") or address, relabelled.get("model") or spec.template.model
    for key, text in (("name", name), ("model", model or "")):
        if problem := name_problem(text, MAX_NAME_CHARS):
            raise Unfit(f"{key} {_quoted(text)} {problem}")
    labels = {own: relabelled.get(own, value) for own, value in spec.template.labels.items()}
    for own, value in labels.items():
        if problem := name_problem(value, MAX_VALUE_CHARS):
            raise Unfit(f"label {own} {_quoted(value)} {problem}")
    base = f"{scheme}://{address}{path}".rstrip("/")
    url = base if path.strip("/") else f"{base}/v1"
    return spec.template.model_copy(update={"url": url, "name": name, "model": model, "labels": labels})


def _quoted(text: str) -> str:
    return repr(shown_name(text, 60))


def _check_host(host: str, hosts: Sequence[str]) -> None:
    """Raise Unfit for a host that is not in `hosts`; if `hosts` is empty, for loopback and refused addresses."""
    try:
        at = ipaddress.ip_address(host)
    except ValueError:
        if _NUMERIC.fullmatch(host.rpartition(".")[2]):
            # A resolver reads 127.1 and 0x7f000001 as addresses, which would bypass every rule on addresses.
            raise Unfit(f"__address__ {_quoted(host)} is neither a name nor an address") from None
        is_near = is_loopback(host)
        allowed = any(
            host.endswith(name[1:]) if name.startswith("*.") else host == name for name in map(str.lower, hosts)
        )
    else:
        at = getattr(at, "ipv4_mapped", None) or at
        is_near = at.is_loopback or at.is_unspecified or at.is_multicast
        allowed = any(at in network for network in map(_network, hosts) if network is not None)
    if hosts and not allowed:
        raise Unfit(f"{host} is not among `hosts`")
    if not hosts and (kind := "this machine itself" if is_near else refused_kind(host)):
        raise Unfit(f"{host} is {kind}; if it is meant, add it to `hosts`")


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def _server_problem(url: str, auth: Auth | None) -> str:
    """Error in the URL of a server to which a token may be sent, without secrets; empty if it is valid."""
    if problem := server_problem(url, "https://host:port"):
        return problem
    is_open = auth is not None and url.startswith("http:") and not is_loopback(urlsplit(url).hostname or "")
    return "would show the token to everybody on the way; use https" if is_open else ""

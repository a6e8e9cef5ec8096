"""The fields of other projects' custom resources that are used here, and no others.

Written by hand, so that a slip of the pen in a manifest is refused: a CRD would let most unknown fields pass. docs/kubernetes.md says
against which CRDs the manifests themselves were checked. Prometheus operator (monitoring.coreos.com), Argo Rollouts
(argoproj.io/v1alpha1), Flagger (flagger.app/v1beta1), KEDA (keda.sh/v1alpha1).
"""

from typing import Any

TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
SPAN: dict[str, Any] = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$"}
TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
SELECTOR: dict[str, Any] = {
    "type": "object",
    "required": ["matchLabels"],
    "additionalProperties": False,
    "properties": {"matchLabels": TEXTS},
}


def record(*required: str, **properties: Any) -> dict[str, Any]:
    """An object of these fields and no others."""
    return {"type": "object", "required": list(required), "additionalProperties": False, "properties": properties}


def listed(item: dict[str, Any]) -> dict[str, Any]:
    """At least one of them."""
    return {"type": "array", "minItems": 1, "items": item}


RELABELING = record(
    targetLabel=TEXT,
    replacement=TEXT,
    sourceLabels=listed(TEXT),
    regex=TEXT,
    action={"enum": ["replace", "drop"]},
)
PROTOCOLS = [
    "PrometheusProto",
    "OpenMetricsText0.0.1",
    "OpenMetricsText1.0.0",
    "PrometheusText0.0.4",
    "PrometheusText1.0.0",
]
HISTOGRAMS = {
    name: {"type": "boolean"}
    for name in ("scrapeNativeHistograms", "scrapeClassicHistograms", "convertClassicHistogramsToNHCB")
} | {"scrapeProtocols": listed({"enum": PROTOCOLS})}
KEY = record("name", "key", name=TEXT, key=TEXT)  # of a Secret
BASIC_AUTH = record("username", "password", username=KEY, password=KEY)
TLS = record("ca", ca=record("secret", secret=KEY), serverName=TEXT)
ENDPOINT = record(
    "port",
    port=TEXT,
    path=TEXT,
    interval=SPAN,
    scrapeTimeout=SPAN,
    relabelings=listed(RELABELING),
    metricRelabelings=listed(RELABELING),
    scheme={"enum": ["http", "https"]},
    tlsConfig=TLS,
    basicAuth=BASIC_AUTH,
)
RULE = record(
    "expr", record=TEXT, alert=TEXT, expr=TEXT, labels=TEXTS, annotations=TEXTS, keep_firing_for=SPAN, **{"for": SPAN}
)
RULE["oneOf"] = [{"required": ["record"]}, {"required": ["alert"]}]

SCALING = record(
    "policies",
    stabilizationWindowSeconds={"type": "integer"},
    policies=listed(
        record(
            "type",
            "value",
            "periodSeconds",
            type={"enum": ["Pods"]},
            value={"type": "integer"},
            periodSeconds={"type": "integer"},
        )
    ),
)

SPECS: dict[tuple[str, str], dict[str, Any]] = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): record(
        "selector",
        "endpoints",
        jobLabel=TEXT,
        selector=SELECTOR,
        namespaceSelector=record("matchNames", matchNames=listed(TEXT)),
        endpoints=listed(ENDPOINT),
        **HISTOGRAMS,
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): record(
        "selector",
        "podMetricsEndpoints",
        selector=SELECTOR,
        podTargetLabels=listed(TEXT),
        podMetricsEndpoints=listed(ENDPOINT),
        namespaceSelector=record(any={"type": "boolean"}, matchNames=listed(TEXT)),
        **HISTOGRAMS,
    ),
    ("monitoring.coreos.com/v1alpha1", "ScrapeConfig"): record(
        "staticConfigs",
        jobName=TEXT,
        scrapeInterval=SPAN,
        staticConfigs=listed(record("targets", targets=listed(TEXT))),
    ),
    ("monitoring.coreos.com/v1", "Probe"): record(
        "prober",
        "targets",
        jobName=TEXT,
        interval=SPAN,
        scrapeTimeout=SPAN,
        tlsConfig=TLS,
        basicAuth=BASIC_AUTH,
        prober=record(
            "url", url={"type": "string", "pattern": r"^[^/]+:\d+$"}, scheme={"enum": ["http", "https"]}, path=TEXT
        ),
        targets=record("staticConfig", staticConfig=record("static", static=listed(TEXT))),
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): record(
        "groups", groups=listed(record("name", "rules", name=TEXT, interval=SPAN, rules=listed(RULE)))
    ),
    ("argoproj.io/v1alpha1", "AnalysisTemplate"): record(
        "metrics",
        args=listed(record("name", name=TEXT, value=TEXT)),
        metrics=listed(
            record(
                "name",
                "provider",
                name=TEXT,
                initialDelay=SPAN,
                interval=SPAN,
                count={"type": "integer"},
                failureLimit={"type": "integer"},
                successCondition=TEXT,
                failureCondition=TEXT,
                provider={
                    **record(
                        job=record("spec", spec={"type": "object"}),  # the Job itself is checked as one of Kubernetes
                        prometheus=record("query", address=TEXT, query=TEXT),
                    ),
                    "minProperties": 1,
                    "maxProperties": 1,
                },
            )
        ),
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): record(
        "scaleTargetRef",
        "triggers",
        scaleTargetRef=record("name", name=TEXT),
        minReplicaCount={"type": "integer"},
        maxReplicaCount={"type": "integer"},
        pollingInterval={"type": "integer"},
        advanced=record(
            horizontalPodAutoscalerConfig=record(
                behavior=record("scaleUp", "scaleDown", scaleUp=SCALING, scaleDown=SCALING)
            )
        ),
        triggers=listed(
            record(
                "type",
                "metadata",
                type={"enum": ["prometheus"]},
                metricType={"enum": ["AverageValue", "Value"]},
                metadata=record(
                    "serverAddress",
                    "query",
                    "threshold",
                    "ignoreNullValues",
                    **dict.fromkeys(("serverAddress", "query", "threshold", "ignoreNullValues"), TEXT),
                ),
            )
        ),
    ),
    ("flagger.app/v1beta1", "MetricTemplate"): record(
        "provider", "query", provider=record("type", "address", type={"enum": ["prometheus"]}, address=TEXT), query=TEXT
    ),
}

METADATA = record("name", name=TEXT, namespace=TEXT, labels=TEXTS)


def custom(api: str, kind: str) -> dict[str, Any] | None:
    """The schema of a custom resource; None if it is one of Kubernetes's own."""
    spec = SPECS.get((api, kind))
    if spec is None:
        return None
    return record("metadata", "spec", apiVersion={"const": api}, kind={"const": kind}, metadata=METADATA, spec=spec)

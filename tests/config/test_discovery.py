"""Where targets are found, as it is configured; what is found, as targets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prober.config.discovery import DiscoverySpec, Unfit, target_of
from prober.config.labels import Rule, relabel
from prober.config.server import Auth
from tests.config.reading import loaded, mistakes

FILE = "file: {files: [a.json]}"


def discovery(text: str) -> DiscoverySpec:
    return loaded(f"discovery: [{{{text}}}]").discovery[0]


OF_A_SOURCE = [  # keys of a discovery, and what is said of them
    ("file: {files: [a.txt]}", "file.files[0]: 'a.txt' ends in none of .json, .yml and .yaml"),
    ("file: {files: [a.json], interval: 100ms}", "file.interval: 0.1s is too often; use 1s or more"),
    ("dns: {names: [a], type: A}", "dns.port: needed with type A"),
    ("dns: {names: [a], port: 1}", "dns.port: comes with each SRV record; remove it"),
    ("dns: {names: ['a b']}", "dns.names[0]: 'a b' is no name of DNS"),
    ("http: {url: 'http://h/x', auth: {bearer_token_file: t}}", "http.url: would show the token to everybody on the way; use https"),
    ("http: {url: 'http://127.evil.example/x', auth: {bearer_token_file: t}}",
     "http.url: would show the token to everybody on the way; use https"),
    ("http: {url: 'https://u:secret@h/x'}", "http.url: has a user or password in it, which end up in logs; give the token as a file"),
    ("kubernetes: {api_server: 'https://h'}", "kubernetes.namespaces: needed with api_server: names, or ['*'] for all"),
    ("kubernetes: {port: 70000}", "kubernetes.port: 70000 is no port; write its number, such as 8000, or its name, such as http"),
    ("kubernetes: {ca_file: x}", "kubernetes.ca_file: is the service account's own in a cluster; add api_server, or remove it"),
]  # fmt: skip
BESIDE_A_FILE = [  # keys beside `file`
    ("target: {auth: {bearer_token_file: t}}",
     "hosts: needed, as `target.auth` is sent to whatever is found: say where that may be, such as [10.0.0.0/8]"),
    ("target: {headers: {x-key: k}}",
     "hosts: needed, as `target.headers` is sent to whatever is found: say where that may be, such as [10.0.0.0/8]"),
    ("hosts: ['a/b']", "hosts[0]: 'a/b' is no name, *.name or network such as 10.0.0.0/8"),
    ("target: {metrics: {url: 'http://m/metrics'}}", "target.metrics.url: is one page for all of them; use auto or none"),
]  # fmt: skip
OF_A_RULE = [
    ("source_labels: [a], regex: '(?=a)', action: keep", "regex: '(?=a)' is no expression of RE2: invalid perl operator: (?="),
    ("source_labels: [a], target_label: env",
     'target_label: no label that is kept "env"; known: __address__, __path__, __scheme__, model, name; name it in '
     "`target.labels`, or use __tmp_… for later rules"),
    ("action: keep, replacement: x, source_labels: [a]", "replacement: has no effect with action keep; remove it"),
    ("action: labelDrop, regex: x, separator: ''", "separator: has no effect with action labeldrop; remove it"),
    ("action: hashmod, source_labels: [a], target_label: __tmp_x", "modulus: needed with action hashmod, such as 4"),
    ("action: hashmod, modulus: 0, target_label: __tmp_x", "modulus: must be at least 1, is '0'"),
    ("action: uppercase, source_labels: [a]",
     "target_label: needed: one of __address__, __scheme__, __path__, name, model, or __tmp_… for rules that follow"),
    ("action: labelmap, regex: x, replacement: env",
     'replacement: no label that is kept "env"; known: __address__, __path__, __scheme__, model, name; name it in '
     "`target.labels`, or use __tmp_… for later rules"),
    ("action: swap, regex: x",
     'action: no action "swap"; known: drop, dropequal, hashmod, keep, keepequal, labeldrop, labelkeep, labelmap, lowercase, '
     "replace, uppercase"),
]  # fmt: skip
OF_A_LIST = [
    ("discovery: [{}]", "discovery[0]: needed: one of file, http, dns, kubernetes"),
    ("discovery: [{file: {files: [a.json]}, dns: {names: [a]}}]", "discovery[0]: has file and dns; keep one of them"),
    ("discovery: {}\ntargets: 1", "targets: needed: a list of targets, such as [{url: http://localhost:8000}]"),
    ("discovery: 1", "discovery: needed: a list, such as [{file: {files: [targets.json]}}]"),
    ("discovery: [{file: {files: [a.json]}, name: x}, {file: {files: [a.json]}, name: x}]",
     "discovery[1].name: is called 'x', as discovery[0]; give each a name of its own"),
]  # fmt: skip
BAD = [
    *((f"discovery: [{{{keys}}}]", f"discovery[0].{message}") for keys, message in OF_A_SOURCE),
    *((f"discovery: [{{{FILE}, {keys}}}]", f"discovery[0].{message}") for keys, message in BESIDE_A_FILE),
    *((f"discovery: [{{{FILE}, relabel: [{{{rule}}}]}}]", f"discovery[0].relabel[0].{message}") for rule, message in OF_A_RULE),
    *OF_A_LIST,
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_mistake_is_told_with_its_place(text: str, message: str) -> None:
    """Each gives one line that begins with the path of its key and says what to do."""
    assert mistakes(text) == [message]


@pytest.mark.parametrize(
    ("rule", "key", "name"),
    [
        (
            "source_labels: [__meta_kubernetes_pod_lable_app], regex: x, action: keep",
            "source_labels[0]",
            "__meta_kubernetes_pod_lable_app",
        ),
        ("source_labels: [name], target_label: modle, action: keepequal", "target_label", "modle"),
    ],
)
def test_a_label_that_a_kind_has_not_is_told(rule: str, key: str, name: str) -> None:
    """Else a rule with a slip in it would never fit, and nobody would know why. After labelmap there may be any label."""
    (line,) = mistakes(f"discovery: [{{kubernetes: {{}}, relabel: [{{{rule}}}]}}]")
    assert line.startswith(f'discovery[0].relabel[0].{key}: no label "{name}"; did you mean')
    assert discovery(f"kubernetes: {{}}, relabel: [{{action: labelmap, regex: x_(.+)}}, {{{rule}}}]").relabel


def test_names_are_those_of_the_kinds() -> None:
    """A kind that is there once is its name; others get their place in the list too."""
    found = loaded(f"discovery: [{{{FILE}}}, {{dns: {{names: [a]}}}}, {{{FILE}}}, {{name: mine, {FILE}}}]").discovery
    assert [each.name for each in found] == ["file-0", "dns", "file-2", "mine"]


def test_slos_of_discovered_targets_count_as_used() -> None:
    """Rules are written for them, and an alert that cannot fire for them is told."""
    specs = loaded(f"slos: {{ttft: {{signal: ttft, threshold: 500ms, objective: 99%}}}}\ndiscovery: [{{{FILE}}}]")
    ((slo, uses),) = specs.uses().items()
    assert slo.name == "ttft"
    assert [use.target for use in uses] == ["discovery[0].target"]


def test_a_target_has_the_settings_of_the_template() -> None:
    """Address, scheme, path, name and model come from the labels, all else from `target`; local GPUs are nobody's."""
    spec = discovery(f"{FILE}, target: {{rate: 1/min, model: m}}")
    labels = {"__address__": "10.0.0.1:8000", "__scheme__": "https", "__path__": "/llm/v1/", "name": "a/b", "env": "x"}
    target = target_of(labels, spec)
    assert target is not None
    assert (target.key, target.name, target.url, target.model) == ("a/b", "a/b", "https://10.0.0.1:8000/llm/v1", "m")
    assert target.probes[0].rate == pytest.approx(1 / 60)
    assert target.gpus.indices == ()
    bare = target_of({"__address__": "[fd00::1]:80", "model": "n"}, spec)
    assert bare is not None
    assert (bare.name, bare.url, bare.model) == ("[fd00::1]:80", "http://[fd00::1]:80/v1", "n")


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"__address__": "http://10.0.0.1:80"},
        {"__address__": "10.0.0.1:80/admin"},
        {"__address__": "user@10.0.0.1"},
        {"__address__": "10.0.0.1:99999"},
        {"__address__": "10.0.0.1:80\r\nHost: x"},
        {"__address__": "127.0.0.1:9742"},
        {"__address__": "[::1]:9742"},
        {"__address__": "[::ffff:127.0.0.1]:80"},
        {"__address__": "localhost:80"},
        {"__address__": "127.1:80"},
        {"__address__": "2130706433:80"},
        {"__address__": "0x7f000001:80"},
        {"__address__": "169.254.169.254:80"},
        {"__address__": "[fe80::1]:80"},
        {"__address__": "[64:ff9b:1::a9fe:a9fe]:80"},
        {"__address__": "[fd00:c1::a9fe:a9fe]:80"},
        {"__address__": "0.0.0.0:80"},
        {"__address__": "a:80", "__scheme__": "file"},
        {"__address__": "a:80", "__path__": "/v1?x=1"},
        {"__address__": "a:80", "__path__": "v1"},
        {"__address__": "a:80", "name": "x" * 201},
        {"__address__": "a:80", "name": "a\nb"},
        {"__address__": "a:80", "model": "\x00"},
    ],
)
def test_what_could_be_meant_to_harm_is_no_target(labels: dict[str, str]) -> None:
    """Nothing but host and port in an address, this machine and its link only if configured, names that can be shown."""
    with pytest.raises(Unfit):
        target_of(labels, discovery(FILE))


@pytest.mark.parametrize(
    ("address", "fits"),
    [
        ("10.1.2.3:80", True),
        ("11.1.2.3:80", False),
        ("[::ffff:10.1.2.3]:80", True),
        ("a.llm.svc:80", True),
        ("llm.svc:80", False),
        ("evil-llm.svc:80", False),
        ("A.LLM.SVC", True),
        ("one", True),
        ("two", False),
        ("127.0.0.1:80", False),
    ],
)
def test_credentials_go_to_the_named_hosts_only(address: str, fits: bool) -> None:
    """With `hosts` nothing else is a target, whatever the labels say."""
    spec = discovery(f"{FILE}, hosts: [10.0.0.0/8, '*.llm.svc', one], target: {{auth: {{bearer_token_file: t}}}}")
    if fits:
        target = target_of({"__address__": address}, spec)
        assert target is not None
        assert target.auth == Auth(bearer_token_file="t")
    else:
        with pytest.raises(Unfit, match="not among `hosts`"):
            target_of({"__address__": address}, spec)


def test_this_machine_is_a_target_where_that_is_configured() -> None:
    """`hosts` can name it."""
    assert target_of({"__address__": "127.0.0.1:80"}, discovery(f"{FILE}, hosts: [127.0.0.0/8]")) is not None


@given(st.dictionaries(st.sampled_from(["__address__", "__scheme__", "__path__", "name", "model", "x"]), st.text()))
def test_no_label_gets_anything_but_five_fields_through(labels: dict[str, str]) -> None:
    """Whatever is found, files, headers, proxies and budgets are the template's, and the URL has no user, query or fragment."""
    spec = discovery(f"{FILE}, target: {{rate: 1/min}}")
    try:
        target = target_of(labels, spec)
    except Unfit:
        return
    assert target is not None
    fields: dict[str, Any] = dict(target)
    same = {name for name, value in fields.items() if value == getattr(spec.template, name)}
    assert fields.keys() - same <= {"name", "url", "model"}
    assert not set("@?#\\ \r\n") & set(target.url.removeprefix("https://").removeprefix("http://").partition("/")[0])


def test_a_rule_has_the_labels_that_it_reads() -> None:
    """Of a source only those are kept: of source_labels, those that are compared, and those whose names labelmap matches."""
    rules = "{source_labels: [a], target_label: b, action: keepequal}, {regex: tag_(.+), action: labelmap}"
    reads = discovery(f"{FILE}, relabel: [{rules}], target: {{labels: {{team: ''}}}}").reads
    assert [name for name in ("a", "b", "tag_team", "team", "__address__", "tag", "c") if name not in reads] == [
        "tag",
        "c",
    ]


def test_a_number_in_a_rule_is_text_as_it_is_written() -> None:
    """As in Prometheus; everywhere else a number stays one, also below a name that is `relabel`."""
    rule = "{source_labels: [name], regex: 010, separator: 1.50, target_label: __tmp_x, replacement: yes}"
    text = "workloads: {relabel: {prompt_tokens: 0x10, output_tokens: 8}}\n"
    target = "target: {probes: [{workload: relabel}]}"
    specs = loaded(text + f"discovery: [{{{FILE}, limit: 5, relabel: [{rule}], {target}}}]")
    (only,) = specs.discovery
    assert only.relabel == (
        Rule(source_labels=("name",), regex="010", separator="1.50", target_label="__tmp_x", replacement="yes"),
    )
    assert only.limit == 5


def test_no_label_makes_an_expression_run_long() -> None:
    """A nest of repetitions, which backtracking would take longer than the universe for, is done at once."""
    assert relabel({"a": "a" * 4_000}, [Rule(action="keep", source_labels=("a",), regex="((a+)+)+b")]) is None

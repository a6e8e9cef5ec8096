"""Values that come from the environment, and secrets that stand in the configuration itself."""

import pytest

from prober.config.configuration import Configuration
from prober.config.discovery import HttpSpec
from prober.config.problems import ConfigError
from tests.config import reading

ENVIRONMENT = {"KEY": "k3y", "PASSWORD": "p/w@1%\n", "PROXY": "http://u:p%2Fw@proxy:3128", "EMPTY": " "}


def loaded(text: str) -> Configuration:
    return reading.loaded(text, environment=ENVIRONMENT)


def one(more: str) -> str:
    return f"targets: [{{url: 'http://h', {more}}}]"


def test_a_header_takes_its_value_from_the_environment() -> None:
    """All of it or a part, as often as it is named; what is written otherwise stays as it is."""
    specs = loaded(one("headers: {Authorization: 'Token ${KEY}', X-A: '${KEY}${KEY}', X-B: '$KEY ${} ${a-b} $'}"))
    assert specs.targets[0].headers == {"Authorization": "Token k3y", "X-A": "k3yk3y", "X-B": "$KEY ${} ${a-b} $"}
    assert specs.warnings == ()


def test_an_address_takes_what_is_secret_from_the_environment() -> None:
    """A part of it is percent-encoded, without the end of the line that a file had; a whole address is taken as it is."""
    specs = loaded(
        one("proxy_url: 'http://u:${PASSWORD}@proxy', metrics: {url: 'http://u:${PASSWORD}@h/metrics'}")
        + "\nprometheus: {url: 'http://u:${PASSWORD}@prom/'}"
        + "\ndiscovery: [{http: {url: 'https://h/list?token=${PASSWORD}'}}]"
    )
    (target,) = specs.targets
    assert target.proxy_url == "http://u:p%2Fw%401%25@proxy"
    assert target.metrics is not None
    assert target.metrics.url == "http://u:p%2Fw%401%25@h/metrics"
    assert specs.prometheus_url == "http://u:p%2Fw%401%25@prom"
    assert isinstance(specs.discovery[0].source, HttpSpec)
    assert specs.discovery[0].source.url == "https://h/list?token=p%2Fw%401%25"
    assert specs.warnings == ()
    assert loaded(one("proxy_url: '${PROXY}'")).targets[0].proxy_url == ENVIRONMENT["PROXY"]


def test_targets_that_are_found_take_it_too() -> None:
    text = "discovery: [{file: {files: [a.json]}, hosts: [10.0.0.0/8], target: {headers: {Api-Key: '${KEY}'}}}]"
    assert loaded(text).discovery[0].template.headers == {"Api-Key": "k3y"}


@pytest.mark.parametrize("name", ["EMPTY", "MISSING"])
def test_what_is_not_set_is_a_mistake(name: str) -> None:
    """Else the engine would be asked without it; the variable is named, its place too."""
    with pytest.raises(ConfigError) as error:
        loaded(one(f"headers: {{X-A: '${{{name}}}'}}"))
    assert str(error.value) == f"c:1: targets[0].headers.X-A: the environment has no {name}, or an empty one; set it"


def test_a_message_shows_what_is_written_and_not_what_it_stands_for() -> None:
    for written in ("socks://u:${PASSWORD}@p", "socks://${KEY}"):
        with pytest.raises(ConfigError) as error:
            loaded(one(f"proxy_url: '{written}'"))
        assert "is not an http URL" in str(error.value)
        assert "k3y" not in str(error.value)
        assert "p%2Fw" not in str(error.value)


@pytest.mark.parametrize(
    "header", ["Authorization", "proxy-authorization", "COOKIE", "X-Api-Key", "api-key", "X-Auth-Token"]
)
def test_a_secret_in_the_configuration_itself_is_told(header: str) -> None:
    """By its place, without its value: it works, and whoever may read the ConfigMap has it."""
    (warning,) = loaded(one(f"headers: {{{header}: hunter22, X-Team: blue}}")).warnings
    assert warning.startswith(
        f"c:1: targets[0].headers.{header}: a secret stands in the configuration itself; write ${{NAME}}"
    )
    assert "hunter22" not in warning


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (one("proxy_url: 'http://u:hunter22@p'"), "targets[0].proxy_url"),
        (one("metrics: {url: 'http://u:hunter22@h/metrics'}"), "targets[0].metrics.url"),
        (one("model: m") + "\nprometheus: {url: 'http://u:hunter22@h'}", "prometheus.url"),
        (
            "discovery: [{file: {files: [a.json]}, target: {proxy_url: 'http://u:hunter22@p'}}]",
            "discovery[0].target.proxy_url",
        ),
    ],
)
def test_a_password_in_the_configuration_itself_is_told(text: str, place: str) -> None:
    (warning,) = loaded(text).warnings
    assert warning.startswith(f"c:{text.count(chr(10)) + 1}: {place}: a password stands in the configuration itself")
    assert "hunter22" not in warning


@pytest.mark.parametrize("address", ["http://[x", "http://h:port", "http://user:hunter/22@h", "http://"])
def test_an_address_that_is_none_is_a_mistake_like_others(address: str) -> None:
    """Of the engine's page and of a Prometheus: at its place, without a password."""
    with pytest.raises(ConfigError) as error:
        loaded(one(f"metrics: {{url: '{address}'}}") + f"\nprometheus: {{url: '{address}'}}")
    page, prometheus = str(error.value).splitlines()
    assert page.startswith("c:1: targets[0].metrics.url: ")
    assert prometheus.startswith("c:2: prometheus.url: ")
    assert "hunter" not in str(error.value)


def test_an_address_without_a_password_is_not() -> None:
    assert loaded(one("proxy_url: 'http://user@p:3128'")).warnings == ()


def test_no_secret_is_in_the_text_form_of_a_target() -> None:
    """A log line or a traceback that shows a target shows no header and no address with a password."""
    specs = loaded(
        one("headers: {Authorization: '${KEY}'}, proxy_url: '${PROXY}', metrics: {url: 'http://u:${PASSWORD}@h/m'}")
        + "\nprometheus: {url: 'http://u:${PASSWORD}@prom/'}\ndiscovery: [{http: {url: 'https://h/list?token=${PASSWORD}'}}]"
    )
    for secret in ("k3y", "p%2Fw"):
        assert secret in str(specs.model_dump())
        assert secret not in repr(specs)
        assert secret not in str(specs)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("targets: [{url: '${URL}'}]", "targets[0].url"),
        ("targets: [{url: 'http://${HOST}:8000/v1'}]", "targets[0].url"),
        (one("name: 'llama-${POD_NAME}'"), "targets[0].name"),
        (one("model: '${MODEL}'"), "targets[0].model"),
        (one("engine: '${ENGINE}'"), "targets[0].engine"),
        (one("rate: '${RATE}'"), "targets[0].rate"),
        (one("labels: {team: '${TEAM}'}"), "targets[0].labels.team"),
        (one("auth: {bearer_token_file: '${DIR}/token'}"), "targets[0].auth.bearer_token_file"),
        (one("probes: [{workload: '${W}'}]"), "targets[0].probes[0].workload"),
        (one("sweep: {schedule: '${CRON}'}"), "targets[0].sweep.schedule"),
        (one("context: {driver: '${DRIVER}'}"), "targets[0].context.driver"),
        ("defaults: {rate: '${RATE}'}\n" + one("model: m"), "defaults.rate"),
        ("storage: {path: '${DIR}'}\n" + one("model: m"), "storage.path"),
        ("grafana: {url: 'http://${G}', auth: {bearer_token_file: t}}\n" + one("model: m"), "grafana.url"),
        (
            "workloads: {sampling: {prompts: {file: '${F}'}, output_tokens: 9}}\n" + one("model: m"),
            "workloads.sampling.prompts.file",
        ),
        ("discovery: [{file: {files: ['${DIR}/a.json']}}]", "discovery[0].file.files[0]"),
        ("discovery: [{file: {files: [a.json]}, target: {model: '${MODEL}'}}]", "discovery[0].target.model"),
    ],
)
def test_a_variable_where_none_is_expanded_is_a_mistake(text: str, place: str) -> None:
    """Else the target would be probed under the name of a variable; one message names the place, the variable and the remedy."""
    with pytest.raises(ConfigError) as error:
        loaded(text)
    (line,) = str(error.value).splitlines()
    assert f": {place}: has ${{" in line
    assert "which is not expanded here; write its value" in line


@pytest.mark.parametrize(
    "text",
    [
        one("name: '$MODEL ${} ${1} ${a-b}'"),
        "workloads: {w: {golden: [{prompt: 'What is ${HOME}?', expect: {regex: '${HOME}'}}]}}\n"
        + one("probes: [{workload: w}]"),
        "workloads: {w: {sampling: {stop: ['${END}']}, prompt_tokens: 9, output_tokens: 9}}\n"
        + one("probes: [{workload: w}]"),
        "discovery: [{file: {files: [a.json]}, relabel: [{source_labels: [a], regex: '(?P<pod>.*)', target_label: name, "
        "replacement: '${pod}'}]}]",
    ],
)
def test_text_that_is_no_variable_stays_as_it_is(text: str) -> None:
    """Prompts, request fields and relabelling rules have a syntax of their own."""
    loaded(text)

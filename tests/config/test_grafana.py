"""The block `grafana:`."""

import re
from pathlib import Path

import pytest

from prober.config.configuration import GrafanaSpec
from prober.config.load import load
from prober.config.problems import ConfigError
from prober.config.server import Auth, TlsSpec


def spec(block: str) -> GrafanaSpec | None:
    text = f"targets: [{{url: http://localhost:8000}}]\n{block}\n"
    return load(text, source="prober.yaml", engines=(), environment={}, read=lambda path: "").grafana


def test_off_unless_configured() -> None:
    """No block, no Grafana."""
    assert spec("") is None
    assert spec("grafana:") is None


def test_the_least_and_the_most() -> None:
    """An address and a token are enough; everything else has a value."""
    least = spec("grafana: {url: http://grafana:3000/, auth: {bearer_token_file: /run/token}}")
    assert least == GrafanaSpec(
        url="http://grafana:3000",
        auth=Auth(bearer_token_file="/run/token"),
        tls=None,
        folder="LLM SLO prober",
        datasource=None,
        dashboards=True,
        annotations=True,
        interval=3600.0,
    )
    most = spec(
        "grafana: {url: https://ops.example.org/grafana, auth: {bearer_token_file: t}, tls: {ca_file: ca.pem}, folder: Models, "
        "datasource: Mimir, dashboards: false, interval: 10m}"
    )
    assert most is not None
    assert (most.tls, most.folder, most.datasource) == (
        TlsSpec(ca_file="ca.pem"),
        "Models",
        "Mimir",
    )
    assert (most.dashboards, most.annotations, most.interval) == (False, True, 600.0)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("{url: http://grafana:3000}", "grafana.auth: needed, but not given"),
        (
            "{url: grafana:3000, auth: {bearer_token_file: t}}",
            "grafana.url: is not an http or https URL",
        ),
        ("{url: 'http://[::1', auth: {bearer_token_file: t}}", "grafana.url: is not a URL; write https://grafana"),
        ("{url: 'http://g:70000', auth: {bearer_token_file: t}}", "grafana.url: is not a URL"),
        (
            "{url: 'http://g/?orgId=2', auth: {bearer_token_file: t}}",
            "grafana.url: has a query or fragment; give the base address only",
        ),
        (
            "{url: http://g, auth: {bearer_token_file: t}, interval: 5s}",
            "grafana.interval: 5s is too often; use 60s or more",
        ),
        ("{url: http://g, auth: {bearer_token_file: t}, folder: ''}", "grafana.folder: "),
        ("{url: http://g, auth: {bearer_token_file: t}, dashboards: false, annotations: false}", "remove the block"),
        ("{url: http://g, auth: {bearer_token_file: t}, datasorce: x}", 'did you mean "datasource"?'),
    ],
)
def test_a_mistake_is_named(block: str, said: str) -> None:
    """By its key, with what to write."""
    with pytest.raises(ConfigError) as problem:
        spec(f"grafana: {block}")
    assert said in str(problem.value)


def test_a_password_in_the_address_is_not_repeated() -> None:
    """It would end in a log."""
    with pytest.raises(ConfigError, match="has a user or password in it") as problem:
        spec("grafana: {url: 'http://admin:hunter2@grafana', auth: {bearer_token_file: t}}")
    assert "hunter2" not in str(problem.value)


def test_the_documented_block_is_right() -> None:
    """That of docs/guides/dashboards.md."""
    text = (Path(__file__).parents[2] / "docs/guides/dashboards.md").read_text()
    (block,) = re.findall(r"```yaml\n(grafana:.*?)```", text, re.DOTALL)
    found = spec(block)
    assert found is not None
    assert (found.folder, found.datasource) == ("LLM SLO prober", "Prometheus")

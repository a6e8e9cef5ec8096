"""The chart's schema of `config` takes what `prober check` takes, as Helm reads it: the prober then reads the same values."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from prober.config.load import load
from prober.measure.engines import DIALECTS
from tests.deploy.rendering import CHART, HELM_3, MINIMAL, RELEASE, Refused, helm
from tests.deploy.shipped import configuration
from tests.test_documented import NAMED, PAGES

# Forms of YAML that people write, and none that the schema is made of.
HAND_WRITTEN = {
    "a port without quotes": """
discovery:
  - kubernetes: {api_server: https://192.0.2.7, namespaces: [llm]}
    relabel:
      - {source_labels: [__address__], regex: 8000, action: keep}
      - {source_labels: [__meta_kubernetes_pod_ip], target_label: name, replacement: 8000}
""",
    "an action in capitals": """
discovery:
  - kubernetes: {api_server: https://192.0.2.7, namespaces: [llm]}
    relabel: [{source_labels: [__meta_kubernetes_pod_label_app], regex: llama, action: Keep}]
""",
    "keys without a value in a list": """
targets:
  - name: llama
    url: http://llama
    model:
    rate:
    stream:
    probes:
      - workload: short
        slos:
        arrivals:
    budget: {tokens_per_day: 20M, cost_per_day: }
    gpus:
    sweep:
slos:
  ttft: {signal: ttft, threshold: 500ms, objective: 99%, window: }
workloads:
  short: {prompt_tokens: 100, output_tokens: 10, sampling: }
""",
    "a label that a rule takes away": """
discovery:
  - file: {files: [/targets.json]}
    relabel:
      - target_label: model
        replacement:
    target: {rate: , labels: }
""",
    "numbers in another form": """
targets:
  - name: llama
    url: http://llama
    budget: {price_per_million: {prompt: 1, completion: "2.5"}, tokens_per_day: 20000000, cost_per_day: 5}
""",
}


def documented() -> dict[str, str]:
    """The configurations of the documentation, by page and number."""
    return {
        f"{page.stem}-{number}": block
        for page in PAGES
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL))
        if re.search("^(targets|discovery):", block, re.MULTILINE) and "\nconfig:\n" not in block
    }


def read(text: str) -> Any:
    """The configuration as `prober check` reads it. Raises ConfigError."""
    environment = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "of-the-environment")
    return load(text, source="c", engines=DIALECTS, environment=environment, read=lambda path: NAMED.get(path, path))


def values_of(text: str, folder: Path) -> str:
    """A file of values for the chart with this configuration, as its user writes it."""
    file = folder / "values.yaml"
    file.write_text("config:\n" + "".join(f"  {line}\n" for line in text.splitlines()))
    return f"--values={file}"


@pytest.mark.parametrize("text", HAND_WRITTEN.values(), ids=HAND_WRITTEN)
def test_what_the_prober_takes_helm_takes(text: str, tmp_path: Path) -> None:
    """And the prober reads the same from the rendered ConfigMap."""
    over = {"image": MINIMAL["image"], "discovery": {"namespaces": ["llm"]}}
    rendered = configuration(helm(HELM_3, RELEASE, over, values_of(text, tmp_path)))
    assert dict(read(yaml.safe_dump(rendered))) == dict(read(text))


def test_the_schema_takes_what_the_documentation_has() -> None:
    """Every configuration that the prober takes."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    validator = Draft7Validator(schema | {"required": [], "properties": {"config": schema["properties"]["config"]}})
    blocks = documented()
    assert len(blocks) > 20
    for name, block in blocks.items():
        assert read(block), name
        values = {"config": yaml.safe_load(block)}
        assert [f"{name}: {error.json_path}: {error.message}" for error in validator.iter_errors(values)] == []


@pytest.mark.parametrize("replacement", ["1.50", "yes"])
def test_helm_refuses_what_it_would_rewrite(replacement: str, tmp_path: Path) -> None:
    """It reads 1.50 as 1.5 and yes as true, where the prober takes the text of the file. In quotes both are text."""
    text = HAND_WRITTEN["a port without quotes"].replace("replacement: 8000", f"replacement: {replacement}")
    assert read(text)
    over = {"image": MINIMAL["image"], "discovery": {"namespaces": ["llm"]}}
    with pytest.raises(Refused, match="replacement"):
        helm(HELM_3, RELEASE, over, values_of(text, tmp_path))
    quoted = text.replace(f"replacement: {replacement}", f"replacement: '{replacement}'")
    rendered = configuration(helm(HELM_3, RELEASE, over, values_of(quoted, tmp_path)))
    assert dict(read(yaml.safe_dump(rendered))) == dict(read(text))

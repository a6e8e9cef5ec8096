"""The prober would start in every container that is shipped: with its arguments, its environment and the files that it mounts."""

import base64
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme

from prober.cli import run as command
from prober.cli.main import main
from prober.daemon import app
from prober.net.clock import Clock
from tests.deploy.hardening import containers
from tests.deploy.rendering import Manifest, chart
from tests.deploy.shipped import CHARTS, FULL, OVERLAYS, workload

DAEMONS = [*OVERLAYS, *CHARTS]
HASH = "$2y$04$ZUvEPfAY1gSyYlcDI.F8e.yXlGKhXmT6zDzKLWF8jEMxePMsQHVYK"
# What a reader puts into a Secret that is not shipped.
YOURS = f"tls_server_config: {{cert_file: tls.crt, key_file: tls.key}}\nbasic_auth_users: {{prometheus: '{HASH}'}}\n"


class Started(BaseException):
    """The daemon has found nothing wrong and would go on."""


def mounted(manifests: list[Manifest], pod: dict[str, Any], container: dict[str, Any], root: Path) -> None:
    """The folders that the container has, below `root`, with the files of ConfigMaps and Secrets; what is not shipped is made up."""
    texts = {
        manifest["metadata"]["name"]: manifest["data"] for manifest in manifests if manifest["kind"] == "ConfigMap"
    }
    for manifest in manifests:
        if manifest["kind"] == "Secret":
            texts[manifest["metadata"]["name"]] = {
                name: base64.b64decode(text).decode() for name, text in manifest["data"].items()
            }
    volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
    for mount in container["volumeMounts"]:
        folder = root / mount["mountPath"].lstrip("/")
        folder.mkdir(parents=True)
        volume = volumes.get(mount["name"], {})
        held = [volume, *volume.get("projected", {}).get("sources", ())]
        for source in held:
            name = source.get("configMap", {}).get("name") or source.get("secret", {}).get("name", "")
            if name.endswith("-tls"):
                pair = trustme.CA().issue_cert("llm-slo-prober")
                pair.cert_chain_pems[0].write_to_path(str(folder / "tls.crt"))
                pair.private_key_pem.write_to_path(str(folder / "tls.key"))
            elif name:
                files = texts[name] if name in texts or "configMap" in source else {"web.yaml": YOURS}
                for file, text in files.items():
                    (folder / file).write_text(text)


def start(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    manifests: list[Manifest],
    pod: dict[str, Any],
    container: dict[str, Any],
) -> None:
    """`prober run` in this process, with all that it looks at before it measures. Raises Started, or SystemExit if it refuses."""

    def clock() -> Clock:
        raise Started

    mounted(manifests, pod, container, root)
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "prober-0"))
    folders = tuple(mount["mountPath"] for mount in container["volumeMounts"])
    words = []
    for word in container["args"]:
        if word == "--keep-running":
            continue  # with it a mistake would not be refused
        name, equals, value = word.partition("=")
        words.append(f"{name}={root}{value}" if equals and value.startswith(folders) else word)
    monkeypatch.setattr(sys, "argv", ["prober", *words])
    monkeypatch.setattr(command, "log_to_stderr", lambda level, form: None)
    # The clock is the first part that is made once the configuration has been looked at.
    monkeypatch.setattr(app, "App", partial(app.App, make_clock=clock))
    monkeypatch.setattr("prober.cli.main.hold_signals", lambda: None)  # this process is not the prober's
    main()


@pytest.mark.parametrize("where", DAEMONS)
def test_the_prober_starts(
    shipped: dict[str, list[Manifest]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    """Nothing of its configuration, web configuration, shard and admin API is refused."""
    ((pod, container),) = containers(workload(shipped[where]))
    with pytest.raises(Started):
        start(monkeypatch, tmp_path, shipped[where], pod, container)


def test_a_container_that_would_not_start_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test above can fail."""
    manifests = chart(**FULL | {"extraArgs": ["--colour=blue"]})
    ((pod, container),) = containers(workload(manifests))
    with pytest.raises(SystemExit):
        start(monkeypatch, tmp_path, manifests, pod, container)
    assert "--colour" in capsys.readouterr().err

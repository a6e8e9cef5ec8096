"""The image's recipe is linted, its dependencies are pinned, its list of parts is valid. test_image_built.py builds it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.scripted import threaded
from tests.wire.heads import body
from tools import rootfs

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "Dockerfile").read_text()
FINAL = RECIPE.split("\nFROM ")[-1]


def test_hadolint_has_nothing_to_say(tmp_path: Path) -> None:
    """At its default rules; of a bad recipe it has."""
    (tmp_path / "Dockerfile").write_text("FROM python\nCMD python -m prober\n")
    program = Path(sys.executable).parent / "hadolint"
    for folder, code in ((ROOT, 0), (tmp_path, 1)):
        done = subprocess.run([program, folder / "Dockerfile"], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr


def test_the_final_stage_runs_nothing_and_nobody_is_root() -> None:
    """No RUN, nothing of the base but what was copied; commands without a shell; no root; the signal that the prober handles."""
    assert FINAL.startswith("scratch\n")
    assert not re.search(r"^RUN ", FINAL, re.MULTILINE)
    assert "\nUSER 65532:65532\n" in FINAL
    assert "\nSTOPSIGNAL SIGTERM\n" in FINAL
    commands = re.findall(r"^\s*(?:ENTRYPOINT|CMD) (.*)$", FINAL, re.MULTILINE)
    assert len(commands) == 3  # with that of the health check
    assert all(isinstance(json.loads(command), list) for command in commands)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_says_what_the_page_says(status: int, code: int) -> None:
    """The program of the health check runs against a server with that answer."""
    (line,) = re.findall(r"^\s+CMD (.*)$", FINAL, re.MULTILINE)
    with threaded(lambda asked: body(f"{status if asked.path == '/-/healthy' else 404} X", "")) as url:
        program = json.loads(line)[2].replace("9742", url.rpartition(":")[2])
        assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == code


def pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==([^\s;]+)", (ROOT / name).read_text(), re.MULTILINE))


def test_the_image_has_what_was_tested_and_nothing_to_develop_with() -> None:
    """The image's lock pins the versions of the development lock, without the tools; tests/security/test_supply.py asks for hashes.

    The compiler of the image's build is needed nowhere else.
    """
    image, tested = pins("requirements.image.lock"), pins("requirements.lock")
    assert image.items() <= tested.items()
    assert not image.keys() & {"pytest", "mypy", "ruff", "playwright", "hatchling"}
    build = pins("requirements.build.lock")
    assert build.pop("ziglang")
    assert build.items() <= tested.items()


def sbom(epoch: str, *status: Path) -> str:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    command: list[str | Path] = [sys.executable, ROOT / "tools/sbom.py", *status]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def test_the_list_of_parts_is_cyclonedx() -> None:
    """By the standard's own schema; the same for the same time; every part that the prober imports is in it."""
    text = sbom("1700000000")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert text == sbom("1700000000")
    document = json.loads(text)
    assert document["metadata"]["component"]["name"] == "llm-slo-prober"
    assert document["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    names = {part["name"] for part in document["components"]}
    assert {"aiohttp", "orjson", "pydantic", "python"} <= names
    (own,) = (
        dependency
        for dependency in document["dependencies"]
        if dependency["ref"].startswith("pkg:pypi/llm-slo-prober@")
    )
    assert any(ref.startswith("pkg:pypi/aiohttp@") for ref in own["dependsOn"])
    del document["components"][0]["name"]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is not None


def test_the_list_of_parts_has_the_packages_of_the_distribution(tmp_path: Path) -> None:
    """Names are those of dpkg; the epoch of a version is quoted in the purl."""
    (tmp_path / "status").write_text(
        "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\nDescription: C\n it: is\n\n"
        "Package: zlib1g\nArchitecture: amd64\nVersion: 1:1.2.13.dfsg-1\n\n"
    )
    text = sbom("0", tmp_path / "status")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert [part["purl"] for part in json.loads(text)["components"]][-2:] == [
        "pkg:deb/debian/libc6@2.36-9?arch=amd64",
        "pkg:deb/debian/zlib1g@1%3A1.2.13.dfsg-1?arch=amd64",
    ]


def test_what_the_loader_needs_is_kept() -> None:
    """With this Python: the C library and the loader itself."""
    names = {path.name for path in rootfs.libraries([Path(sys.executable).resolve()])}
    assert "libc.so.6" in names
    assert any(name.startswith("ld-") for name in names)


def test_a_library_that_is_not_there_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of an image whose Python does not start."""
    (tmp_path / "ldd").write_text("#!/bin/sh\necho '\tlibffi.so.9 => not found'\n")
    (tmp_path / "ldd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(FileNotFoundError, match=r"libffi\.so\.9: needed by Python or its packages, not in the base"):
        rootfs.libraries([Path(sys.executable)])


def test_links_are_kept_with_what_they_lead_to(tmp_path: Path) -> None:
    """Each of a chain, without links on the way to it; a folder without what nobody runs."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/lib.so.1.2").write_text("x")
    (tmp_path / "real/lib.so.1").symlink_to("lib.so.1.2")
    (tmp_path / "link").symlink_to("real")
    assert [path.name for path in rootfs.chain(tmp_path / "link/lib.so.1")] == ["lib.so.1", "lib.so.1.2"]
    assert all(path.parent == tmp_path / "real" for path in rootfs.chain(tmp_path / "link/lib.so.1"))
    (tmp_path / "real/site-packages").mkdir()
    (tmp_path / "real/json").mkdir()
    root = tmp_path / "root"
    rootfs.copy(tmp_path / "real", root)
    copied = {path.name for path in (root / tmp_path.relative_to("/") / "real").iterdir()}
    assert copied == {"lib.so.1", "lib.so.1.2", "json"}
    assert (root / tmp_path.relative_to("/") / "real/lib.so.1").is_symlink()


def test_only_what_is_built_from_is_sent_to_the_builder() -> None:
    """Everything is left out but what is named, and each name is there."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert all((ROOT / line[1:]).exists() for line in lines if line.startswith("!"))

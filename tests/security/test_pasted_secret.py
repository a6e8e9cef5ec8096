"""A secret in place of the name of its file is repeated nowhere; a path is, so that it can be mended."""

from pathlib import Path

import pytest

from tests.commands import prober

SECRET = "sk-proj-0123456789abcdefghijklmnopqrstuv"


def said(*arguments: str, folder: Path) -> str:
    done = prober(*arguments, cwd=folder)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "is_shown"), [(SECRET, False), (f"Bearer {SECRET}", False), ("/run/absent", True), ("./absent", True)]
)
@pytest.mark.parametrize(
    "block", ["auth: {bearer_token_file: NAME}", "auth: {header: x-api-key, key_file: NAME}",
              "tls: {cert_file: CERT, key_file: NAME}"]
)  # fmt: skip
def test_check_hides_what_is_no_path(tmp_path: Path, block: str, name: str, is_shown: bool) -> None:
    (tmp_path / "cert").write_text("")
    entry = block.replace("NAME", f"'{name}'").replace("CERT", f"{tmp_path}/cert")
    (tmp_path / "prober.yaml").write_text(f"targets: [{{url: 'https://h.example', model: m, {entry}}}]\n")
    text = said("check", "--config.file=prober.yaml", folder=tmp_path)
    assert ("_file" in text and ("is not on this machine" in text or "No such file" in text), name in text) == (
        True,
        is_shown,
    )
    assert SECRET[:12] not in text


def test_a_command_hides_it_too(tmp_path: Path) -> None:
    text = said("once", "http://127.0.0.1:1", "--model=m", f"--bearer-token-file={SECRET}", folder=tmp_path)
    assert "bearer" in text.lower()
    assert SECRET[:12] not in text

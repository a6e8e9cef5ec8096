"""Files and lists with odd content: an error of that file, whatever is in it. What was read before stays, and a fixed file is read."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
import typer
from aiohttp import web
from typer.testing import CliRunner

from prober.cli.check import check
from prober.cli.exit_codes import ExitCode
from prober.config.discovery import FileSpec, KubernetesSpec
from prober.config.document import parse
from prober.config.load import load
from prober.config.problems import ConfigError
from prober.config.server import TlsSpec
from prober.daemon.configuration_file import read_config
from prober.features.discovery.discovered_targets import DiscoveredTargets
from prober.features.discovery.kubernetes import Kubernetes
from prober.features.discovery.lists import BadList, Files, read_targets
from prober.net.certificates import BadCertificate, client_tls
from prober.net.kubernetes import Api, Unreachable
from prober.storage.watched_file import Secret, read_regular
from prober.web.web_config import WebFile
from tests.kubernetes.pods import pod
from tests.processes import HANG_S, free_port
from tests.serving import serving

DEEP = 100_000
ODD_YAML = {
    "boolean": "targets: !!bool foo",
    "integer without digits": 'targets: !!int ""',
    "date": "targets: !!timestamp x",
    "character beyond Unicode": 'targets: ["\\UFFFFFFFF"]',
    "base 64": "targets: !!binary x",
    "digits": "targets: " + "9" * 9_000,
    "object": "targets: !!python/object/apply:os.system [true]",
    "ordered map": "targets: !!omap 1",
    "list as key": "? [a]\n: b",
    "map as key": "{{a: b}: c}",
    "merge of a scalar": "<<: 3",
    "itself": "a: &a [*a]",
    "unknown alias": "a: *nowhere",
    "deep list": "[" * DEEP,
    "deep map": "{a: " * DEEP,
    "deep block": "- " * DEEP,
    "two documents": "targets: []\n---\ntargets: []",
    "tag": "%TAG ! tag:x,2000:\n--- !a b",
    "control character": "targets: \x00",
    "unquoted": 'targets: "\\x',
    "tabs": "targets:\n\t- a",
}
ODD_JSON = {
    "deep": "[" * DEEP,
    "closed deep": "[" * DEEP + "]" * DEEP,
    "deep map": '[{"a":' * DEEP,
    "digits": "[" + "9" * 9_000 + "]",
    "cut": '[{"targets": ["a:1"]}, {"targ',
    "two": '[{"targets": ["a:1"]}] []',
    "no comma": '[{"targets": ["a:1"]} {"targets": ["a:2"]}]',
    "comma": '[{"targets": ["a:1"]},]',
    "infinity": '[{"targets": ["a:1"], "labels": {"x": [Infinity]}}]',
    "map": '{"targets": []}',
    "text": '"a"',
    "nothing": "[null]",
    "empty": "",
}
NEWLINE = "\n"
LABEL_NAMES = frozenset({"__address__", "name", "model"})
GOOD = '[{"targets": ["good:1"]}]'


def addresses(discovered: DiscoveredTargets) -> list[str]:
    return sorted(labels["__address__"] for _, groups in discovered.items() for labels in groups)


@pytest.mark.parametrize("odd", ODD_YAML.values(), ids=ODD_YAML)
@pytest.mark.parametrize("option", ["--config.file", "--web.config.file"])
def test_a_configuration_names_its_mistake(odd: str, option: str, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("targets: [{url: 'http://localhost:8000', model: m}]")
    bad.write_bytes(odd.encode())
    files = {"--config.file": good} | {option: bad}
    app = typer.Typer()
    app.command()(check)
    done = CliRunner().invoke(app, [f"{name}={path}" for name, path in files.items()])
    said = done.output
    assert done.exit_code == ExitCode.FAILED
    assert str(bad) in said
    assert "Traceback" not in said
    assert "report" not in said


@pytest.mark.parametrize(
    ("name", "odd"),
    [("t.yaml", odd) for odd in ODD_YAML.values()] + [("t.json", odd) for odd in ODD_JSON.values()],
    ids=[f"yaml {name}" for name in ODD_YAML] + [f"json {name}" for name in ODD_JSON],
)
async def test_a_discovered_file_is_read_again_once_it_is_fixed(name: str, odd: str, tmp_path: Path) -> None:
    """A neighbour, another file of the same discovery, is read all the time."""
    path, neighbour = tmp_path / name, tmp_path / "neighbour.json"
    path.write_text(GOOD)
    neighbour.write_text('[{"targets": ["near:1"]}]')
    discovered = DiscoveredTargets("files", lambda: None)
    source = Files(FileSpec(files=(str(path), str(neighbour)), interval=1.0), LABEL_NAMES, discovered)
    await source.refresh()
    path.write_bytes(odd.encode())
    neighbour.write_text('[{"targets": ["near:2"]}]')
    await source.refresh()
    assert addresses(discovered) == ["good:1", "near:2"]
    assert discovered.failures == 1
    assert discovered.problems[0].startswith(f"{path}: ")
    assert "report" not in discovered.problems[0]
    path.write_text('[{"targets": ["fixed:1"]}]')
    await source.refresh()
    assert addresses(discovered) == ["fixed:1", "near:2"]
    assert discovered.problems == []


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe that nobody writes: to open it for reading blocks for ever."""
    path = tmp_path / "pipe.yaml"
    os.mkfifo(path)
    return path


async def test_a_pipe_in_place_of_a_file_blocks_nothing(pipe: Path) -> None:
    discovered = DiscoveredTargets("files", lambda: None)
    await Files(FileSpec(files=(str(pipe),), interval=1.0), LABEL_NAMES, discovered).refresh()
    assert discovered.problems == [f"{pipe}: is not a regular file"]
    token = Secret(str(pipe))
    assert token.read() is None
    assert "is not a regular file" in token.problem
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_config(str(pipe), is_regular=True)
    with pytest.raises(ConfigError, match="is not a regular file"):
        WebFile(str(pipe), keep_running=False)


def test_a_file_without_end_is_refused() -> None:
    for path in ("/dev/zero", "/proc/self"):
        with pytest.raises(OSError, match=r"regular file|directory"):
            read_regular(path, 1_000)


async def test_a_pipe_as_certificate_authority_blocks_nothing(pipe: Path, tmp_path: Path) -> None:
    """Nor does an empty file mean the authorities of the system. One with comments in any language is read beside it."""
    good, empty = tmp_path / "ca.pem", tmp_path / "empty.pem"
    good.write_bytes("# Zertifizierungsstelle für alle\n".encode() + trustme.CA().cert_pem.bytes())
    empty.touch()
    assert len(client_tls(TlsSpec(ca_file=str(good))).context().get_ca_certs()) == 1
    for odd, why in ((pipe, "is not a regular file"), (empty, "contains no certificate")):
        with pytest.raises(BadCertificate, match=why):
            client_tls(TlsSpec(ca_file=str(odd)))
        api = Api("https://127.0.0.1:1", ca_file=str(odd))
        with pytest.raises(Unreachable, match=why):
            await api.get("/api")
        await api.close()


LONG = 300_000


@pytest.mark.parametrize(
    "text",
    [
        "1:30",
        "1:30.5",
        "-1:30",
        "190:20:30",
        "1" + ":1" * LONG,
        "1" + ":1" * LONG + ".5",
        "2026-01-01",
        "0" + "9" * LONG,
    ],
)
def test_base_60_and_dates_are_text(text: str) -> None:
    """As in YAML 1.2. Numbers that are written as people write them are numbers."""
    assert parse(f"- {text}") == [text]
    numbers = [0, -12, 1_000_000, 8, 255, 5, 0.5, -1e-9, float("inf"), "e", 3.0]
    assert parse("[0, -12, 1_000_000, 010, 0xff, 0b101, .5, -1.0e-9, .inf, e, !!float 3]") == numbers


@pytest.mark.parametrize(
    "number", ["9" * LONG, "1e" + "9" * LONG, "0." + "9" * LONG], ids=["integer", "exponent", "fraction"]
)
def test_a_list_with_a_long_number_is_refused_or_read_at_once(number: str) -> None:
    """In both formats: Python refuses integers of more than 4,300 digits, and reads a float of any length in linear time."""
    for form in ("JSON", "YAML"):
        with suppress(BadList):
            read_targets(f'[{{"targets": ["a:1"], "labels": {{"n": {number}}}}}]'.encode(), form, {}, ())


def test_a_list_with_a_byte_order_mark_is_read() -> None:
    """JSON and YAML, as editors of Windows write them."""
    for form in ("JSON", "YAML"):
        assert read_targets(b'\xef\xbb\xbf[{"targets": ["a:1"]}]', form, {}, ("__address__",))


def test_a_file_of_too_many_mistakes_is_refused_at_once() -> None:
    """A ConfigMap of 1 MiB took minutes in which no mended file was read."""
    good = "targets: [{url: 'http://localhost:8000', model: m}]\n"
    unknown = [f"k{number}: 1" for number in range(300)]
    for odd in (
        f"{good}{NEWLINE.join(unknown)}",
        good.replace("}", f", {', '.join(unknown)}}}"),
        "targets: [" + "{}, " * 300 + "]",
    ):
        with pytest.raises(ConfigError) as refused:
            load(odd, source="p.yaml", engines=(), environment={}, read=lambda _: "")
        lines = str(refused.value).splitlines()
        assert len(lines) == 101
        assert lines[-1] == "p.yaml: there are more mistakes; fix these 100 first"
    assert load(good, source="p.yaml", engines=(), environment={}, read=lambda _: "").targets


ODD_PODS: list[object] = [
    {"metadata": 5},
    {"metadata": {"name": "metadata", "annotations": 7}},
    {"metadata": {"name": "containers"}, "spec": {"containers": {"a": 1}}, "status": {"podIP": "10.0.0.9"}},
    {"metadata": {"name": "status"}, "status": 7},
    {"metadata": {"name": "conditions"}, "status": {"podIP": 9, "conditions": ["Ready"]}},
    {"metadata": {"name": "owners"}, "status": {"podIP": "10.0.0.9", "phase": "Running"}, "ownerReferences": 3},
]


async def test_an_odd_object_of_a_cluster_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """In a list and in a watch; each is logged once, and the good pods before, between and behind them are targets."""
    listed = {
        "metadata": {"resourceVersion": "1"},
        "items": [pod("a", address="10.0.0.1"), *ODD_PODS, pod("b", address="10.0.0.2")],
    }
    events = [{"type": "MODIFIED", "object": odd} for odd in ODD_PODS] + [
        {"type": "ADDED", "object": pod("c", address="10.0.0.3")}
    ]

    async def answer(request: web.Request) -> web.Response:
        if "watch" not in request.query:
            return web.json_response(listed)
        return web.Response(body=b"".join(json.dumps(event).encode() + b"\n" for event in events))

    async with serving(answer) as url:
        read = asyncio.Event()
        discovered = DiscoveredTargets("pods", lambda: read.set() if len(addresses(discovered)) == 3 else None)
        spec = KubernetesSpec(api_server=url.rstrip("/"), namespaces=("default",))
        task = asyncio.create_task(Kubernetes(spec, LABEL_NAMES, discovered).run())
        async with asyncio.timeout(HANG_S):
            await read.wait()
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert addresses(discovered) == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]
    odd = [record.getMessage() for record in caplog.records if "is no pod of Kubernetes" in record.getMessage()]
    assert len(odd) == len(set(odd)) >= 4


HUNG = """
import sys, time
from prober.features.discovery import lists
lists.read_regular = lambda *_: (print("reading", file=sys.stderr, flush=True), time.sleep(3600))
from prober.cli.main import main
sys.argv = ["prober", *sys.argv[1:]]
main()
"""


def test_sigterm_ends_a_prober_that_still_reads_a_file(tmp_path: Path) -> None:
    """A file on a disk that does not answer, of which no read ends."""
    (tmp_path / "targets.json").write_text("[]")
    (tmp_path / "prober.yaml").write_text(f"discovery: [{{name: hung, file: {{files: ['{tmp_path}/targets.json']}}}}]")
    options = ["run", f"--config.file={tmp_path}/prober.yaml", f"--web.listen-address=127.0.0.1:{free_port()}"]
    with subprocess.Popen([sys.executable, "-c", HUNG, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        awaited = {"probing", "reading"}
        while awaited:
            line = process.stderr.readline()
            assert line
            awaited -= {word for word in awaited if word in line}
        process.send_signal(signal.SIGTERM)
        lines = process.stderr.read()
        assert process.wait(HANG_S) == 0
    assert "a file is still being read" in lines

"""A server that puts hostile characters wherever it may choose a text, and everything that people read of it."""

import csv
import io
import json
import logging
import re
import sys
import unicodedata
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt
from prometheus_client.parser import text_string_to_metric_families
from rich.table import Table

from prober.cli.console import Terminal
from prober.features.grafana.sync import mark_of
from prober.measure.target_state import TargetEvent
from prober.net.log_lines import Format, LogLine
from tests import commands
from tests.processes import Daemon, get, until
from tests.scripted import Asked, Script, threaded
from tests.web.test_page import Read
from tests.wire.heads import body

FORGED = "FORGED=1"
HOSTILE = (
    f"=1+1\x1b[31mred\x1b]0;title\x07\n{FORGED}\r\n{FORGED}\x9b2J\u202elive\u2066\u200b\u200d\u2028{FORGED}\ufeff"
    "<script>alert(1)</script><b>b</b>[l](http://evil.example)![i](//evil.example/i.png)https://evil.example www.evil.example "
    "a@evil.example &lt;i&gt; &#x202e; | c | `x` *x* _x_ ~~x~~ [bold]r[/] {{ 7*7 }} ${jndi:x} \"q\\ 'q'"
)
HEADER = "\x9b31m\u00adred<script>|`"  # what a header of HTTP can carry
Address = Callable[[str], str]  # base URL of the server that answers in a mode
NAMES = ("names", "failing", "in_stream", "finish", "no_http", "several", "plain", "html", "redirect")


def reply(asked: Asked) -> Script:
    """The first part of the path says how it answers."""
    mode, path = asked.path.split("/")[1], asked.path.rsplit("/", 1)[-1]
    if asked.method == "GET":
        ids = [HOSTILE, f"{HOSTILE}2"] if mode == "several" else [HOSTILE]
        pages = {
            "models": ({"data": [{"id": name, "owned_by": "vllm"} for name in ids]}, "application/json"),
            "version": ({"version": HOSTILE}, "application/json"),
            "metrics": (page(), "text/plain; version=0.0.4"),
        }
        return answer("200", *pages[path]) if path in pages else answer("404", "")
    match mode:
        case "failing":
            return answer("500", {"error": {"message": HOSTILE, "type": HOSTILE}})
        case "no_http":
            return f"{HOSTILE}\r\n\r\n".encode()
        case "plain":
            return answer("200", HOSTILE, "text/plain")
        case "html":
            return answer("503", HOSTILE, "text/html")
        case "redirect":
            return answer("302", HOSTILE)
    return answer("200", "".join(stream(mode)), "text/event-stream")


def answer(status: str, content: Any, kind: str = "application/json") -> Script:
    names = ("Server", "Location", "Retry-After", "X-RateLimit-Remaining-Requests")
    return body(f"{status} {HEADER}", content, f"Content-Type: {kind}", *(f"{name}: {HEADER}" for name in names))


def stream(mode: str) -> Iterator[str]:
    """Events of an answer of 16 to 48 tokens."""
    for _ in range(16):
        yield event({"model": f"{HOSTILE}!", "choices": [{"delta": {"content": HOSTILE}}]})
    if mode == "in_stream":
        yield event({"error": {"message": HOSTILE, "code": HOSTILE}})
    finish = HOSTILE if mode == "finish" else "length"
    usage = {"prompt_tokens": 50, "completion_tokens": 48}
    yield event({"choices": [{"delta": {}, "finish_reason": finish}], "usage": usage})
    yield "data: [DONE]\n\n"


def event(document: object) -> str:
    return f"data: {json.dumps(document)}\n\n"


def page() -> str:
    """A metrics page of vLLM whose labels are hostile, with a line that cannot be read."""
    text = HOSTILE.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    labels = f'{{model_name="{text}",engine="0"}}'
    config = f'vllm:cache_config_info{{block_size="{text}",cache_dtype="{text}",engine="0"}} 1'
    return f"vllm:num_requests_running{labels} 0\nvllm:num_requests_waiting{labels} 0\n{config}\n{text} {{broken\n"


def assert_shown(text: str, where: str) -> None:
    """No character that controls or hides."""
    bad = {sign for sign in text if sign not in "\n\t" and unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert not bad, (where, bad)


def assert_harmless(text: str, where: str) -> None:
    """Nor a line of the server's making."""
    assert_shown(text, where)
    assert not re.search(rf"^\W*{FORGED}", text, re.MULTILINE), where


def assert_inert(html: str, where: str) -> None:
    """Nothing of the server has become markup."""
    assert_shown(html, where)
    read = Read(html)
    assert not {tag for tag, _ in read.tags} & {"img", "iframe", "i"} or where.startswith("/"), where
    addresses = read.all("href") + read.all("src")
    assert not [address for address in addresses if "evil" in urllib.parse.unquote(address).split("?")[0]], where
    assert not [attributes for tag, attributes in read.tags if tag == "script" and "alert" in str(attributes)], where
    assert not re.search(r"<script[^>]*>[^<]*alert\(1\)", html), where
    assert "<script>alert" not in html, where
    assert "<b>b</b>" not in html, where


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    with threaded(reply) as url:
        yield lambda mode: f"{url}/{mode}/v1"


def prober(*words: object) -> str:
    """Standard output and error of a command."""
    ended = commands.prober(*words)
    return ended.stdout + ended.stderr


@pytest.mark.parametrize("mode", NAMES)
def test_a_probe_on_a_terminal(address: Address, mode: str) -> None:
    """Whatever ends it."""
    text = prober("once", address(mode))
    assert_harmless(text, mode)
    assert text.startswith("ok ") == (mode in ("names", "finish")), text


def test_a_probe_as_json(address: Address) -> None:
    """It is valid, and its names and messages are one line."""
    answer = json.loads(prober("once", address("names"), "--json"))
    assert_shown(" ".join(str(value) for value in answer.values()), "names")
    assert "\n" not in answer["detail"] + answer["model"] + answer["answered_model"]
    assert answer["answered_model"] == answer["model"] + "!"


def test_commands_and_their_files(address: Address, tmp_path: Path) -> None:
    """Sweep, gate, compare, matrix and diagnose; their reports as Markdown, HTML and CSV."""
    rows = tmp_path / "rows.yaml"
    rows.write_text(
        "rows: [{name: a, prompt_tokens: 20, output_tokens: 48, rate: 50/s, requests: 10, accept: ['ttft<5s:50%']}]"
    )
    names, failing = address("names"), address("in_stream")
    fixed = ("--prompt-tokens", 20, "--output-tokens", 48)
    calls = (
        ("sweep", names, "--max-time", "1s", "--step", "500ms", "--warm-up", 2, "--output", "sweep.json",
         "--max-rate", "2/s", *fixed),
        ("sweep", failing, "--max-time", "1s", "--step", "500ms", "--warm-up", 2, *fixed),
        ("gate", names, "--slo", "ttft<5s:50%", "--rate", "50/s", "--burst", "0s", "--max-requests", 40,
         "--output", "gate.json", *fixed),
        ("gate", failing, "--slo", "ttft<5s:50%", "--rate", "50/s", "--burst", "0s", "--max-requests", 40,
         "--output", "bad.json", *fixed),
        ("compare", names, failing, "--rounds", 6, "--requests", 2, "--rate", "50/s", "--cool-down", "0s", *fixed),
        ("compare", "gate.json", "bad.json"),
        ("matrix", names, "--file", rows, "--output", "matrix.json"),
        ("matrix", address("several"), "--file", rows),
        ("diagnose", names, "--ttft", "1ms"),
        ("report", "gate.json", "bad.json"),
        ("report", "gate.json", "bad.json", "--format", "html"),
        ("report", "gate.json", "bad.json", "--format", "csv", "--requests"),
    )  # fmt: skip
    for name, *words in calls:
        paths = [tmp_path / str(word) if str(word).endswith(".json") else word for word in words]
        text = prober(name, *paths)
        assert_harmless(text, f"{name} {words}")
        assert "Traceback" not in text, text
    files = [
        path for path in (tmp_path / f"{name}.json" for name in ("sweep", "gate", "bad", "matrix")) if path.exists()
    ]
    assert len(files) == 4, files
    for path in files:
        json.loads(path.read_text())
        assert_reports(path)


def assert_reports(path: Path) -> None:
    """The reports of a result file: nothing in them is markup, a link or a formula."""
    markdown = path.with_suffix(".md")
    assert prober("report", path, "--output", markdown) == ""
    text = markdown.read_text()
    assert "evil" in text, "the hostile model stands in the report"
    assert_harmless(text, str(markdown))
    assert not re.search(r"(?<!\\)://evil", text)
    assert "www.evil" not in text, "GitHub makes links of plain addresses"
    for renderer in (
        MarkdownIt("commonmark").enable(["table", "strikethrough"]),
        MarkdownIt("gfm-like", {"linkify": False}),
    ):
        rendered = renderer.render(text)
        assert not {tag for tag, _ in Read(rendered).tags} & {"script", "b", "i", "img", "a", "s", "del"}, rendered
        assert not re.search("[\u202a-\u202e]", rendered)
    html = path.with_suffix(".html")
    prober("report", path, "--format", "html", "--output", html)
    assert_inert(html.read_text(), str(html))
    for flags in ((), ("--requests",)):
        table = path.with_suffix(".csv")
        prober("report", path, "--format", "csv", "--output", table, *flags)
        assert_harmless(table.read_text(), str(table))
        for row in csv.reader(io.StringIO(table.read_text())):
            for cell in row:
                assert not re.match(r"[=+@\t]|-(?![\d.]+$)", cell), cell


def read_pages(url: str) -> list[dict[str, Any]]:
    """The targets, once the page of each is harmless. One that takes its model's name meanwhile has no page by the other one."""
    listed: list[dict[str, Any]] = json.loads(get(f"{url}/api/v1/targets"))["data"]
    for path in ("/", *(f"/?target={urllib.parse.quote(target['name'])}" for target in listed)):
        assert_inert(get(url + path), path)
    return listed


def test_everything_that_a_daemon_says(address: Address, tmp_path: Path) -> None:
    """Log, page, API and series, while a neighbour goes by its own name."""
    targets: list[dict[str, object]] = [{"name": mode, "url": address(mode)} for mode in NAMES[1:]]
    targets.append({"url": address("names")})  # its name is the model's
    config = {
        "defaults": {"rate": "5/s", "arrivals": "constant", "warmup": 0, "connect_lead": "50ms"},
        "targets": targets,
    }
    with Daemon(
        tmp_path, yaml.safe_dump(config), "--log.level", "debug", "--storage.path", tmp_path / "store"
    ) as daemon:
        until(lambda: daemon.value("llmslo_engine_info"), "an identity")
        until(
            lambda: all(
                json.loads(get(f"{daemon.url}/api/v1/probes?limit=500&target={mode}"))["data"] for mode in NAMES[1:]
            ),
            "probes of all targets",
        )
        until(lambda: "answers name the model" in get(f"{daemon.url}/api/v1/events"), "an event")
        listed = until(lambda: read_pages(daemon.url), "pages of all targets")
        assert {"red" in target["name"] for target in listed} == {True, False}
        for path in ("targets", "probes?limit=500", "events", "sweeps"):
            text = get(f"{daemon.url}/api/v1/{path}")
            assert_shown(text, path)
            json.loads(text)
        metrics = get(f"{daemon.url}/metrics")
        assert_harmless(metrics, "metrics")
        families = list(text_string_to_metric_families(metrics))
        labels = {value for family in families for sample in family.samples for value in sample.labels.values()}
        assert any("evil" in value for value in labels)
        assert max(map(len, labels)) <= 300
        daemon.stop()
    log = (tmp_path / "log").read_text()
    assert "evil" in log
    for line in log.splitlines():
        assert_harmless(line, line)
        assert re.fullmatch(r'time=\S+ level=\w+ msg="(?:\\.|[^"\\])*"', line), line
    assert not {line for line in log.split("\n") if line and not line.startswith("time=")}


@pytest.mark.parametrize("kind", Format)
def test_a_log_record_is_one_line(kind: Format) -> None:
    """With the trace of an exception too, in both formats."""
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 1, "target=%s", (HOSTILE,), sys.exc_info())
    line = LogLine(kind).format(record)
    assert_harmless(line, line)
    assert "\n" not in line
    assert "ValueError" in (json.loads(line)["msg"] if kind is Format.JSON else line)


def test_an_annotation_is_text() -> None:
    """Grafana shows its text as HTML."""
    mark = mark_of(TargetEvent(0.0, HOSTILE, "engine", HOSTILE))
    assert_inert(mark["text"], "annotation")
    assert_shown(" ".join(mark["tags"]), "tags")


def test_texts_of_a_terminal_are_printable_in_every_part() -> None:
    """Printed words, cells and headings of tables."""
    terminal = Terminal(file=io.StringIO(), width=4_000)
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    terminal.print(table)
    terminal.print(HOSTILE, markup=False)
    assert isinstance(terminal.file, io.StringIO)
    assert_shown(terminal.file.getvalue(), "terminal")

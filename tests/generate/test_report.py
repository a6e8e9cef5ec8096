"""The report: what it says, what it never claims, and that its HTML needs nothing from elsewhere."""

import csv
import http.server
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from prober.analysis.quantiles import Quantile
from prober.generate import plots, sheet
from prober.generate.report import html, markdown
from prober.results.result import Load, Result, Stage, Target, Use
from tests.results.samples import sweep

BARE = Result("bare", "run", 0.0, 0.0, "tool", Target(), Load(), ())
FIGURES = [
    *("TTFT over load", "TPOT over load", "ITL over load", "E2E over load"),
    *("Throughput against TTFT", "Throughput against TPOT"),
    *("Distribution of TTFT", "Distribution of ITL", "Stages over time"),
]


def section(text: str, title: str) -> str:
    """A section of a Markdown report."""
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def row(text: str, *begins: str) -> list[str]:
    """The cells of the table row that begins so."""
    for line in filter(lambda line: line.startswith("|"), text.splitlines()):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[: len(begins)] == list(begins):
            return cells
    raise AssertionError(f"no row {begins} in\n{text}")


def test_the_verdict_is_first() -> None:
    """Decision, which SLO gives way, why it ended, capacities with intervals, the contract by stage."""
    text = markdown([sweep()])
    found = section(text, "Verdict")
    assert text.index("## Verdict") < text.index("## What was measured")
    assert "Accepted: it is faster. Rollback risk: low. The SLO ttft gives way first. Why it ended: decided." in found
    assert row(found, "ttft")[1:6] == ["found", "10", "12", "13", "1,500"]
    assert row(found, "tpot")[1:4] == ["*not reached*", "16.5", "*unknown*"]
    assert "| stage | ttft: 99% of ttft within 500 ms | tpot: 95% of tpot within 30 ms |" in found
    assert row(found, "16/s")[1:] == ["**missed** 90% of 120", "met 100% of 108"]
    assert row(found, "1/s")[1:] == ["*undecided* 100% of 120", "met 100% of 120"]


def test_every_percentile_has_its_interval_and_its_count() -> None:
    """And is marked where there are too few samples."""
    found = section(markdown([sweep()]), "Latency")
    head = row(found, "stage")
    assert head == ["stage", "latency", "samples", "p50", "p75", "p90", "p95", "p99", "p99.9", "max", "p99/p50"]
    ttft = row(found, "4/s", "TTFT")
    assert ttft[2] == "120"
    assert ttft[3].count("[") == 1  # Markdown's [ is escaped, and there is one interval
    assert "*" not in ttft[5]
    assert ttft[7].startswith("*")
    assert "?" in ttft[7]
    itl = row(found, "4/s", "ITL")
    assert itl[2] == "840"


def test_throughput_use_outcomes_and_cost() -> None:
    """Prompt and output tokens apart, in all, a GPU and a request; failures by kind; dollars a million tokens."""
    result = sweep()
    text = markdown([result])
    throughput = dict(
        zip(row(section(text, "Throughput"), "stage"), row(section(text, "Throughput"), "16/s"), strict=True)
    )
    stage = result.stages[2]
    assert throughput["sent"] == "120"
    assert throughput["there already /s"] == "0.5"
    assert throughput["output tokens/s"] == f"{stage.output_tokens_per_s:.4g}"
    assert throughput["output tokens/s a GPU"] == f"{(stage.output_tokens_per_s or 0) / 2:.4g}"
    assert throughput["output tokens a request"] == "8"
    assert row(section(text, "Outcomes"), "16/s") == ["16/s", "108 ok, 12 http_5xx", "10%"]
    use = dict(
        zip(
            row(section(text, "What engine and GPUs said"), "stage"),
            row(section(text, "What engine and GPUs said"), "4/s"),
            strict=True,
        )
    )
    assert (use["running"], use["KV cache, peak"], use["power, W"]) == ("8", "40%", "*unknown*")
    dollars = 2 * 2.0 / 3600 / (stage.output_tokens_per_s or 1) * 1e6
    assert row(section(text, "Cost"), "16/s")[2] == f"{dollars:.4g}"


def test_the_audit_is_the_results_own() -> None:
    """Done, not done and unknown come from the data."""
    found = section(markdown([sweep()]), "How it was measured")
    assert row(found, "open loop")[1] == "done poisson arrivals, whatever becomes of the requests"
    assert row(found, "tails")[1].startswith("**not done**")
    other = section(markdown([replace(sweep(), load=Load(arrivals="closed"))]), "How it was measured")
    assert row(other, "open loop")[1].startswith("**not done** closed")
    assert row(other, "realistic lengths")[1].startswith("*unknown*")


def test_what_nobody_knows_is_marked() -> None:
    """No field of the context is left out, none is made up; a result that knows nothing makes a report."""
    found = section(markdown([sweep()]), "Context")
    assert row(found, "GPU")[1] == "NVIDIA L4"
    assert row(found, "CUDA")[1] == row(found, "attention backend")[1] == "*unknown*"
    assert row(found, "interference")[1] == "none seen"
    bare = markdown([BARE])
    assert "There is no contract to judge it by" in bare
    assert row(section(bare, "Context"), "interference")[1] == "*unknown*"
    assert row(section(bare, "What was measured"), "started")[1] == "*unknown*"
    assert "done" not in section(bare, "How it was measured").replace("not done", "")
    assert "<svg" not in html([BARE])
    unread = replace(sweep(), stages=tuple(replace(each, use=Use()) for each in sweep().stages))
    assert section(markdown([unread]), "What engine and GPUs said").startswith("\nUnknown where it is not shown")
    assert "Unknown where" not in markdown([sweep()])


def test_results_stand_side_by_side() -> None:
    """Named apart even if they are called alike; a colour each in one chart."""
    text = markdown([sweep(), sweep(seed=2)])
    assert row(section(text, "What was measured"), "") == ["", "sweep-1 (1)", "sweep-1 (2)"]
    assert row(section(text, "Latency"), "sweep-1 (2)", "4/s", "TTFT")[3] == "120"
    page = html([sweep("a"), sweep("b", seed=2)])
    curve = page[page.index("TTFT, p50 and p99</text></svg>") :].split("</figure>")[0]
    assert ">a</span>" in curve
    assert ">b</span>" in curve
    assert "Distribution of TTFT, a" in page
    assert "Distribution of TTFT, b" in page


def test_repeats_show_their_spread() -> None:
    """Stages of one rate, from the least to the most."""
    first = sweep()
    twice = replace(first, stages=(*first.stages, replace(sweep(seed=5).stages[1], repeat=2)), repeats=2)
    found = row(section(markdown([twice]), "Repeats"), "4/s")
    assert found[1] == "2"
    assert "to" in found[2]
    assert "## Repeats" not in markdown([first])


def test_curves_use_the_load_that_was_there_too() -> None:
    """A capacity is of the whole load; a closed loop has the rate it came to."""
    stage = sweep().stages[0]
    assert plots.rate_of(stage) == 1.5
    assert plots.rate_of(replace(stage, rate_per_s=None, demand_per_s=None)) == stage.requests_per_s
    assert plots.rate_of(replace(stage, rate_per_s=None, duration_s=None)) is None


def test_figures_without_requests_make_charts_too() -> None:
    """Percentiles that a tool tells are drawn through; without times there is no timeline."""
    known = {
        "ttft": tuple(Quantile(q, 0.1 + q, None, None, 0) for q in (0.5, 0.99)),
        "itl": (Quantile(0.5, 0.01, None, None, 0),),
    }
    result = replace(BARE, stages=(Stage("8/s", 8.0, None, None, 10.0, 80, 80, latencies=known, output_tokens=800.0),))
    page = html([result])
    assert "TTFT over load" in page
    assert "Distribution of TTFT" in page
    assert "Stages over time" not in page


HOSTILE = '<img src="http://127.0.0.1:{port}/taken"><script>document.title = 1</script>|`x`\n## Verdict'


def test_a_name_is_never_markup() -> None:
    """Texts come from targets and from files."""
    name = HOSTILE.format(port=1)
    result = replace(sweep(), target=Target(model=name), id=name)
    page, text = html([result]), markdown([result])
    assert "<script" not in page
    assert "<img" not in page
    assert "\n## Verdict" in text
    assert text.count("\n## Verdict") == 1
    assert "<img" not in text.replace("\\<img", "")


class Loads(HTMLParser):
    """What a page could load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.policy: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "link", "img", "iframe", "object", "embed", "base", "use", "image", "a", "form"):
            self.found.append(tag)
        self.found += [
            name for name in values if name in ("src", "href", "xlink:href", "srcset") or name.startswith("on")
        ]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]


def test_the_page_names_nothing_to_load() -> None:
    """No link, no script, no picture; its own policy forbids it."""
    page = html([sweep("a"), sweep("b")])
    loads = Loads()
    loads.feed(page)
    assert loads.found == []
    assert loads.policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert "url(" not in page
    assert "@import" not in page


@pytest.fixture
def hits() -> Iterator[tuple[int, list[str]]]:
    """A server's port, and what was asked of it."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port, asked
        server.shutdown()
        thread.join()


def browse(chromium: Path, page: Path, *options: str) -> str:
    """The page as real Chromium has it after loading; no name can be resolved."""
    command = [
        *(str(chromium), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
        *("--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
        *(f"--user-data-dir={page.parent / 'profile'}", "--window-size=1280,1600", *options, f"file://{page}"),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout


def test_a_browser_shows_every_chart_and_loads_nothing(
    chromium: Path, tmp_path: Path, hits: tuple[int, list[str]]
) -> None:
    """Real Chromium without a network: all charts are in the page, and nobody is asked for anything."""
    port, asked = hits
    name = HOSTILE.format(port=port)
    page = tmp_path / "report.html"
    page.write_text(html([replace(sweep(), target=Target(model=name, url=name))]))
    seen = browse(chromium, page, "--dump-dom")
    assert [title for title in FIGURES if f"<b>{title}.</b>" not in seen] == []
    assert seen.count('<svg class="chart"') == len(FIGURES)
    assert "NaN" not in seen
    assert asked == []
    control = tmp_path / "control.html"
    control.write_text(name)
    browse(chromium, control, "--dump-dom")
    assert asked == ["/taken"]  # so the page above would have been caught


def test_a_browser_draws_it_in_light_and_in_dark(chromium: Path, tmp_path: Path) -> None:
    """The reader's own colours; a chart is more than an empty page."""
    page, empty = tmp_path / "report.html", tmp_path / "empty.html"
    page.write_text(html([sweep()]))
    empty.write_text("<p>")
    sizes = {}
    for name, file, scheme in (("light", page, 1), ("dark", page, 0), ("empty", empty, 1)):
        picture = tmp_path / f"{name}.png"
        browse(chromium, file, f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={picture}")
        sizes[name] = picture.read_bytes()
    assert len(sizes["light"]) > 5 * len(sizes["empty"])
    assert sizes["light"] != sizes["dark"]


def test_csv_has_a_row_a_stage() -> None:
    """With vLLM's names where it has them; nothing a spreadsheet would run."""
    result = replace(sweep(), target=Target(model="=HYPERLINK(1)"))
    rows = list(csv.DictReader(sheet.stages([result, sweep("b")]).splitlines()))
    assert [each["stage"] for each in rows] == ["1/s", "4/s", "16/s"] * 2
    assert rows[0]["model_id"] == "'=HYPERLINK(1)"
    assert float(rows[2]["p99_ttft_ms"]) > float(rows[0]["p99_ttft_ms"])
    assert (rows[2]["outcome_http_5xx"], rows[0]["outcome_http_5xx"]) == ("12", "")
    assert rows[0]["gpu_utilization_mean_ratio"] == ""
    assert rows[0]["running_mean"] == "2.0"


def test_csv_has_a_row_a_request() -> None:
    """Seconds; what is not known is empty."""
    rows = list(csv.DictReader(sheet.requests([sweep()]).splitlines()))
    assert len(rows) == 360
    assert rows[240]["outcome"] == "http_5xx"
    assert rows[240]["ttft"] == ""
    assert rows[0]["start_time"] == "0.0"
    assert len(rows[0]["itls"].split()) == 7
    assert sheet.requests([BARE]) == "\n"

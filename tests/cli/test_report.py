"""`prober report` and `prober plan` as people run them."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from prober.results import comparison
from prober.results.capacity import Capacity
from prober.results.comparison import Compared, Comparison
from prober.results.result import Load, MeasuredTarget, Prices
from prober.results.result_file import from_json, to_json
from prober.statistics.quantiles import Quantile
from tests.commands import prober
from tests.results.samples import TTFT, sweep

COMPARISON = Comparison(
    id="compare-1",
    started_unix_s=1_760_000_000.0,
    ended_unix_s=1_760_000_600.0,
    tool="llm-slo-prober 9.9.9",
    a=MeasuredTarget("http://a/v1", "one"),
    b=MeasuredTarget("http://b/v1", "two"),
    load=Load("probe", "128", "32", arrivals="poisson"),
    error=0.05,
    compared=(
        Compared(
            *("ttft_p50", 2.0, True, 12, 0.3, 0.22, 0.38, 0.002, 0.014, "a"),
            a=Quantile(0.5, 0.05, 0.049, 0.051, 240),
            b=Quantile(0.5, 0.065, None, None, 12),
        ),
    ),
    differs=(("version", "0.31.0", "0.32.0"),),
    remarks=("A serves model one, B two",),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.json"
    path.write_text(to_json(sweep()))
    return path


def test_a_report_in_each_format(file: Path, tmp_path: Path) -> None:
    """Markdown on standard output by default; others into a file."""
    done = prober("report", file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# Sweep: org/model-7b\n")
    page = tmp_path / "report.html"
    done = prober("report", file, "--format", "html", "--output", page)
    assert (done.returncode, done.stdout) == (0, "")
    assert page.read_text().count("<svg") == 9
    rows = list(csv.DictReader(prober("report", file, "--format", "csv").stdout.splitlines()))
    assert [row["stage"] for row in rows] == ["1/s", "4/s", "16/s"]
    requests = prober("report", file, "--format", "csv", "--requests").stdout.splitlines()
    assert len(requests) == 361
    again = prober("report", file, "--format", "json").stdout
    assert from_json(again, "again") == sweep()


def test_another_tools_file_beside_ours(file: Path, tmp_path: Path) -> None:
    """Side by side, with what its figures mean."""
    other = tmp_path / "vllm.json"
    document = {"model_id": "m", "request_throughput": 1.0, "total_input_tokens": 5, "output_throughput": 2.0}
    other.write_text(json.dumps(document | {"completed": 2, "duration": 2.0, "median_ttft_ms": 50.0}))
    done = prober("report", file, other)
    assert done.returncode == 0, done.stderr
    assert "| sweep-1 |" in done.stdout
    assert "vllm bench serve: ITL is the gap between chunks" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{file}", "--requests"], 2, "--requests: only --format csv has rows of requests"),
        (["{file}", "{file}", "--format", "json"], 2, "--format json: writes one result, 2 are named"),
        (["{folder}/none.json"], 1, "none.json: cannot be read: No such file or directory"),
        (["{folder}/bad.json", "{folder}/none.json"], 1, "bad.json: is a file of no tool that is known"),
        (["{folder}/binary", "{file}"], 1, "binary: is no text"),
        (["{folder}/empty.json"], 1, "empty.json: holds no JSON object; name a result's file"),
        (["{folder}"], 1, "cannot be read: Is a directory"),
        (["{folder}/cut.json"], 1, "cut.json: is no JSON"),
        (["{folder}/cut.jsonl"], 1, "name a result's JSON file, and write it again if it was cut"),
        (
            ["{folder}/newer.json"],
            1,
            "newer.json: llm_slo_prober.format: is 99, this prober reads 10; use the version",
        ),
        (["{folder}/versus.json", "{file}"], 2, "results and comparisons have no common report"),
        (["{folder}/versus.json", "--format", "csv"], 2, "a comparison has no stages"),
        (["{file}", "--output", "{folder}/no/report.md"], 7, "report.md: cannot be written: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_said(file: Path, arguments: list[str], code: int, message: str) -> None:
    """In a line, with the exit code of its kind; every file that cannot be read is named."""
    (file.parent / "bad.json").write_text('{"a": 1}')
    (file.parent / "binary").write_bytes(b"\xff\xfe\x00")
    text = file.read_text()
    for name, content in {
        "empty.json": "\n",
        "cut.json": text[: len(text) // 2],
        "cut.jsonl": '{"metadata": {"request_start_ns": 1}, "metrics": {}}\n{"metadata": {"request_sta',
        "newer.json": text.replace('"format":10', '"format":99'),
        "versus.json": comparison.to_json(COMPARISON),
    }.items():
        (file.parent / name).write_text(content)
    done = prober("report", *(argument.format(file=file, folder=file.parent) for argument in arguments))
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_comparison_is_shown_again(tmp_path: Path) -> None:
    """With what the figures do not say, in Markdown, HTML and as it was kept."""
    saved = tmp_path / "versus.json"
    saved.write_text(comparison.to_json(COMPARISON))
    output = prober("report", saved).stdout
    assert "| ttft_p50 | 50 ms | 65 ms\\* | +30.0% | +22.0 to +38.0% | 0.014 | A |" in output
    assert "| version | 0.31.0 | 0.32.0 |" in output
    assert "A serves model one" in output
    page = prober("report", saved, "--format", "html").stdout
    assert "<h2>Figures</h2>" in page
    assert "<script" not in page
    assert json.loads(prober("report", saved, "--format", "json").stdout) == json.loads(saved.read_text())
    done = prober("plan", "--sweep", saved, "--peak", "1/s")
    assert (done.returncode, "is a comparison, not a result" in done.stderr) == (1, True)


def test_a_plan_of_two_kinds_of_gpu(file: Path, tmp_path: Path) -> None:
    """Side by side, in the order given."""
    faster = tmp_path / "faster.json"
    capacities = (Capacity("ttft", "found", 20.0, 24.0, 26.0, samples=2000), sweep().capacities[1])
    faster.write_text(to_json(replace(sweep("faster"), capacities=capacities)))
    arguments = ("--sweep", file, "--sweep", faster, "--peak", "100/s", "--gpu", "L4", "--gpu", "H100")
    done = prober("plan", *arguments, "--gpu-price", "0.8", "--gpu-price", "2.5")
    assert done.returncode == 0, done.stderr
    lines = {line.split("  ")[0]: line.split()[-2:] for line in done.stdout.splitlines()}
    assert lines["instances"] == ["13", "8"]
    assert lines["GPUs"] == ["26", "16"]
    assert lines["one carries"] == ["≥", "16.5/s"]  # of the second, by its TPOT
    assert lines["an hour"] == ["$20.8", "$40"]
    assert "the sweep reached no knee" in done.stdout
    assert "What one carries is the lower bound of the 90% interval of the estimated knee" in done.stdout
    assert lines["estimated knee"] == ["12/s", "–"]


def test_a_plan_says_where_it_assumes_the_number_of_gpus(tmp_path: Path) -> None:
    """No source knows how many GPUs an instance has: 1 is used, and said; an option ends that."""
    saved = tmp_path / "unknown.json"
    saved.write_text(to_json(replace(sweep(), stages=tuple(replace(stage, gpus=None) for stage in sweep().stages))))
    assumption = "the number of GPUs of an instance is not known, and 1 is assumed; name it with --gpus-per-instance"
    assert assumption in prober("plan", "--sweep", saved, "--peak", "10/s").stdout
    assert assumption not in prober("plan", "--sweep", saved, "--peak", "10/s", "--gpus-per-instance", "2").stdout
    (planned,) = json.loads(prober("plan", "--sweep", saved, "--peak", "10/s", "--json").stdout)["plans"]
    assert planned["is_gpu_count_assumed"] is True


def test_a_plan_says_whether_it_bears_the_loss_of_one_instance(file: Path) -> None:
    """By the lower bound and by the estimate: nine of 10 to 12/s may carry 91/s, one does not carry 19.9/s, and eleven carry 91/s."""
    carried = "the other 9 carry 90/s by the lower bound and 108/s by the estimate of"
    for peak, sentence in (
        ("91/s", f"the loss of one may break the SLO: {carried} 91/s; take 11 (N + 1)."),
        (
            "19.9/s",
            "the loss of one breaks the SLO: the other carries 10/s by the lower bound and 12/s by the estimate of",
        ),
        ("9.9/s", "its loss leaves no other; take 2 (N + 1)."),
    ):
        assert f"NVIDIA L4: {sentence}" in prober("plan", "--sweep", file, "--peak", peak, "--headroom", "0%").stdout
    spare = prober("plan", "--sweep", file, "--peak", "91/s").stdout
    assert (
        "after the loss of one the other 11 carry 110/s by the lower bound and 132/s by the estimate of 91/s." in spare
    )
    (planned,) = json.loads(prober("plan", "--sweep", file, "--peak", "91/s", "--json").stdout)["plans"]
    assert (planned["instances"], planned["holds_without_one"]) == (12, True)


def test_a_sweep_that_shows_no_limit_of_the_target_is_not_sized(file: Path, tmp_path: Path) -> None:
    """One whose requests the prober did not send, and one whose lower bound is above the upper."""
    path = tmp_path / "odd.json"
    path.write_text(to_json(replace(sweep(), stop="not_sent")))
    done = prober("plan", "--sweep", path, "--peak", "10/s")
    assert (done.returncode, "the prober did not send the load" in done.stdout) == (1, True)
    path.write_text(to_json(replace(sweep(), slos=(TTFT,), capacities=(Capacity("ttft", "found", 20.0, 15.0, 12.0),))))
    done = prober("plan", "--sweep", path, "--peak", "10/s")
    assert (done.returncode, "its lower bound 20/s is above the upper, 12/s" in done.stdout) == (1, True)


def test_a_plan_for_machines(file: Path) -> None:
    """The document has the demand and each answer."""
    done = prober("plan", "--sweep", file, "--peak", "100/s", "--headroom", "0%", "--gpus-per-instance", "1", "--json")
    document = json.loads(done.stdout)
    assert document["demand"] == {"peak_per_s": 100.0, "headroom": 0.0, "users": None}
    (plan,) = document["plans"]
    assert (plan["gpu"], plan["instances"], plan["gpus"], plan["slo"]) == ("NVIDIA L4", 10, 10, "ttft")
    assert plan["dollars_per_hour"] == 20.0  # the price that the sweep was told


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--peak", "100"], 2, "--peak: '100' is not a rate"),
        (["--peak", "100/s", "--headroom", "20"], 2, "--headroom: '20' is not a percentage"),
        (["--peak", "100/s", "--headroom", "100%"], 2, "a headroom of 100%"),
        (["--peak", "100/s", "--gpu-price", "inf"], 2, "a GPU for inf dollars per hour: a price is a finite number"),
        (["--peak", "100/s", "--gpu", "A", "--gpu", "B"], 2, "--gpu: 2 are given for 1 sweeps"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(file: Path, arguments: list[str], code: int, message: str) -> None:
    """With the reason."""
    done = prober("plan", "--sweep", file, *arguments)
    assert done.returncode == code
    assert message in (done.stderr if code == 2 else done.stdout)
    assert "Traceback" not in done.stderr


def test_a_price_without_tokens_is_refused_where_it_is_asked_for(tmp_path: Path) -> None:
    """Asked for: with the reason. Told by the sweep alone: the size is known all the same, without money."""
    path = tmp_path / "uncounted.json"
    uncounted = tuple(replace(stage, output_tokens=None) for stage in sweep().stages)
    path.write_text(to_json(replace(sweep(), stages=uncounted)))
    done = prober("plan", "--sweep", path, "--peak", "100/s", "--gpu-price", "2")
    assert done.returncode == 1
    assert "a price needs tokens, and the sweep's answers had no usage" in done.stdout
    done = prober("plan", "--sweep", path, "--peak", "100/s")
    assert done.returncode == 0, done.stderr
    assert "instances" in done.stdout
    assert "$" not in done.stdout


def test_no_rate_meets_the_slo(tmp_path: Path) -> None:
    """Nothing is divided by zero; without a price nothing is said of money."""
    path = tmp_path / "s.json"
    failed = (Capacity("ttft", "below", upper=1.5, samples=900),)
    path.write_text(to_json(replace(sweep(), slos=(TTFT,), capacities=failed, prices=Prices())))
    done = prober("plan", "--sweep", path, "--peak", "10/s")
    assert done.returncode == 1
    assert done.stdout == "NVIDIA L4: the SLO 'ttft' fails at 1.5/s, and no lower rate is shown to hold\n"


def test_a_result_without_requests_is_reported_and_what_needs_them_says_so(tmp_path: Path) -> None:
    """A sweep that the daemon stored has figures and charts, but no rows of requests, no comparison and no baseline."""
    saved = tmp_path / "kept.json"
    saved.write_text(to_json(sweep().without_requests()))
    done = prober("report", saved)
    assert done.returncode == 0, done.stderr
    assert "12" in done.stdout
    page = prober("report", saved, "--format", "html")
    assert page.stdout.count("<svg") >= 2
    assert prober("plan", "--sweep", saved, "--peak", "100/s", "--gpu-price", "2").returncode == 0
    other = tmp_path / "other.json"
    other.write_text(to_json(sweep()))
    message = "holds the figures of its stages and none of its requests, as the daemon keeps a sweep; the file of `prober sweep"
    rows = prober("report", saved, "--format", "csv", "--requests")
    assert (rows.returncode, rows.stdout) == (1, "")
    assert f"{saved}: {message}" in rows.stderr
    both = prober("report", saved, other, "--format", "csv", "--requests")
    assert both.returncode == 0
    assert len(both.stdout.splitlines()) == 1 + len(sweep().requests)
    assert f"{saved}: {message}" in both.stderr
    compared = prober("compare", other, saved)
    assert compared.returncode != 0
    assert f"B {message}" in compared.stderr
    gated = prober("gate", "http://127.0.0.1:1", "--baseline", saved)
    assert gated.returncode == 2
    assert f"--baseline {saved} {message}" in gated.stderr

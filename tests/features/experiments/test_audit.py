"""The checklist: a set-up that meets every item, and what takes an item away."""

from dataclasses import replace

import pytest

from prober.features.experiments.audit import audit
from prober.features.experiments.report.report import markdown
from prober.results.context import with_context
from prober.results.facts import Context, Fact
from prober.results.result import Result, WarmUp
from tests.results.samples import sweep

FOUND = [
    Fact("precision", "bfloat16", "/server_info"),
    Fact("quantization", "none", "/server_info"),
    Fact("gpu", "NVIDIA L4", "NVML"),
    Fact("gpu_count", "2", "/server_info"),
    Fact("driver", "570.86, for CUDA up to 12.8", "NVML"),
]


def complete() -> Result:
    """A sweep as a careful person runs it: three rates, 1,000 requests and a minute or more at each."""
    base = sweep(count=1200)
    steady = WarmUp(50, 25.0, is_steady=True, changes={"TTFT": (-0.04, 0.05)})
    stages = tuple(replace(stage, quality=(9, 1)) for stage in base.stages)
    return with_context(replace(base, stages=stages, warm_up=steady, context=Context()), FOUND)


def test_a_complete_set_up_is_done_on_every_line() -> None:
    """Nothing in the checklist is out of reach, and the report shows it."""
    assert {check.name: check.why for check in audit(complete()) if check.done is not True} == {}
    shown = markdown([complete()]).split("## How it was measured")[1].split("##")[0]
    assert "not done" not in shown
    assert "*unknown*" not in shown


@pytest.mark.parametrize(
    ("given", "item", "why"),
    [
        (
            {"precision": "float16"},
            "precision",
            "sources disagree on precision: bfloat16 (/server_info) but float16 (configuration)",
        ),
        ({"gpu_count": "8"}, "hardware", "sources disagree on GPUs: 2 (/server_info) but 8 (configuration)"),
    ],
)
def test_a_fact_in_dispute_is_not_done(given: dict[str, str], item: str, why: str) -> None:
    """Both values are shown."""
    checks = {check.name: check for check in audit(with_context(complete(), (), given))}
    assert (checks[item].done, checks[item].why) == (False, why)


def test_an_engine_on_the_processor_has_hardware_too() -> None:
    """Processor and memory instead of GPUs."""
    bare = replace(complete(), context=Context())
    facts = [Fact("cpu", "64 × EPYC", "host"), Fact("host_ram", "512 GiB", "host")]
    checks = {check.name: check for check in audit(with_context(bare, facts, {"gpu": "none"}))}
    assert checks["hardware"].done
    assert checks["hardware"].why == "CPU 64 × EPYC, host RAM 512 GiB"

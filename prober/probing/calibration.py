"""Calibrates the length of prompts before a measurement, with three short requests."""

from random import Random

from prober.measure.outcome import ANSWERED, Outcome
from prober.probing.probe import run_probe
from prober.probing.target import Target
from prober.workload.prompt_length import PromptCalibration
from prober.workload.shapes import Fixed
from prober.workload.workloads import RequestGenerator, Workload

LEAD_NS = 100_000_000


async def calibrate(target: Target) -> None:
    """Send sample prompts, one after the other, until it is known how the server counts tokens, or cannot be known."""
    calibration = target.prompt_calibration = target.prompt_calibration or PromptCalibration()
    drawer = RequestGenerator(Workload("sample", Fixed(1), Fixed(1)), Random())
    while calibration.is_due:
        result = await run_probe(target, drawer, target.clock.now_ns() + LEAD_NS)
        if result is None:
            calibration.stop("the engine is loading or shutting down")
        elif result.outcome not in (*ANSWERED, Outcome.REJECTED):  # the probe itself stops at what is refused
            calibration.stop(f"a sample prompt was not answered ({result.outcome.value})")

"""`prober once`: sends one probe to a URL and draws its timeline. Modules that show the result are imported once there is one."""

import asyncio
import json
import sys
from contextlib import closing
from random import Random

from prober.cli.exit_codes import ExitCode, exit_on, fail
from prober.cli.options import AsJson, EndpointOptions, Url, WorkloadOptions, expand_options
from prober.cli.output import echo
from prober.cli.target import target
from prober.cli.target import workload as workload_of
from prober.config.problems import ConfigError
from prober.config.target import TargetSpec
from prober.measure.outcome import NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.net.clock import Clock
from prober.net.endpoint import BadEndpoint
from prober.probing.probe import run_probe
from prober.probing.target import Target
from prober.workload.workloads import RequestGenerator, unchecked_formats

EXIT = dict.fromkeys(Outcome, ExitCode.FAILED) | dict.fromkeys(NEUTRAL, ExitCode.NOT_JUDGED) | {Outcome.OK: ExitCode.OK}


@expand_options
def once(
    url: Url,
    workload_options: WorkloadOptions,
    endpoint: EndpointOptions,
    as_json: AsJson = False,
) -> None:
    """Send one probe and draw its timeline. Exit codes: 0 the outcome is ok, 1 the target fails, 2 wrong call, 4 not judged: it says
    nothing of the target, such as a request that is refused."""
    with exit_on(ConfigError, BadEndpoint, ValueError, command="once"):
        spec = target("once", url, endpoint, probes=[{"workload": workload_of(workload_options)}])
        result = asyncio.run(_send(spec))
    if result is None:
        fail("prober once: the engine is loading its model or shutting down; try again later", ExitCode.FAILED)
    for text in unchecked_formats(spec.probes[0].workload):
        echo(text, err=as_json)
    if as_json:
        from prober.web.api_types import ProbeAnswer  # here, as the probe needs no models of answers

        echo(json.dumps(ProbeAnswer.model_validate(result).model_dump()))
    else:
        from prober.cli.probe_drawing import draw  # here, as the probe needs no tables

        draw(result)
    sys.exit(EXIT[result.outcome])


async def _send(spec: TargetSpec) -> ProbeResult | None:
    with closing(Clock()) as clock:
        target = Target(spec, clock)
        await target.identify()  # so that finding out the model is not in the probe's time
        due = clock.now_ns() + 200_000_000
        result = await run_probe(target, RequestGenerator(spec.probes[0].workload, Random()), due)
        await asyncio.sleep(0)
        return result

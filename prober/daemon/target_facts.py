"""Facts about a target that can be found out before a run: of its server, of GPUs and host of this machine."""

import asyncio
from collections.abc import Collection

from prober.features.engines.context_reader import read_context
from prober.features.experiments.host import is_of_this_machine, read_host
from prober.features.gpu.hardware import read_hardware
from prober.probing.target import Target
from prober.results.facts import Fact

DRIVER_TIMEOUT_S = 10.0
_OF_READINGS = {"gpu", "gpu_count", "gpu_memory"}  # facts that the readings of the chosen GPUs state


async def read_facts(target: Target, gpus: Collection[str] | None) -> list[Fact]:
    """Facts in the order of trust. Nothing is raised: what cannot be read is unknown.

    gpus: UUIDs of the GPUs that serve the target, whose readings the result has; None: not known, so that those of this machine are
        taken for a loopback URL
    """
    facts = await read_context(target)
    chosen: Collection[int | str] | None = target.spec.gpus.indices if gpus is None else gpus
    if gpus or (gpus is None and chosen != () and (chosen or is_of_this_machine(target.spec.url))):
        try:
            async with asyncio.timeout(DRIVER_TIMEOUT_S):
                hardware = await asyncio.to_thread(read_hardware, chosen)
        except TimeoutError:
            hardware = []  # the driver hangs
        facts += [fact for fact in hardware if gpus is None or fact.name not in _OF_READINGS]
    return facts + read_host(target.spec.url)

"""Completes the context of a result from the configuration of its target and from facts about it."""

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace

from prober.config.target import TargetSpec
from prober.probing.target import Target
from prober.results.context import with_context
from prober.results.facts import Fact
from prober.results.result import Result

# Facts about a target, read once before a run. Second argument: UUIDs of the GPUs that serve it; None: not known.
ReadFacts = Callable[[Target, Collection[str] | None], Awaitable[list[Fact]]]


async def no_facts(target: Target, gpus: Collection[str] | None) -> list[Fact]:
    """No facts, where nothing can be read."""
    return []


def completed(result: Result, spec: TargetSpec, facts: Iterable[Fact], *, seed: int | None = None) -> Result:
    """The result with its context. facts: as they were found; seed: of the run's random draws."""
    configured, gpus = spec.context.configured, spec.gpus
    if gpus.count is not None:
        configured["gpu_count"] = str(gpus.count)
        if gpus.indices is None:  # GPUs that the prober merely sees need not serve the target
            result = replace(result, context=replace(result.context, gpu_count=None))
    streaming = Fact("streaming", "on" if spec.stream else "off", "requests")
    result = with_context(
        result,
        [streaming, *facts],
        configured,
        assumed=spec.context.checkpoint_facts,
        flags=spec.context.flags,
        gpu_price=gpus.price_per_hour,
        decode_model=spec.decode_bound.model if spec.decode_bound is not None else spec.context.decode_model,
    )
    return result if seed is None else replace(result, load=replace(result.load, seed=seed))

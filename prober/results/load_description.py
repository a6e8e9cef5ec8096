"""The load of a result as text: the distribution of its lengths, in a form that does not change with the code.

The text is printed in reports and is part of the identity of a result: a baseline is compared only with requests of the same
text.

    fixed 500
    uniform 1 to 9
    lognormal median 500, sigma 0.8, 50 to 4000
    quantiles 0: 10, 0.5: 100, 1: 900
"""

from prober.results.result import Load
from prober.workload.workloads import Mix, Workload


def has_varied_prompts(workload: Workload | Mix) -> bool:
    """True if the requests of one stage have prompts of different lengths (`Load.varied`)."""
    lengths = {part.prompt_lengths for _, part, _ in workload.shares()}
    return len(lengths) > 1 or any(len(of_part) > 1 for of_part in lengths)


def describe_load(workload: Workload | Mix, *, arrivals: str, max_in_flight: int | None = None) -> Load:
    """The load of one workload. Parts of a mix are separated by `; `."""
    parts = [part for part, _ in workload.parts]
    return Load(
        workload=workload.name,
        prompt_tokens="; ".join(part.prompt_text for part in parts),
        output_tokens="; ".join(part.output_tokens.text for part in parts),
        varied=has_varied_prompts(workload),
        arrivals=arrivals,
        max_in_flight=max_in_flight,
        sampling=dict(parts[0].sampling),
        dataset=parts[0].dataset,
    )

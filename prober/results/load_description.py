"""The load of a result as text: the distribution of its lengths, in a form that does not change with the code.

The text is printed in reports and is part of the identity of a result: a baseline is compared only with requests of the same
text.

    fixed 500
    uniform 1 to 9
    lognormal median 500, sigma 0.8, 50 to 4000
    quantiles 0: 10, 0.5: 100, 1: 900
"""

from prober.results.result import Load
from prober.workload.shapes import Empirical, Exponential, Fixed, LengthDistribution, Lognormal, Uniform
from prober.workload.workloads import Mix, Workload


def describe_lengths(shape: LengthDistribution) -> str:
    """The distribution as text."""
    match shape:
        case Fixed(tokens):
            return f"fixed {tokens}"
        case Uniform(low, high):
            return f"uniform {low} to {high}"
        case Exponential(mean, high):
            return f"exponential mean {mean:.15g}, up to {high}"
        case Lognormal(median, sigma, low, high):
            return f"lognormal median {median:.15g}, sigma {sigma:.15g}, {low} to {high}"
        case Empirical(quantiles):
            return "quantiles " + ", ".join(f"{q:.15g}: {tokens:.15g}" for q, tokens in quantiles)
    raise TypeError(f"{type(shape).__name__} has no text; add it here")


def has_varied_prompts(workload: Workload | Mix) -> bool:
    """True if the requests of one stage have prompts of different lengths (`Load.varied`)."""
    lengths = {_prompt_lengths(part) for _, part, _ in workload.shares()}
    return len(lengths) > 1 or any(len(of_part) > 1 for of_part in lengths)


def describe_load(workload: Workload | Mix, *, arrivals: str, max_in_flight: int | None = None) -> Load:
    """The load of one workload. Parts of a mix are separated by `; `."""
    parts = [part for part, _ in workload.parts] if isinstance(workload, Mix) else [workload]
    return Load(
        workload=workload.name,
        prompt_tokens="; ".join(_prompt_text(part) for part in parts),
        output_tokens="; ".join(describe_lengths(part.output_tokens) for part in parts),
        varied=has_varied_prompts(workload),
        arrivals=arrivals,
        max_in_flight=max_in_flight,
        sampling=dict(parts[0].sampling),
        dataset="trace" if parts[0].trace else "file" if parts[0].prompts else "generated",
    )


def _prompt_lengths(workload: Workload) -> frozenset[object]:
    """At least two members if the lengths of its prompts differ."""
    if workload.trace:
        return frozenset(workload.trace.prompt_tokens)
    if words := workload.prompt_words:
        return frozenset(words)
    if workload.sessions:
        return frozenset(workload.series)
    shape = workload.prompt_tokens
    return frozenset([shape.tokens] if isinstance(shape, Fixed) else [describe_lengths(shape), "varied"])


def _prompt_text(workload: Workload) -> str:
    text = describe_lengths(workload.prompt_tokens)
    if workload.sessions:
        text += f" a message, {workload.sessions.turns} turns"
        if workload.sessions.think_time is not None:
            text += f", think time in ms after an answer {describe_lengths(workload.sessions.think_time)}"
    if workload.adapters is None:
        return text
    names, turn = workload.adapters.names, workload.adapters.turn
    if len(names) == 1:
        return f"{text}, model {names[0]}"
    return f"{text}, {len(names)} adapters in turn, {turn} request{'' if turn == 1 else 's'} each"

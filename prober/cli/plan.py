"""`prober plan`: computes how many instances a peak needs, with their cost, from the capacity measured by a sweep."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from prober.cli.console import Terminal
from prober.cli.exit_codes import ExitCode, exit_on
from prober.cli.options import AsJson, one_each, quantity
from prober.cli.output import echo
from prober.cli.report import all_of, result_of
from prober.config.units import rate, share
from prober.features.experiments.instance_sizing import Demand, Refused, Size, size
from prober.results.context import disagreement_text
from prober.results.result import Result


@dataclass(frozen=True, slots=True)
class _Offer:
    """A kind of instance, with the number of instances that the demand needs.

    gpus: per instance; is_assumed: the number of GPUs is unknown and assumed to be 1
    """

    name: str
    gpus: int
    is_assumed: bool
    answer: Size | Refused


def plan(
    sweep: Annotated[list[Path], typer.Option(help="Result file of a sweep; one for each kind of instance.")],
    peak: Annotated[
        str, typer.Option(help="Rate at the peak, in requests of the sweep's workload, such as 100/s.")
    ] = "",
    users: Annotated[
        int, typer.Option(min=0, help="Instead of --peak: users at once, for sweeps with --over users.")
    ] = 0,
    gpu: Annotated[list[str] | None, typer.Option(help="Name of the GPU; one for each --sweep.")] = None,
    gpus_per_instance: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="GPUs per instance, one for all or one for each --sweep; default: from the sweep, else 1."
        ),
    ] = None,
    gpu_price: Annotated[
        list[float] | None, typer.Option(min=0, help="Dollars per GPU and hour, one for all or one for each --sweep.")
    ] = None,
    headroom: Annotated[str, typer.Option(help="Share of the capacity to keep free at the peak.")] = "20%",
    as_json: AsJson = False,
) -> None:
    """Size a deployment for a peak by the lower bound of the capacity of one instance at all SLOs. Exit codes: 0 sized, 1 it
    cannot be sized (with the reason) or a file cannot be read, 2 wrong call, 4 no sweep
    is judged, as too many of its requests were refused."""
    results = all_of(sweep, result_of)
    with exit_on(ValueError, command="plan"):
        if bool(peak) is bool(users):
            raise ValueError("give --peak, a rate such as 100/s, or --users, for sweeps with --over users")
        demand = Demand(
            quantity("--peak", peak, rate) if peak else None,
            float(quantity("--headroom", headroom, share)),
            users or None,
        )
        names = one_each("--gpu", gpu, len(results), "sweeps")
        asked = one_each("--gpus-per-instance", gpus_per_instance, len(results), "sweeps")
        prices = one_each("--gpu-price", gpu_price, len(results), "sweeps")
        offers = []
        for result, name, count, price in zip(results, names, asked, prices, strict=True):
            gpus = count or _measured_gpus(result)
            answer = size(result, demand, gpus or 1, price if gpu_price else _known_price(result))
            offers.append(_Offer(name or result.context.gpu or result.id, gpus or 1, gpus is None, answer))
    if as_json:
        rows = [
            {"gpu": offer.name, "is_gpu_count_assumed": offer.is_assumed, **asdict(offer.answer)} for offer in offers
        ]
        echo(json.dumps({"demand": asdict(demand), "plans": rows}))
    else:
        _draw(demand, offers)
    if any(isinstance(offer.answer, Size) for offer in offers):
        sys.exit(ExitCode.OK)
    sys.exit(ExitCode.NOT_JUDGED if all(result.refused.is_too_many for result in results) else ExitCode.FAILED)


def _known_price(result: Result) -> float | None:
    """The configured GPU price of the sweep; None if the sweep counted no tokens, because the cost per token is then unknown."""
    counted = all(
        stage.output_tokens is not None and stage.prompt_tokens is not None for stage in result.stages if stage.answered
    )
    return result.prices.gpu_per_hour if counted else None


def _measured_gpus(result: Result) -> int | None:
    """Number of GPUs of the sweep's target; None if unknown. Raises ValueError if sources in the result contradict each other."""
    for disagreement in result.disagreements:
        if disagreement.name == "gpu_count":
            raise ValueError(
                f"{result.id}: the number of GPUs is in dispute, {disagreement_text(disagreement)}; name it with --gpus-per-instance"
            )
    return max((stage.gpus for stage in result.stages if stage.gpus is not None), default=None)


def _draw(demand: Demand, offers: list[_Offer]) -> None:
    sized = [(offer, offer.answer) for offer in offers if isinstance(offer.answer, Size)]
    if sized:
        head = ("GPU", *(f"{offer.gpus} × {offer.name}" for offer, _ in sized))
        rows = ((label, *cells) for label, cells in _rows([answer for _, answer in sized], demand))
        Terminal(highlight=False, soft_wrap=True).table(head, rows)
    for note in _notes(demand, offers):
        echo(note)


def _notes(demand: Demand, offers: list[_Offer]) -> Iterator[str]:
    sizes: list[Size] = []
    for offer in offers:
        answer = offer.answer
        if isinstance(answer, Refused):
            yield f"{offer.name}: {answer.reason}"
            continue
        sizes.append(answer)
        if offer.is_assumed:
            yield f"{offer.name}: the number of GPUs of an instance is not known, and 1 is assumed; name it with --gpus-per-instance."
        if not answer.is_alone:
            yield (
                f"{offer.name}: how much others sent during the sweep is not known: one instance carries this beside them, and more "
                "without them."
            )
        yield f"{offer.name}: {_loss(answer, demand)}"
    if not sizes:
        return
    carried = (
        "the largest number of users at all SLOs that was shown to hold, who send and think like those of the sweep, without what "
        "others sent meanwhile."
        if demand.users is not None
        else "the lower bound of the 90% interval of the estimated knee at all SLOs, in requests of the sweep's shape and without what "
        "others sent during the sweep; with ≥ the highest rate that was shown to hold."
    )
    yield (
        f"instances = ceil({demand.peak_text} ÷ (what one carries × {1 - demand.headroom:g})): {demand.headroom:.0%} of the "
        f"capacity stays free. What one carries is {carried}"
    )
    if any(size.estimate is None for size in sizes):
        yield "≥: the sweep reached no knee, so fewer may do."
    if any(size.dollars_per_hour is not None for size in sizes):
        yield "Prompt, output and all tokens at the peak each bear the whole price."


def _loss(answer: Size, demand: Demand) -> str:
    """What the loss of one instance does, by what the others carry."""
    left, more = answer.instances - 1, f"take {answer.instances + 1:,} (N + 1)"
    if not left:
        return f"its loss leaves no other; {more}."
    at_least, by_estimate = left * answer.per_instance, left * (answer.estimate or 0.0)
    carried = f"{'the other carries' if left == 1 else f'the other {left:,} carry'} {demand.text(at_least)}"
    if by_estimate:
        carried += f" by the lower bound and {demand.text(by_estimate)} by the estimate"
    if answer.holds_without_one:
        return f"after the loss of one {carried} of {demand.peak_text}."
    breaks = "breaks" if 0 < by_estimate < demand.peak else "may break"
    return f"the loss of one {breaks} the SLO: {carried} of {demand.peak_text}; {more}."


def _rows(answers: list[Size], demand: Demand) -> Iterator[tuple[str, list[str]]]:
    if any(size.estimate is not None for size in answers):
        yield "estimated knee", ["–" if size.estimate is None else demand.text(size.estimate) for size in answers]
    at_least = ["≥ " * (size.estimate is None) for size in answers]
    yield "one carries", [f"{mark}{demand.text(of.per_instance)}" for mark, of in zip(at_least, answers, strict=True)]
    yield "gives way first", [size.slo for size in answers]
    yield "instances", [f"{size.instances:,}" for size in answers]
    yield "GPUs", [f"{size.gpus:,}" for size in answers]
    yield "free at the peak", [f"{size.free:.0%}" for size in answers]
    for label, field in _DOLLARS.items():
        values = [getattr(size, field) for size in answers]
        if any(value is not None for value in values):
            yield label, ["–" if value is None else f"${value:,.4g}" for value in values]


_DOLLARS = {
    "an hour": "dollars_per_hour",
    "a million prompt tokens": "dollars_per_million_prompt",
    "a million output tokens": "dollars_per_million_output",
    "a million tokens": "dollars_per_million",
}

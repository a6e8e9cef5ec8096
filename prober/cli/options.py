"""Options that several commands share, each declared once.

A command is decorated with `expand_options` and takes the dataclasses below as parameters. Each field becomes an option:

    @expand_options
    def once(url: Url, endpoint: EndpointOptions, as_json: AsJson = False) -> None: ...
"""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from prober.cli.exit_codes import ExitCode, fail
from prober.config.units import duration, percent, worker_count
from prober.measure.engines import DIALECTS
from prober.measure.target_state import UNTIL_STEADY, WarmUpLength
from prober.workload.built_in import BUILT_IN

T = TypeVar("T")
RareOption = partial(typer.Option, hidden=True)  # only shown by --help-all
Url = Annotated[str, typer.Argument(help="Base URL, such as http://localhost:8000.")]
ConfigFile = Annotated[str, typer.Option("--config.file", help="YAML configuration.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
MetricsUrl = Annotated[str, RareOption(help="URL of the engine's metrics page; auto: find it; none: do not read it.")]
WorkloadName = Annotated[str, typer.Option(help=f"Workload to send: {', '.join(BUILT_IN)}, or one of --config.file.")]
Slos = Annotated[
    list[str] | None, typer.Option("--slo", help="Objective such as 'ttft<500ms:99%' or 'success:99%'; repeatable.")
]
Duration = Annotated[
    str, typer.Option("--duration", help="Time after which it ends by itself, such as 10m; default: never.")
]
ListenAddress = Annotated[str, typer.Option("--web.listen-address", help="host:port or :port of the pages.")]
MaxRequests = Annotated[
    int, typer.Option("--max-requests", min=0, help="Most requests to send; 0: as many as it takes.")
]
ShedAllowed = Annotated[
    bool, RareOption("--shed-allowed", help="Go on while the target sheds: 429, or 503 with Retry-After.")
]
Burst = Annotated[
    str, typer.Option("--burst", help="How long bad results last when they come in bursts; 0s: each is independent.")
]
Margin = Annotated[str, typer.Option("--margin", help="Worsening of a latency or share that does not matter.")]
DEFAULT_BURST = "15s"
WarmUpOption = Annotated[
    str,
    RareOption(
        "--warm-up",
        help="Sent before what counts: a number of requests (50), a time (20s), or steady: until latencies are; 0: nothing.",
    ),
]


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Model, API, credentials and headers of the requests to an endpoint."""

    model: Annotated[str, typer.Option(help="Name of the model; auto: ask /v1/models.")] = "auto"
    api: Annotated[
        str, RareOption(help="chat, completions, responses or messages; default: by the end of the URL, else chat.")
    ] = ""
    engine: Annotated[str, RareOption(help=f"auto, or {', '.join(DIALECTS)}.")] = "auto"
    bearer_token_file: Annotated[str, typer.Option(help="File with the bearer token.")] = ""
    ca_file: Annotated[str, RareOption(help="File with the certificate authorities to trust.")] = ""
    header: Annotated[list[str] | None, RareOption(help="'name: value' of a request header; repeatable.")] = None


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """The requests to send: a named workload, fixed lengths, prompts from a file or trace, and added golden prompts."""

    workload: WorkloadName = "probe"
    prompt_tokens: Annotated[int, typer.Option(min=0, help="Fixed prompt length; needs --output-tokens.")] = 0
    output_tokens: Annotated[
        int, typer.Option(min=0, help="Fixed output length; needs --prompt-tokens or --prompts.")
    ] = 0
    config_file: ConfigFile = ""
    prompts: Annotated[
        str, RareOption(help="File of prompts (JSONL of messages, or ShareGPT's JSON); needs --output-tokens.")
    ] = ""
    trace: Annotated[
        str, RareOption(help="Trace (Mooncake JSONL or Azure CSV) whose lengths and prefixes are sent.")
    ] = ""
    golden: Annotated[
        str, RareOption(help="Workload of golden prompts in --config.file; one request in 20 is one of them.")
    ] = ""
    sampling: Annotated[
        str,
        RareOption(
            help="Request fields beside those of the workload, such as tools or response_format: a JSON object, or @FILE of one."
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class AddedWorkloadOptions(WorkloadOptions):
    """`WorkloadOptions` without a default workload."""

    workload: WorkloadName = ""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The sending processes, and where they run."""

    workers: Annotated[
        str,
        RareOption(help="Processes that send; 1: this one; auto: one per core but one, with --ray of the cluster."),
    ] = "1"
    ray: Annotated[
        str, RareOption(help="Ray cluster whose nodes the workers run on: HOST:PORT, auto, or local to start one.")
    ] = ""

    def count(self) -> int | None:
        """Number of workers; None for `auto`. Raises ValueError, also for an invalid Ray address."""
        count = quantity("--workers", self.workers, worker_count)
        if self.ray and not re.fullmatch(r"local|auto|[^/\s]+:\d{1,5}", self.ray):
            raise ValueError(f"--ray {self.ray!r}: write HOST:PORT of the cluster's head, auto, or local")
        if self.ray and count == 1:
            raise ValueError("--ray sends with workers of the cluster; add --workers auto, or how many (2 or more)")
        return count


def quantity(option: str, text: str, parse: Callable[[str], T]) -> T:
    """Parse an option's value. parse: parser such as those of `config.units`. Raises ValueError with the option's name."""
    try:
        return parse(text)
    except ValueError as problem:
        raise ValueError(f"{option}: {problem}") from None


def one_each(option: str, values: list[T] | None, count: int, things: str) -> Sequence[T | None]:
    """Values of an option, one for each of `count` things. Raises ValueError unless there are 0, 1, or as many."""
    if not values:
        return [None] * count
    if len(values) not in (1, count):
        raise ValueError(f"{option}: {len(values)} are given for {count} {things}; give one for all, or one for each")
    return values if len(values) == count else values * count


def named_options(call: typer.Context, names: Iterable[str]) -> list[str]:
    """Options on the command line whose parameters have these names."""
    sources = {name: call.get_parameter_source(name) for name in names}
    named = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    return [parameter.opts[0] for parameter in call.command.params if parameter.name in named]


def warm_up_length(text: str) -> WarmUpLength:
    """Parse the value of `--warm-up`: requests, a time, or `steady`. Raises ValueError."""
    if text == "steady":
        return UNTIL_STEADY
    if text.isdecimal():
        return WarmUpLength(requests=int(text))
    try:
        return WarmUpLength(seconds=duration(text))
    except ValueError:
        raise ValueError(
            f"--warm-up {text!r}: write a number of requests, such as 50, a time, such as 20s, or steady"
        ) from None


def share(option: str, text: str) -> float:
    """Parse a percentage as a ratio above 0 and below 1. Raises ValueError with the option's name."""
    ratio = float(quantity(option, text, percent))
    if ratio == 1:
        raise ValueError(f"{option} {text!r} must be below 100%")
    return ratio


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command whose type is a dataclass by one keyword parameter per field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for positional in inspect.signature(command).parameters.values():
        parameter = positional.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        kind = hints[parameter.name]
        if isinstance(kind, type) and is_dataclass(kind):
            groups[parameter.name] = kind
            options = get_type_hints(kind, include_extras=True)
            for field in fields(kind):
                default = inspect.Parameter.empty if field.default is MISSING else field.default
                parameters.append(parameter.replace(name=field.name, default=default, annotation=options[field.name]))
        else:
            parameters.append(parameter.replace(annotation=kind))

    @wraps(command)
    def expanded(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what typer reads
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def split_file(command: str, arguments: Sequence[str], config_file: str) -> tuple[list[str], str]:
    """Split arguments into (URLs, configuration file). A file exists or ends in .yaml. Exits with WRONG_CALL for both or two files."""
    files = [argument for argument in arguments if argument.endswith((".yaml", ".yml")) or Path(argument).exists()]
    urls = [argument for argument in arguments if argument not in files]
    files += filter(None, [config_file])
    if len(files) > 1:
        fail(f"prober {command}: {', '.join(files)}: one configuration file, or URLs with http://", ExitCode.WRONG_CALL)
    if urls and files:
        fail(
            f"prober {command}: URLs and a file: write the URLs into the file, or leave one of both out",
            ExitCode.WRONG_CALL,
        )
    return urls, "".join(files)

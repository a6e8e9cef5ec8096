"""Options that several commands share, each declared once.

A command is decorated with `expand_options` and takes the dataclasses below as parameters; typer sees one option a field:

    @expand_options
    def once(url: Url, endpoint: EndpointOptions, as_json: AsJson = False) -> None: ...

An option of a single command is declared in the file of that command. Such declarations look alike (a type, a help text, a default),
as do the enums of a `--format`, but share no value, so they are not merged.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial, wraps
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from prober.config.units import duration, percent, worker_count
from prober.measure.engines import DIALECTS
from prober.measure.warmup import WarmUpLength
from prober.workload.workloads import BUILT_IN

T = TypeVar("T")
rare_option = partial(typer.Option, hidden=True)  # shown by --help-all only
Url = Annotated[str, typer.Argument(help="Base URL, such as http://localhost:8000.")]
ConfigFile = Annotated[str, typer.Option("--config.file", help="YAML configuration.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
MetricsUrl = Annotated[str, rare_option(help="URL of the engine's metrics page; auto: find it; none: do not read it.")]
WorkloadName = Annotated[str, typer.Option(help=f"Workload to send: {', '.join(BUILT_IN)}, or one of --config.file.")]
PromptTokens = Annotated[
    int, typer.Option(min=0, help="Fixed prompt length instead of a workload; needs --output-tokens.")
]
WarmUpOption = Annotated[
    str,
    rare_option("--warm-up", help="Sent before what counts: a number of requests (50), or a time (20s); 0: nothing."),
]
OutputTokens = Annotated[
    int, typer.Option(min=0, help="Fixed output length instead of a workload; needs --prompt-tokens or --prompts.")
]


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Model, API, credentials and headers of the requests to an endpoint."""

    model: Annotated[str, typer.Option(help="Name of the model; auto: ask /v1/models.")] = "auto"
    api: Annotated[
        str, rare_option(help="chat, completions, responses or messages; default: by the end of the URL, else chat.")
    ] = ""
    engine: Annotated[str, rare_option(help=f"auto, or {', '.join(DIALECTS)}.")] = "auto"
    bearer_token_file: Annotated[str, typer.Option(help="File with the bearer token.")] = ""
    ca_file: Annotated[str, rare_option(help="File with the certificate authorities to trust.")] = ""
    header: Annotated[list[str] | None, rare_option(help="'name: value' of a request header; repeatable.")] = None
    max_send_lag: Annotated[str, rare_option(help="Lateness of the prober above which a request does not count.")] = (
        "10ms"
    )


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """The requests to send: a workload by name, fixed lengths, prompts of a file or a trace, and golden prompts among them."""

    workload: WorkloadName = "probe"
    prompt_tokens: PromptTokens = 0
    output_tokens: OutputTokens = 0
    config_file: Annotated[
        str, typer.Option("--config.file", help="Configuration file whose workloads can be named.")
    ] = ""
    prompts: Annotated[
        str, rare_option(help="File of prompts (JSONL of messages, or ShareGPT's JSON); needs --output-tokens.")
    ] = ""
    trace: Annotated[
        str, rare_option(help="Trace (Mooncake JSONL or Azure CSV) whose lengths and prefixes are sent.")
    ] = ""
    golden: Annotated[
        str, rare_option(help="Workload of golden prompts in --config.file; one request in 20 is one of them.")
    ] = ""
    sampling: Annotated[
        str,
        rare_option(
            help="Request fields beside those of the workload, such as tools or response_format: a JSON object, or @FILE of one."
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class ChatWorkloadOptions(WorkloadOptions):
    """The same, by default of the workload `chat`."""

    workload: WorkloadName = "chat"


@dataclass(frozen=True, slots=True)
class AddedWorkloadOptions(WorkloadOptions):
    """The same, by default none."""

    workload: WorkloadName = ""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The processes that send, and where they run."""

    workers: Annotated[
        str,
        rare_option(help="Processes that send; 1: this one; auto: one per core but one, with --ray of the cluster."),
    ] = "1"
    ray: Annotated[
        str, rare_option(help="Ray cluster whose nodes the workers run on: HOST:PORT, auto, or local to start one.")
    ] = ""

    def count(self) -> int | None:
        """Number of workers, None for `auto`. Raises ValueError, for an address of Ray too."""
        count = quantity("--workers", self.workers, worker_count)
        if self.ray and not re.fullmatch(r"local|auto|[^/\s]+:\d{1,5}", self.ray):
            raise ValueError(f"--ray {self.ray!r}: write HOST:PORT of the cluster's head, auto, or local")
        if self.ray and count == 1:
            raise ValueError("--ray sends with workers of the cluster; add --workers auto, or how many (2 or more)")
        return count


def quantity(option: str, text: str, parse: Callable[[object], T]) -> T:
    """The value of an option. parse: a function of `config.units`. Raises ValueError that names the option."""
    try:
        return parse(text)
    except ValueError as problem:
        raise ValueError(f"{option}: {problem}") from None


def named_options(call: typer.Context, names: Iterable[str]) -> list[str]:
    """Options that the command line names, of the parameters with these names."""
    sources = {name: call.get_parameter_source(name) for name in names}
    named = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    return [parameter.opts[0] for parameter in call.command.params if parameter.name in named]


def warm_up_length(text: str) -> WarmUpLength:
    """The value of `--warm-up`: requests, or a time. Raises ValueError."""
    if text.isdecimal():
        return WarmUpLength(requests=int(text))
    try:
        return WarmUpLength(seconds=duration(text))
    except ValueError:
        raise ValueError(
            f"--warm-up {text!r}: write a number of requests, such as 50, or a time, such as 20s"
        ) from None


def share(option: str, text: str) -> float:
    """The value of an option that is a percentage above 0% and below 100%, as a ratio. Raises ValueError."""
    ratio = float(quantity(option, text, percent))
    if ratio == 1:
        raise ValueError(f"{option} {text!r} must be below 100%")
    return ratio


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one keyword parameter a field in place of each parameter whose type is a dataclass."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if isinstance(kind, type) and is_dataclass(kind):
            groups[parameter.name] = kind
            parameters += _option_parameters(kind)
        else:
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def expanded(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what typer reads
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def _option_parameters(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]

"""Settings about a target's server: the engine's metrics page, GPUs, the data that a decode step reads, and facts for the context of
results that the prober cannot read.
"""

import json
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from prober.config.fields import (
    Auto,
    Block,
    Document,
    Duration,
    Items,
    Mistakes,
    NamedSlo,
    NotNegative,
    Positive,
    PositiveCount,
    at_least,
    mistake,
)
from prober.config.problems import unknown_key
from prober.config.server import http_url
from prober.config.units import shortened
from prober.measure.bandwidth_bound import DecodeModel, UnknownFigure, decode_model, memory_bandwidth
from prober.measure.objective import TRAFFIC_SIGNALS, Slo
from prober.results.facts import Fact

MAX_CHARS = 300
CONFIG_FILE = "the model's config.json"


def _text(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_CHARS:
        raise mistake(f"{shortened(value)} is not a text of 1 to {MAX_CHARS} characters; write it in quotes")
    return " ".join(value.split())


Text = Annotated[str, BeforeValidator(_text), WithJsonSchema({"type": "string"})]


def read_model_config(path: str, info: ValidationInfo) -> dict[str, Any]:
    """Read the JSON object of a model's config.json. path: value of `config_file`. Raises a mistake."""
    try:
        assert isinstance(info.context, Document), "only a file names a file"
        config = json.loads(info.context.read(path))
    except (OSError, ValueError) as problem:
        raise mistake(f"cannot be read: {problem}; name the model's config.json", "config_file") from None
    if not isinstance(config, dict):
        raise mistake("is no JSON object; name the model's config.json", "config_file")
    return config


# Names of facts in `context`, in the order of reports.
FACTS = (
    *("gpu", "gpu_memory", "interconnect", "driver", "cuda", "cpu", "host_ram", "storage", "engine_version"),
    *("engine_commit", "parallelism", "attention_backend", "scheduling_policy", "max_batch", "weights"),
    *("model_revision", "tokenizer", "chat_template", "precision", "quantization", "speculation"),
)


class ContextSpec(Block):
    """Facts about hardware, engine and model, by their names in FACTS. If the prober reads another value, results have both."""

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"propertyNames": {"enum": [*FACTS, "flags", "rollback", "config_file"]}}
    )
    __pydantic_extra__: dict[str, Text]

    flags: dict[str, Text] = Field(default_factory=dict, description="settings of the engine, by its own names")
    rollback: Text | None = Field(
        None,
        description="needs and losses of going back to the version before, such as a restart of 3 minutes; reports of decisions "
        "show it",
    )
    config_file: str | None = Field(
        None, description="config.json of the model, for its precision, quantisation and the bound by memory bandwidth"
    )
    _config: dict[str, Any] | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Self:
        with Mistakes() as mistakes:
            for name in self.__pydantic_extra__.keys() - set(FACTS):
                mistakes.add(name, unknown_key(name, [*FACTS, *ContextSpec.model_fields]))
        if self.config_file is None or self._config is not None:
            return self
        self._config = read_model_config(self.config_file, info)
        return self

    @property
    def configured(self) -> dict[str, str]:
        """The configured facts by name."""
        return {name: self.__pydantic_extra__[name] for name in FACTS if name in self.__pydantic_extra__}

    @property
    def checkpoint_facts(self) -> list[Fact]:
        """Facts from `config_file`. An engine may convert weights to another type while loading."""
        config = self._config or {}
        values: dict[str, object] = {
            "precision": config.get("dtype") or config.get("torch_dtype"),
            "quantization": _quantization(config.get("quantization_config")),
            "model_revision": config.get("_commit_hash"),
            "weights": config.get("_name_or_path"),
        }
        return [Fact(name, value, CONFIG_FILE) for name, value in values.items() if isinstance(value, str) and value]

    @property
    def decode_model(self) -> DecodeModel | None:
        """Data that a decode step reads; None without `config_file`, or if it is not sufficient."""
        try:
            return decode_model(self._config)
        except UnknownFigure:
            return None


def _quantization(block: object) -> str | None:
    """Method, bits and group size of a `quantization_config` as text, as far as known."""
    if not isinstance(block, dict) or not isinstance(method := block.get("quant_method"), str):
        return None
    parts = [method]
    if isinstance(bits := block.get("bits"), int):
        parts.append(f"{bits} bit")
    if isinstance(group := block.get("group_size"), int) and group > 0:
        parts.append(f"groups of {group}")
    return ", ".join(parts)


def _page_url(text: str | None, info: ValidationInfo) -> str | None:
    return text if text in (None, "none") else http_url(text, info, "auto, none, or http://host:port/metrics")


class MetricsSpec(Block):
    """Metrics page of the engine. url: None: search for it on the target's server"""

    url: Annotated[Auto, AfterValidator(_page_url)] = Field(
        None,
        description="URL of the page, may contain `${NAME}` of the environment; auto: find it on the target's server; none: do not "
        "read it",
        repr=False,
    )
    interval: Annotated[Duration, at_least(0.5)] = Field(5.0, description="time between readings, at least 500ms")
    slos: Items[NamedSlo] = Field(
        default_factory=tuple,
        description=f"names from `slos` that all requests of the engine are judged by too, of signal {', '.join(TRAFFIC_SIGNALS)}",
    )

    @field_validator("slos")
    @classmethod
    def _check_slos(cls, slos: tuple[Slo, ...]) -> tuple[Slo, ...]:
        with Mistakes() as mistakes:
            for index, slo in enumerate(slos):
                if slo.signal not in TRAFFIC_SIGNALS:
                    problem = f"no engine's page tells `{slo.signal}`; name SLOs on {', '.join(TRAFFIC_SIGNALS)}"
                    mistakes.add(f"[{index}]", problem)
        return slos


def _indices(value: object) -> object:
    if isinstance(value, str) and value in ("all", "none"):
        return ("all",) if value == "all" else ()
    if isinstance(value, list | tuple) and all(isinstance(item, int | str) and item is not True for item in value):
        return tuple(value)
    raise mistake(f"{shortened(value)} is not all, none, or a list of indices and UUIDs")


class GpusSpec(Block):
    """GPUs that serve the target. indices: indexes on this machine, or UUIDs; `all` alone: all of them; None: not configured"""

    indices: Annotated[
        tuple[int | str, ...] | None,
        BeforeValidator(_indices),
        WithJsonSchema(
            {
                "anyOf": [
                    {"enum": ["all", "none"]},
                    {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
                ]
            }
        ),
    ] = Field(
        None,
        description="all visible ones, none, or a list of indices and UUIDs; absent: all if this is the only target, "
        "else none",
    )
    count: PositiveCount | None = Field(
        None,
        description="number of GPUs that serve the target, where the prober cannot see them; absent: as many as it sees",
    )
    price_per_hour: NotNegative | None = Field(None, description="dollars per GPU and hour, for the cost of tokens")


class DecodeBoundSpec(Block):
    """Data that a decode step reads. gpus: number of GPUs that share the weights; None: as many as detected"""

    config_file: str | None = Field(None, description="config.json of the model on Hugging Face")
    active_parameters: Positive | None = Field(None, description="weights read per token; absent: from config_file")
    bytes_per_weight: Positive | None = Field(
        None, description="2 for 16 bit, 1 for 8 bit; absent: from config_file, for 16 bit, AWQ, GPTQ and FP8"
    )
    kv_bytes_per_token: NotNegative | None = Field(
        None, description="KV cache of one token in all layers; absent: from config_file"
    )
    gpu: str | None = Field(None, description="NVML name of the GPU; absent: from the GPU reader")
    memory_bandwidth: Positive | None = Field(None, description="bytes/s of one GPU; absent: from its data sheet")
    gpus: PositiveCount | None = Field(
        None,
        description="number of GPUs that share the weights (tensor parallel); "
        "absent: the visible ones, divided by the ranks behind the page, or 1",
    )
    _model: DecodeModel = PrivateAttr()

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Self:
        config = None if self.config_file is None else read_model_config(self.config_file, info)
        try:
            self._model = decode_model(
                config,
                active_parameters=self.active_parameters,
                bytes_per_weight=self.bytes_per_weight,
                kv_bytes_per_token=self.kv_bytes_per_token,
            )
        except UnknownFigure as unknown:
            raise mistake(str(unknown)) from None
        try:
            _ = self.memory_bandwidth_bytes_per_s
        except UnknownFigure as unknown:
            raise mistake(f"{unknown} with `memory_bandwidth`, in bytes/s", "gpu") from None
        return self

    @property
    def model(self) -> DecodeModel:
        """The model data, from config_file and the other fields."""
        return self._model

    @property
    def memory_bandwidth_bytes_per_s(self) -> float | None:
        """Bandwidth of one GPU, configured or that of `gpu`; None without either."""
        is_of_gpu = self.memory_bandwidth is None and self.gpu is not None
        return memory_bandwidth(self.gpu or "") if is_of_gpu else self.memory_bandwidth

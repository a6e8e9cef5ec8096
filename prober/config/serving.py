"""Server of a target: the engine's metrics page, GPUs, and the data that a decode step reads."""

from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from prober.config.context import read_model_config
from prober.config.fields import Auto, Block, Duration, NotNegative, Positive, PositiveCount, at_least, mistake
from prober.config.server import http_url
from prober.config.units import shortened
from prober.measure.bandwidth_bound import DecodeModel, ModelOverrides, UnknownFigure, decode_model, memory_bandwidth


def _page_url(text: str | None, info: ValidationInfo) -> str | None:
    return text if text in (None, "none") else http_url(text, info, "auto, none, or http://host:port/metrics")


class MetricsSpec(Block):
    """Metrics page of the engine. url: None to discover it on the target's server."""

    url: Annotated[Auto, AfterValidator(_page_url)] = Field(
        None,
        description="URL of the page, may contain `${NAME}` of the environment; auto: find it on the target's server; none: do not "
        "read it",
        repr=False,
    )
    interval: Annotated[Duration, at_least(0.5)] = Field(5.0, description="time between readings, at least 500ms")


def _indices(value: object) -> object:
    if isinstance(value, str) and value in ("all", "none"):
        return ("all",) if value == "all" else ()
    if isinstance(value, list | tuple) and all(isinstance(item, int | str) and item is not True for item in value):
        return tuple(value)
    raise mistake(f"{shortened(value)} is not all, none, or a list of indices and UUIDs")


class GpusSpec(Block):
    """GPUs that serve the target. indices: of this machine; also UUIDs; `all` alone for all of them; None if not configured."""

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
    """Data that a decode step reads. gpus: number that share the weights; None: as many as are detected."""

    config_file: str | None = Field(None, description="config.json of the model on Hugging Face")
    active_parameters: Positive | None = Field(None, description="weights read per token; absent: from config_file")
    bytes_per_weight: Positive | None = Field(
        None, description="2 for 16 bit, 1 for 8 bit; absent: from config_file, except for a quantised model"
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
        model = decode_model(
            config, ModelOverrides(self.active_parameters, self.bytes_per_weight, self.kv_bytes_per_token)
        )
        if isinstance(model, UnknownFigure):
            raise mistake(model.reason)
        self._model = model
        if self.memory_bandwidth is None and self.gpu is not None:
            bandwidth = memory_bandwidth(self.gpu)
            if isinstance(bandwidth, UnknownFigure):
                raise mistake(f"{bandwidth.reason} with `memory_bandwidth`, in bytes/s", "gpu")
        return self

    @property
    def model(self) -> DecodeModel:
        """The model, from config_file and the other fields."""
        return self._model

    @property
    def memory_bandwidth_bytes_per_s(self) -> float | None:
        """Bandwidth of one GPU: the configured one, or that of `gpu`; None if both are absent."""
        if self.memory_bandwidth is not None or self.gpu is None:
            return self.memory_bandwidth
        bandwidth = memory_bandwidth(self.gpu)
        return None if isinstance(bandwidth, UnknownFigure) else bandwidth

"""Options for a result's context: facts that the prober cannot read, and number and price of the GPUs."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ValidationError

from prober.cli.options import RareOption
from prober.config.fields import Document
from prober.config.problems import ConfigError, below, explain
from prober.config.serving import ContextSpec
from prober.storage.watched_file import read_text


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """Facts about hardware, engine and model, and number and price of the GPUs, for the result."""

    fact: Annotated[
        list[str] | None,
        RareOption(help="Fact for the result by a key of `context`, such as precision=bfloat16; repeatable."),
    ] = None
    gpus: Annotated[int, RareOption(min=0, help="Number of GPUs that serve the target; 0: as found out.")] = 0
    gpu_price: Annotated[float | None, RareOption(min=0, help="Dollars per GPU and hour, for the cost of tokens.")] = (
        None
    )

    def fields(self, command: str) -> dict[str, Any]:
        """Fields of the target set by the options. Raises ConfigError."""
        return {
            "context": self.spec(command),
            "gpus": {"count": self.gpus or None, "price_per_hour": self.gpu_price},
        }

    def spec(self, command: str) -> ContextSpec:
        """The facts. Raises ConfigError."""
        values: dict[str, Any] = {}
        for text in self.fact or ():
            name, equals, value = text.partition("=")
            if not equals:
                raise ConfigError(f"prober {command}: --fact {text!r}: has no '='; write precision=bfloat16")
            if name.startswith("flags."):
                values.setdefault("flags", {})[name.removeprefix("flags.")] = value
            else:
                values[name.strip()] = value.strip()
        try:
            return ContextSpec.model_validate(values, context=Document((), {}, read_text))
        except ValidationError as error:
            mistakes = explain(error, ContextSpec, values).items()
            lines = (f"prober {command}: {below('--fact', key)}: {text}" for key, text in mistakes)
            raise ConfigError("\n".join(lines)) from None

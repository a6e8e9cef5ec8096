"""Options for the context of a result: facts that cannot be found out, and the number and price of the GPUs."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ValidationError

from prober.cli.options import RareOption
from prober.config.document import BadYaml, parse
from prober.config.fields import Document
from prober.config.problems import ConfigError, below, explain
from prober.config.serving import ContextSpec
from prober.storage.watched_file import read_text

GpuCount = Annotated[int, RareOption("--gpus", min=0, help="Number of GPUs that serve the target; 0: as found out.")]
GpuPrice = Annotated[float | None, RareOption(min=0, help="Dollars per GPU and hour, for the cost of tokens.")]


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """Facts about hardware, engine and model for the result, and the price of a GPU."""

    context: Annotated[
        str, RareOption(help="YAML file with facts for the result, by the keys of `context` in the configuration.")
    ] = ""
    fact: Annotated[
        list[str] | None, RareOption(help="Fact for the result, such as precision=bfloat16; repeatable.")
    ] = None
    gpus: GpuCount = 0
    gpu_price: GpuPrice = None

    def fields(self, command: str) -> dict[str, Any]:
        """Fields of the target that the options set. Raises ConfigError."""
        return {
            "context": self.spec(command),
            "gpus": {"count": self.gpus or None, "price_per_hour": self.gpu_price},
        }

    def spec(self, command: str) -> ContextSpec:
        """The facts of --fact and of the file; --fact has precedence. Raises ConfigError."""
        values = _from_file(command, self.context) if self.context else {}
        for text in self.fact or ():
            name, equals, value = text.partition("=")
            if not equals:
                raise ConfigError(f"prober {command}: --fact {text!r}: has no '='; write precision=bfloat16")
            if name.startswith("flags."):
                values["flags"] = {**(values.get("flags") or {}), name.removeprefix("flags."): value}
            else:
                values[name.strip()] = value.strip()
        try:
            return ContextSpec.model_validate(values, context=Document((), {}, read_text))
        except ValidationError as error:
            option = "--fact" if self.fact else f"--context {self.context}"
            mistakes = explain(error, ContextSpec, values).items()
            raise ConfigError(
                "\n".join(f"prober {command}: {below(option, key)}: {text}" for key, text in mistakes)
            ) from None


def _from_file(command: str, path: str) -> dict[str, Any]:
    try:
        values = parse(read_text(path))
    except (OSError, UnicodeDecodeError, BadYaml) as problem:
        raise ConfigError(f"prober {command}: --context {path}: cannot be read: {problem}; name a YAML file") from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"prober {command}: --context {path}: not a mapping; write lines such as `precision: bfloat16`"
        )
    return dict(values)

"""Text Generation Inference. Every error, overload too, arrives inside a 200; its OpenAI route cannot force a length."""

from prober.measure.chat import Dialect

DIALECT = Dialect(name="tgi")

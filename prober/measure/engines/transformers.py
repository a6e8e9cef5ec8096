"""transformers serve (5.23). Sends the role chunk before generating, usage with the finish reason, and no [DONE].

It answers 422 to unknown fields, so only specified ones are sent."""

from prober.measure.chat import Dialect
from prober.measure.engine_signals import EngineTable

DIALECT = Dialect(name="transformers", sends_done=False, stream_options=False, user=False)

TABLES = (EngineTable(engine="transformers", paths=(), note="transformers serve has no metrics page (none in 5.23)"),)

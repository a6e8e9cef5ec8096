"""TabbyAPI. CRLF line ends and a ping comment every 15 s."""

from prober.measure.chat import Dialect
from prober.measure.engine_signals import EngineTable

DIALECT = Dialect(name="tabbyapi", owned_by="tabbyAPI")

TABLES = (EngineTable(engine="tabbyapi", paths=(), note="TabbyAPI has no metrics page"),)

"""TabbyAPI. CRLF line ends and a ping comment every 15 s."""

from prober.measure.chat import Dialect

DIALECT = Dialect(name="tabbyapi", owned_by="tabbyAPI")

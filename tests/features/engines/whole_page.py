"""Reads an engine's page in one step, as the daemon does in slices."""

from typing import Any

from prober.exposition.parse import Page
from prober.features.engines.page_reading import Reading, in_slices
from prober.measure.engine_signals import EngineTable


def read(page: Page, table: EngineTable, **known: Any) -> Reading:
    """Signals of a page; see `in_slices`."""
    slices = in_slices(page, table, **known)
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            reading: Reading = stop.value
            return reading

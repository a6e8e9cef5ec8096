"""Readings of an engine's own page, for those who do not know how it is read."""

from collections.abc import Callable
from typing import Protocol

from prober.config.serving import MetricsSpec
from prober.measure.engine_signals import EngineChange, PageReading
from prober.net.clock import Clock
from prober.probing.target import Target


class PageListener(Protocol):
    """Listener to the readings of a page."""

    def page_read(self, reading: PageReading | None) -> None:
        """The page was read; None: it cannot be read any more."""

    def engine_changed(self, change: EngineChange) -> None:
        """The engine was restarted, or is another one than before."""


class PageSource(Protocol):
    """Reads the page of one engine."""

    async def read(self) -> bool:
        """Read once, and call the listener; False if it is known that this engine has no page."""


OpenPage = Callable[[Target, MetricsSpec, Clock, PageListener, Callable[[], str]], PageSource]

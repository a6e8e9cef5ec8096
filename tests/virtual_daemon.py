"""The whole daemon in the loop of `tests/virtual.py`. Its pages are served on real sockets."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from prober.daemon.app import App, Options
from prober.net.clock import Clock
from prober.web.views import Snapshots
from tests.processes import free_port
from tests.virtual import VirtualClock, VirtualLoop

JOB = 'job="llm-slo-prober",instance="a"'
MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC).timestamp()


def virtual_clock() -> VirtualClock:
    return VirtualClock(MIDNIGHT)


class Daemon:
    """The daemon with this configuration. scrapes: the samples of /metrics by seconds since its start"""

    def __init__(
        self,
        folder: Path,
        config: str,
        watch: Callable[[Snapshots], Awaitable[None]] | None = None,
        make_clock: Callable[[], Clock] = virtual_clock,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop, self._begin_s = loop, loop.time()
        self.scrapes: dict[int, dict[str, float]] = {}
        self._port = free_port()
        self.config = folder / "prober.yaml"
        self.config.write_text(config)
        options = Options(str(self.config), f"127.0.0.1:{self._port}", storage_path=str(folder / "store"))
        self._app = App(options, make_clock, watch)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self._app.run())
        try:
            yield
        finally:
            signal.raise_signal(signal.SIGTERM)
            await running

    async def until(self, seconds: float) -> None:
        await asyncio.sleep(self._begin_s + seconds - self._loop.time())

    async def scrape(self) -> dict[str, float]:
        """The samples of the prober now."""
        with self._loop.real_network():
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
            writer.close()
        assert head.startswith("HTTP/1.1 200"), head
        rows = (line.rpartition(" ") for line in body.splitlines() if line.startswith("llmslo_"))
        samples = {name: float(value) for name, _, value in rows}
        self.scrapes[round(self._loop.time() - self._begin_s)] = samples
        return samples

    async def scrape_at(self, times_s: range) -> None:
        for time_s in times_s:
            await self.until(time_s)
            await self.scrape()

    def series(self, rules: Path, times_s: range) -> list[dict[str, str]]:
        """The scraped series that the rules name, as `input_series` of promtool with a value at each of these times."""
        text = rules.read_text()
        samples = {sample: sample.partition("{")[0] for time_s in times_s for sample in self.scrapes[time_s]}
        named = {name for name in set(samples.values()) if name in text}
        values = {
            sample.replace("{", f"{{{JOB},", 1) if "{" in sample else f"{sample}{{{JOB}}}": " ".join(
                str(self.scrapes[time_s].get(sample, "_")) for time_s in times_s
            )
            for sample, name in sorted(samples.items())
            if name in named
        }
        values[f"up{{{JOB}}}"] = f"1+0x{len(times_s)}"
        return [{"series": name, "values": text} for name, text in values.items()]

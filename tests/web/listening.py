"""A site that listens, over a fleet that probes a mock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prober.mock.server import running
from prober.mock.service import Settings
from prober.web.server import PageServer
from prober.web.site import Site
from prober.web.web_config import WebFile
from tests.daemon.test_fleet import QUICK, Watched, specs, watched


@asynccontextmanager
async def listening(
    *targets: str,
    mock: Settings = QUICK,
    slos: str = "",
    admin: bool = False,
    external: str = "",
    prefix: str = "",
    web: Path | None = None,
    listen: str = "127.0.0.1:0",
) -> AsyncIterator[tuple[Watched, Site, PageServer]]:
    """The fleet, its site and the server of that. targets: blocks with `{url}` for that of the mock; web: --web.config.file"""

    async def reload() -> str | None:
        return None

    async with running(mock) as url, watched() as seen:
        await seen.reconcile(specs(*(each.format(url=url) for each in targets), slos=slos), 1.0)
        site = Site(
            seen.fleet, seen.sweeps, seen.families, reload, external, prefix, WebFile(str(web) if web else None)
        )
        site.api.admin = admin
        server = await site.serve(listen)
        try:
            yield seen, site, server
        finally:
            await server.close()

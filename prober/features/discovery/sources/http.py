"""Targets in a list on a server, in the format of Prometheus's http_sd."""

import asyncio
from collections.abc import Container
from random import Random

from prober.config.discovery import HttpSpec
from prober.config.problems import mask_secrets
from prober.features.discovery.sources.discovered_targets import DiscoveredTargets
from prober.features.discovery.sources.groups import BadList, read_targets
from prober.net.certificates import client_tls
from prober.net.redaction import Redactor
from prober.net.scrape import UnreadablePage, fetch
from prober.storage.watched_file import Secret

MAX_BODY_BYTES = 4 << 20
TIMEOUT_S = 10.0
MAX_MESSAGE_CHARS = 500


class Http:
    """Requests the list at the interval, ±10%, so that many probers do not ask at once.

    Messages contain neither the token nor the query of the URL, even if the server returns them.
    """

    def __init__(self, spec: HttpSpec, label_names: Container[str], discovered: DiscoveredTargets) -> None:
        self._spec, self._label_names, self._discovered = spec, label_names, discovered
        self._token = Secret(spec.auth.secret_file) if spec.auth else None
        self._rng = Random()
        self._where, self._redactor = mask_secrets(spec.url), Redactor()
        self._redactor.add_url(spec.url)
        discovered.expect(self._where)

    async def run(self) -> None:
        """Request until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(self._spec.interval * self._rng.uniform(0.9, 1.1))

    async def refresh(self) -> None:
        """Ask once."""
        headers = {"Accept": "application/json", "X-Prometheus-Refresh-Interval-Seconds": f"{self._spec.interval:g}"}
        token = self._token.read() if self._token else None
        if self._token is not None and token is None:
            self._discovered.failed(self._where, self._token.problem)
            return
        if token is not None:
            self._redactor.add_rotating(token)
            headers["Authorization"] = f"Bearer {token}"
        try:
            tls = client_tls(self._spec.tls).context() if self._spec.tls is not None else None
            page = await fetch(self._spec.url, headers=headers, tls=tls, timeout_s=TIMEOUT_S, limit=MAX_BODY_BYTES)
            kind = page.headers.get("content-type", "").partition(";")[0].strip()
            if kind.lower() != "application/json":
                raise BadList(f"its Content-Type is {kind[:60]!r}; a list of targets has application/json")
            extra = {"__meta_url": self._where}
            targets = await asyncio.to_thread(read_targets, page.body, "JSON", extra, self._label_names)
        except UnreadablePage as problem:
            self._discovered.failed(self._where, self._redactor.redact(str(problem)[:MAX_MESSAGE_CHARS]))
        except ValueError as problem:
            self._discovered.failed(
                self._where, f"{self._where}: {self._redactor.redact(str(problem)[:MAX_MESSAGE_CHARS])}"
            )
        else:
            await self._discovered.replace(self._where, targets)

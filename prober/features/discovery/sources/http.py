"""Targets in a list on a server, as Prometheus's http_sd has it."""

import asyncio
from collections.abc import Collection
from random import Random

import orjson

from prober.config.discovery import HttpSpec
from prober.config.problems import shown
from prober.features.discovery.sources.findings import Findings
from prober.features.discovery.sources.groups import BadList, targets
from prober.net.certificates import client_tls
from prober.net.redaction import Redactor
from prober.net.scrape import Unreadable, fetch
from prober.storage.watched_file import Secret

LIMIT_BYTES = 4 << 20
TIMEOUT_S = 10.0
MAX_MESSAGE_CHARS = 500  # characters of what is said of an answer


class Http:
    """Asks every now and then, a tenth more or less, so that many probers do not ask at once.

    The server may say back the token, or what the URL's query asks: neither is in what is said of it.
    """

    def __init__(self, spec: HttpSpec, kept: Collection[str], findings: Findings) -> None:
        self._spec, self._kept, self._findings = spec, kept, findings
        self._token = Secret(spec.auth.bearer_token_file) if spec.auth else None
        self._rng = Random()
        self._where, self._redactor = shown(spec.url), Redactor()
        self._redactor.add_url(spec.url)
        findings.awaits(self._where)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._spec.interval * self._rng.uniform(0.9, 1.1))

    async def look(self) -> None:
        """Ask once."""
        headers = {"Accept": "application/json", "X-Prometheus-Refresh-Interval-Seconds": f"{self._spec.interval:g}"}
        token = self._token.read() if self._token else None
        if self._token is not None and token is None:
            self._findings.failed(self._where, self._token.problem)
            return
        if token is not None:
            self._redactor.add_rotating(token)
            headers["Authorization"] = f"Bearer {token}"
        try:
            tls = client_tls(self._spec.tls).context() if self._spec.tls is not None else None
            page = await fetch(self._spec.url, headers=headers, tls=tls, timeout_s=TIMEOUT_S, limit=LIMIT_BYTES)
            kind = page.headers.get("content-type", "").partition(";")[0].strip()
            if kind.lower() != "application/json":
                raise BadList(f"its Content-Type is {kind[:60]!r}; a list of targets has application/json")
            found = targets(orjson.loads(page.body), {"__meta_url": self._where}, self._kept)
        except Unreadable as problem:
            self._findings.failed(self._where, self._redactor.redact(str(problem)[:MAX_MESSAGE_CHARS]))
        except ValueError as problem:
            self._findings.failed(
                self._where, f"{self._where}: {self._redactor.redact(str(problem)[:MAX_MESSAGE_CHARS])}"
            )
        else:
            await self._findings.replace(self._where, found)

"""Targets in DNS: SRV records, or addresses with a port. A name that does not exist means no targets; no answer is a failure."""

import asyncio
from collections.abc import Container
from random import Random

from dns.asyncresolver import Resolver
from dns.exception import DNSException
from dns.resolver import NXDOMAIN, LifetimeTimeout, NoAnswer

from prober.config.discovery import DnsSpec
from prober.features.discovery.discovered_targets import DiscoveredTargets, TargetLabels

TIMEOUT_S = 5.0


class Dns:
    """Queries every configured name at the interval, ±10%."""

    def __init__(self, spec: DnsSpec, label_names: Container[str], discovered: DiscoveredTargets) -> None:
        self._spec, self._label_names, self._discovered = spec, label_names, discovered
        self._rng = Random()
        discovered.expect(*spec.names)

    async def run(self) -> None:
        """Query until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(self._spec.interval * self._rng.uniform(0.9, 1.1))

    async def refresh(self) -> None:
        """Query every name once."""
        try:
            resolver = Resolver(configure=self._spec.server is None)  # reads /etc/resolv.conf now
        except (DNSException, OSError) as problem:
            for name in self._spec.names:
                self._discovered.failed(name, f"no DNS server is known: {problem}")
            return
        resolver.lifetime = TIMEOUT_S
        if self._spec.server is not None:
            address, resolver.port = self._spec.server
            resolver.nameservers = [address]
        await asyncio.gather(*(self._query(resolver, name) for name in self._spec.names))

    async def _query(self, resolver: Resolver, name: str) -> None:
        try:
            answer = await resolver.resolve(name, self._spec.type, search=True)
        except (NXDOMAIN, NoAnswer):
            self._discovered.replace(name, {})
            return
        except LifetimeTimeout:
            self._discovered.failed(name, f"{name} {self._spec.type}: no answer within {TIMEOUT_S:g} s")
            return
        except (DNSException, OSError) as problem:
            self._discovered.failed(name, f"{name} {self._spec.type}: {str(problem) or type(problem).__name__}")
            return
        targets: dict[str, TargetLabels] = {}
        for record in answer:
            labels = {"__meta_dns_name": name}
            if self._spec.type == "SRV":
                host, port = record.target.to_text(omit_final_dot=True), record.port
                if host in (".", ""):
                    continue  # RFC 2782: there is no such service
                labels |= {"__meta_dns_srv_record_target": host, "__meta_dns_srv_record_port": str(port)}
            else:
                host, port = record.address, self._spec.port
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            labels = {label: value for label, value in labels.items() if label in self._label_names}
            targets[address] = ({**labels, "__address__": address},)
        self._discovered.replace(name, targets)

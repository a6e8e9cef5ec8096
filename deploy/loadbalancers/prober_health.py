"""Leaves out the deployments of LiteLLM whose prober says that they do not generate. See docs/guides/health.md.

Beside config.yaml, with `litellm_settings: {callbacks: prober_health.filter}` in it.
"""

import time

import httpx
from litellm.integrations.custom_logger import CustomLogger

AGE_S = 2.0


class ProberHealth(CustomLogger):
    def __init__(self) -> None:
        self._client = httpx.AsyncClient(timeout=0.5)
        self._known: dict[str, tuple[float, bool]] = {}

    async def async_filter_deployments(
        self, model, healthy_deployments, messages, request_kwargs=None, parent_otel_span=None
    ):
        kept = [deployment for deployment in healthy_deployments if await self._generates(deployment)]
        return kept or healthy_deployments

    async def _generates(self, deployment) -> bool:
        url = deployment.get("model_info", {}).get("prober_health")
        if url is None:
            return True
        at_s, generates = self._known.get(url, (0.0, True))
        if time.monotonic() - at_s > AGE_S:
            try:
                generates = (await self._client.get(url)).status_code != 503
            except httpx.HTTPError:
                generates = True
            self._known[url] = time.monotonic(), generates
        return generates


filter = ProberHealth()

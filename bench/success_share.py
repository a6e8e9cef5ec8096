"""Success of users' requests as a daemon counts it from a real server's page, against what the clients of a known load got.

    python -m bench.success_share --vllm http://127.0.0.1:8000 [--model tiny]
    python -m bench.success_share --litellm http://127.0.0.1:4000 --key sk-… --model half

The load is of four kinds: good requests, requests that are wrong themselves (400, 404), bursts that overfill the queue of vLLM
(`--max-num-queued-reqs 6`), and clients that go away in mid-answer. LiteLLM's model has two servers: that vLLM, and one that is down.
Truth is the status that each client got. The daemon of this repository reads the page; its own probes are one an hour.
"""

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp

from bench.report import goal, part, show
from tests.processes import Daemon, until

CONFIG = """
defaults: {{rate: 1/h, warmup: 0}}
slos: {{ok: {{signal: success, objective: 99%}}}}
targets:
  - {{name: t, url: '{url}', engine: {engine}, model: {model}, metrics: {{interval: 1s, slos: [ok]}}{key}, probes: [{{slos: [ok]}}]}}
"""
READY_S = 60.0
SETTLE_S = 4.0  # LiteLLM counts a request some time after its answer; the page is read each second
ROUNDS, GOOD, WRONG, BURST, GONE = 5, 20, 5, 40, 3


class Load:
    """Sends requests and notes what each client got. statuses: by kind; `gone` are those that the client gave up"""

    def __init__(self, url: str, key: str) -> None:
        self.url, self.statuses = url, Counter[str]()
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def ask(self, session: aiohttp.ClientSession, model: str, *, leave: bool = False, **body: object) -> None:
        """One streamed request. leave: go away after the first bytes"""
        request = {
            "model": model,
            "messages": [{"role": "user", "content": "Count."}],
            "max_tokens": 16,
            "stream": True,
        }
        async with session.post(
            f"{self.url}/v1/chat/completions", json=request | body, headers=self._headers
        ) as answer:
            if leave and answer.status == 200:
                await answer.content.readany()
                self.statuses["gone"] += 1
                return
            text = await answer.text()
            in_stream = answer.status == 200 and 'data: {"error"' in text
            self.statuses["error in stream" if in_stream else str(answer.status)] += 1

    async def round(self, model: str) -> None:
        """One round of all kinds."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            for _ in range(GOOD):
                await self.ask(session, model)
            for _ in range(WRONG):
                await self.ask(session, model, max_tokens=-1)
                await self.ask(session, "no-such-model")
            await asyncio.gather(*(self.ask(session, model) for _ in range(BURST)))
            for _ in range(GONE):
                await self.ask(session, model, leave=True, max_tokens=400)


def counted(daemon: Daemon) -> tuple[float, float]:
    """(events, bad events) that the daemon exports."""
    events, bad = (daemon.value(f"llmslo_slo_traffic_{name}_total", target="t") for name in ("events", "bad_events"))
    return events, bad


def measured(engine: str, url: str, model: str, key: str) -> dict[str, object]:
    """Counts of the daemon and of the clients for the same load."""
    load = Load(url, key)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "token").write_text(key)
        auth = f", auth: {{bearer_token_file: {folder}/token}}" if key else ""
        text = CONFIG.format(url=url, model=model, engine=engine, key=auth)
        daemon = stack.enter_context(Daemon(folder, text, ready_s=READY_S))
        asyncio.run(load.round(model))  # the page of LiteLLM has no series before
        until(lambda: daemon.value("llmslo_engine_requests_judged_total", target="t"), "a page that counts", READY_S)
        time.sleep(SETTLE_S)
        before, load.statuses = counted(daemon), Counter()
        for _ in range(ROUNDS):
            asyncio.run(load.round(model))
        time.sleep(SETTLE_S)
        after = counted(daemon)
    statuses = load.statuses
    bad = sum(
        count for status, count in statuses.items() if status.startswith("5") or status in ("429", "error in stream")
    )
    return {
        "statuses": dict(statuses),
        "events": after[0] - before[0],
        "bad": after[1] - before[1],
        "true_bad": bad,
        "true_good": statuses["200"],
        "gone": statuses["gone"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm")
    parser.add_argument("--litellm")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--key", default="")
    options = parser.parse_args()
    name = "vllm" if options.vllm else "litellm"
    found = part(name, measured(name, options.vllm or options.litellm, options.model, options.key))
    bad, true_bad, events = float(str(found["bad"])), float(str(found["true_bad"])), float(str(found["events"]))
    assert true_bad, (
        "no request failed, so nothing is proved: see the beginning of this file for a server that fails some"
    )
    judged = float(str(found["true_good"])) + true_bad
    gone = float(str(found["gone"]))
    goals = [
        goal(f"{name}: bad events, difference to what clients got", abs(bad - true_bad), 0, "requests"),
        # Whether the answer of a client that went away ended before the server noticed is chance.
        goal(
            f"{name}: events, difference to what clients got",
            max(0.0, judged - events, events - judged - gone),
            0,
            "requests",
        ),
    ]
    show("success_share", goals, **{name: found})


if __name__ == "__main__":
    main()

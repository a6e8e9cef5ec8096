"""`prober matrix` on adapters, against an engine of another structure than the mock's."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tests.commands import prober
from tests.scripted import Asked, scripted
from tests.virtual_commands import beside
from tests.wire.case import Step
from tests.wire.events import DONE, chat, text, usage
from tests.wire.heads import UNTIL_CLOSE, body, joined

SLOTS, LOAD_S, TTFT_S = 2, 0.06, 0.02
ROWS = """
rows:
- {name: turns, prompt_tokens: 20, output_tokens: 3, adapters: {names: [a, b, c, d], turn: 5}, rate: 6/s, duration: 60s,
   accept: ['success:90%']}
- {name: storm, prompt_tokens: 20, output_tokens: 3, adapters: {names: [a, b, c, d]}, rate: 6/s, duration: 5s, against: turns,
   accept: ['success:60%']}
"""


@dataclass
class BlockingEngine:
    """An engine that stops all of its work while it loads an adapter into the slot with the oldest time of use."""

    used_s: dict[str, float] = field(default_factory=dict)
    served: list[tuple[str, float, bool]] = field(
        default_factory=list
    )  # adapter, time to the first token, caused a load
    work: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def reply(self, asked: Asked) -> AsyncGenerator[Step, None]:
        if asked.path.startswith("/v1/models"):
            models = [{"id": name, "parent": "base" if len(name) == 1 else None} for name in ("base", *"abcd")]
            yield joined(*body("200 OK", {"data": models}))
        elif asked.method == "POST":
            yield await self.generate(asked.json["model"], asked.json["max_tokens"], asked.at_s)
        else:
            yield joined(*body("404 Not Found", ""))

    async def generate(self, model: str, tokens: int, arrived_s: float) -> bytes:
        async with self.work:
            is_load = model != "base" and model not in self.used_s
            if is_load:
                if len(self.used_s) == SLOTS:
                    self.used_s.pop(min(self.used_s, key=lambda name: self.used_s[name]))
                await asyncio.sleep(LOAD_S)
            if model != "base":
                self.used_s[model] = asyncio.get_running_loop().time()
        await asyncio.sleep(TTFT_S)
        self.served.append((model, asyncio.get_running_loop().time() - arrived_s, is_load))
        return UNTIL_CLOSE + text(" x") * (tokens - 1) + chat({"content": " x"}, "length") + usage(tokens, 20) + DONE


def test_first_uses_are_the_loads_of_an_independent_engine(tmp_path: Path) -> None:
    """As many as it loaded, apart from the edges of the warm-up; TTFT of both kinds is its own, and a storm loads for each request."""
    path = tmp_path / "rows.yaml"
    path.write_text(ROWS)
    engine = BlockingEngine()
    with beside(partial(scripted, engine.reply)) as (url,):
        done = prober("matrix", url, "--file", path, "--json", "--warm-up", "6", "--burst", "0s")
    assert done.returncode == 0, done.stderr
    stages: list[Any] = json.loads(done.stdout)["llm_slo_prober"]["result"]["stages"]
    turns, storm = (stage["adapters"] for stage in stages)
    sent = [stage["sent"] for stage in stages]
    served = [request for request in engine.served if request[0] != "base"]
    assert [name for name, _, _ in served[:6]] == ["d"] * 6  # the warm-up
    of_turns, of_storm = served[6 : 6 + sent[0]], served[-sent[1] :]
    assert turns["adapters"] == 4
    assert abs(turns["first_uses"] - sum(load for _, _, load in of_turns)) <= 1
    assert turns["first_uses"] + turns["loaded"] + turns["unclear"] == sent[0]
    assert turns["unclear"] < 0.3 * sent[0]
    first, loaded = (next(q for q in turns[f"{kind}_ttft"] if q["q"] == 0.5) for kind in ("first", "loaded"))
    true_first = median(ttft_s for _, ttft_s, load in of_turns if load)
    assert 0 <= first["estimate"] - true_first < 0.03
    assert TTFT_S <= loaded["estimate"] < TTFT_S + 0.03
    (p50,) = (ratio for ratio in turns["ratios"] if ratio["q"] == 0.5)
    assert p50["lower"] <= first["estimate"] / loaded["estimate"] <= p50["upper"]
    assert storm["loaded"] == 0
    assert sum(load for _, _, load in of_storm) >= 0.8 * sent[1]
    assert storm["first_uses"] >= 0.8 * sent[1]  # the others come while their adapter is still in use
    contrast = stages[1]["contrast"]
    assert (contrast["name"], contrast["throughput"], contrast["blocks"][0] < 10) == ("turns", None, True)

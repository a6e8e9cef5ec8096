"""Odd rows in the store of one target: the prober starts, sets them aside and says so, and its neighbour has all that was saved.

The rows are those of a real life of the daemon, in virtual time, and odd content in place of them.
"""

import json
import logging
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from prober.daemon.app import App, Options
from prober.mock.server import create_app
from prober.mock.service import Settings
from prober.storage.store import UNREADABLE_SUFFIX, Store, UnusableStore
from tests.processes import free_port
from tests.seeds import seeds
from tests.serving import serving
from tests.virtual import VirtualClock
from tests.virtual_daemon import Daemon

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("garbage_collector")]
CONFIG = """
defaults: {rate: 1/s, warmup: 0}
slos: {ttft: {signal: ttft, threshold: 2s, objective: 99%}}
workloads: {short: {prompt_tokens: 20, output_tokens: 2}}
targets:
  - {name: ill, url: 'http://192.0.2.1:8000', budget: {tokens_per_day: 2000000}, probes: [{workload: short, slos: [ttft]}]}
  - {name: near, url: 'http://192.0.2.2:8000', budget: {tokens_per_day: 2000000}, probes: [{workload: short, slos: [ttft]}]}
"""
LIFE_S = 600.0
ODD: list[Any] = [*(b"", b"{", b"null", b"[]", b"1", b'"x"', b"\xff\xfe", b"{}", b'{"budgets": null}', b"[" * 100_000)]
NUMBERS: tuple[Any, ...] = (1e308, -1e308, float("nan"), float("inf"), -1, 0, 2**80, 1e-320, "x", None, [], {}, True)


@asynccontextmanager
async def engines() -> AsyncIterator[None]:
    one, other = (create_app(Settings(seed=1), VirtualClock) for _ in range(2))
    async with serving(one, 8000, "192.0.2.1"), serving(other, 8000, "192.0.2.2"):
        yield


async def live(folder: Path, seconds: float) -> dict[str, float]:
    """Run the daemon for so long, and return the samples of its page at the end."""
    daemon = Daemon(folder, CONFIG, make_clock=VirtualClock)
    async with daemon.running():
        await daemon.until(seconds)
        return await daemon.scrape()


def spent(samples: dict[str, float], target: str) -> float:
    return 1 - samples[f'llmslo_budget_remaining_ratio{{target="{target}",budget="tokens"}}']


def edit(store: Path, content: Any) -> list[str]:
    """Replace all rows of the ill target, by `content` or by what it returns for them; returns their kinds."""
    with sqlite3.connect(store) as connection:
        rows = connection.execute("SELECT rowid, kind, data FROM state WHERE key LIKE '%ill%'").fetchall()
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for rowid, _, data in rows:
            odd = content(data) if callable(content) else content
            if odd is not None:
                connection.execute("UPDATE state SET data = ? WHERE rowid = ?", (odd, rowid))
    connection.close()
    return [kind for _, kind, _ in rows]


def mutated(rng: Random, data: bytes) -> bytes:
    """The JSON with some of its values replaced, or bytes of it."""
    try:
        document = json.loads(data)
    except ValueError:
        at = rng.randrange(len(data))
        return data[:at] + rng.randbytes(3) + data[at + 3 :]

    def replaced(value: Any) -> Any:
        if rng.random() < 0.15:
            return rng.choice(NUMBERS)
        if isinstance(value, dict):
            return {name: replaced(part) for name, part in value.items()}
        return [replaced(part) for part in value] if isinstance(value, list) else value

    return json.dumps(replaced(document)).encode()


@seeds(20)
async def test_odd_rows_of_one_target_stop_no_start(
    seeds: range, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows of no meaning, and rows with changed bytes or values: the others' are restored, and the daemon says which it left out."""
    caplog.set_level(logging.ERROR)
    async with engines():
        real = tmp_path / "real"
        real.mkdir()
        before = await live(real, LIFE_S)
        assert spent(before, "near") == pytest.approx(LIFE_S * 11e-6, rel=0.3)
        cases = ODD + [partial(mutated, Random(seed)) for seed in seeds]
        for number, content in enumerate(cases):
            folder = tmp_path / str(number)
            store = folder / "store/prober.db"
            store.parent.mkdir(parents=True)
            shutil.copy(real / "store/prober.db", store)
            caplog.clear()
            kinds = edit(store, content)
            assert {"budget", "engine"} <= set(kinds)
            after = await live(folder, 30.0)
            assert spent(after, "near") >= spent(before, "near"), content
            assert 0 <= spent(after, "ill") <= 1, content
            # A huge amount is believed: a budget that is wrong holds probes back rather than to overspend.
            is_used_up = spent(after, "ill") == 1
            assert is_used_up or after['llmslo_target_state{target="ill",state="ready"}'] == 1, content
            assert after['llmslo_target_state{target="near",state="ready"}'] == 1, content
            assert not [name for name, value in after.items() if "task_failures" in name and value], content
            with sqlite3.connect(store) as connection:
                aside = connection.execute(
                    "SELECT count(*) FROM state WHERE kind LIKE ?", (f"%{UNREADABLE_SUFFIX}",)
                ).fetchone()[0]
            connection.close()
            assert bool(aside) == bool(caplog.records), content
            if not callable(content) and content is not None:
                assert aside >= 2, content


async def test_a_store_saved_in_the_future_is_said_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The clock of the machine was set back by 40 days since: all rows count as saved now."""
    clock = VirtualClock()
    store = Store(str(tmp_path / "store"))
    store.save("drift", [("gone", b"x")], clock.unix_s() + 40 * 86_400)
    store.close()
    clock.close()
    await live(tmp_path, 1.0)
    assert "was saved 3456000 s after this clock's time, and counts as saved now; check the clock" in caplog.text
    store = Store(str(tmp_path / "store"))
    assert store.load("drift")["gone"] == b"x"
    store.close()


async def test_rows_that_the_disk_does_not_return_end_the_start_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --keep-running."""

    def failing(*_: object) -> dict[str, bytes]:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(Store, "load", failing)
    (tmp_path / "prober.yaml").write_text(CONFIG)
    options = Options(str(tmp_path / "prober.yaml"), f"127.0.0.1:{free_port()}", storage_path=str(tmp_path))
    with pytest.raises(
        UnusableStore, match=r"--storage.path .*: cannot be read: disk I/O error; repair the disk, or move"
    ):
        await App(options, VirtualClock).run()

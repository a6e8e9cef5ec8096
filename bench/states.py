"""What the page, the overview, the API and the alerts say of each scene of `prober demo`, at one moment of one run.

All scenes run side by side with the shipped rules in a real Prometheus. After `--minutes` each target's page is read as text, the
queries of the overview's table of targets are asked as Grafana asks them, the API is asked, and the alerts that fire are listed.
`EXPECTED` was written before the first run: what an on-call person should be told of each scene. Since then `may` has the alerts
that were true and not thought of. Page, overview and API contradict each other if they name different states, of the target or of
its worst SLO; alerts contradict them if `LLMTargetFailing` fires for a target that is not failing, or does not for one that is, or
if an alert on an SLO fires for a target that meets all of them. A target is unexpected if one of the four says something else
than is written here.
"""

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from html import unescape
from typing import Any

from bench.report import goal, require, show
from prober.cli.scenes import SCENES
from prober.daemon.dashboards import documents

COMMAND = [sys.executable, "-m", "prober", "demo", "--scene", "all", "--trouble-after", "2m"]
SLO_WORDS = {"met": "met", "no_data": "no data", "missed": "missed"}
WORST = ("missed", "no data", "met")
AGAIN, AGAIN_AFTER_S = 5, 7.0  # Prometheus knows of a change after 10 s, so who disagrees is read again
BURN, SILENT = "LLMErrorBudgetBurn", "LLMSLONoData"


@dataclass(frozen=True, slots=True)
class Expected:
    """What is to be said of a target. slos: the worst state of its SLOs; fires: alerts that must; may: others that are true too"""

    state: str
    slos: str
    fires: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()


def expected(state: str, slos: str, *fires: str, may: tuple[str, ...] = ()) -> Expected:
    """An `Expected`."""
    return Expected(state, slos, frozenset(fires), frozenset(may))


MISSED = expected("ready", "missed", BURN)
EXPECTED = {
    "healthy": expected("ready", "met"),
    "drift-healthy": expected("ready", "no data"),
    "dead": expected("failing", "missed", "LLMTargetFailing"),
    "broken": expected("failing", "missed", "LLMTargetFailing"),
    "slow": MISSED,
    "flaky": MISSED,
    "limited": MISSED,
    "cut": MISSED,
    "full": expected("ready", "missed", BURN, may=("LLMKVCachePressure",)),
    "loading": expected("starting", "no data", SILENT, may=(BURN,)),
    "draining": expected("draining", "no data", SILENT, may=(BURN,)),
    "hidden": expected("ready", "met"),
    "upgraded": expected("ready", "missed", BURN),
    "drift": expected("ready", "no data", "LLMTTFTP99Drift", "LLMITLP99Drift"),
}


def main() -> None:
    """Run all scenes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="until everything is read; alerts take up to 13 of them"
    )
    minutes = parser.parse_args().minutes
    require("prometheus")
    if missing := set(SCENES) - set(EXPECTED):
        raise SystemExit(f"bench.states: EXPECTED says nothing of {', '.join(sorted(missing))}")
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as demo:
        try:
            prober, prometheus = addresses(demo)
            time.sleep(60 * minutes)
            rows = _rows(prober, prometheus)
            for _ in range(AGAIN):
                if all(row["agree"] for row in rows.values()):
                    break
                time.sleep(AGAIN_AFTER_S)
                rows |= {name: row for name, row in _rows(prober, prometheus).items() if not rows[name]["agree"]}
        finally:
            demo.terminate()
    contradicted = [name for name, row in rows.items() if not row["agree"]]
    unexpected = [name for name, row in rows.items() if row["unexpected"]]
    show(
        "states",
        [
            goal(
                "targets of which page, overview, API and alerts contradict each other", len(contradicted), 0, "targets"
            ),
            goal("targets of which something else is said than was expected", len(unexpected), 0, "targets"),
        ],
        minutes=minutes,
        contradicted=contradicted,
        unexpected=unexpected,
        targets=rows,
    )


def addresses(demo: "subprocess.Popen[str]") -> tuple[str, str]:
    """Of the prober and of Prometheus, as the demo prints them."""
    found: dict[str, str] = {}
    assert demo.stdout is not None
    for line in demo.stdout:
        if match := re.match(r"(prober|Prometheus) +(http://[\d.:]+)", line):
            found[match[1]] = match[2]
        if line.startswith("Ctrl-C"):
            if "Prometheus" not in found:
                raise SystemExit("the demo runs without Prometheus: `make tools` fetches it")
            return found["prober"], found["Prometheus"]
    raise SystemExit("the demo ended before it told its addresses")


def get(url: str) -> str:
    """Body of the answer."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def _rows(prober: str, prometheus: str) -> dict[str, dict[str, Any]]:
    """What each of the four says of each target, and whether they agree."""
    api = {target["name"]: target for target in json.loads(get(f"{prober}/api/v1/targets"))["data"]}
    table = {name: _column(prometheus, name) for name in ("State", "SLOs")}
    alerts: dict[str, set[str]] = {}
    for alert in json.loads(get(f"{prometheus}/api/v1/alerts"))["data"]["alerts"]:
        if alert["state"] == "firing":
            alerts.setdefault(alert["labels"].get("target", ""), set()).add(alert["labels"]["alertname"])
    rows: dict[str, dict[str, Any]] = {}
    for name, target in api.items():
        page = get(f"{prober}/?{urllib.parse.urlencode({'target': name})}")
        states = {
            "page": _one(r'class="state">state: ([a-z]+)', page),
            "overview": table["State"].get(name, ""),
            "api": target["state"],
        }
        slos = {
            "page": _worst(re.findall(r'<li class="chip \w+">.*?(met|missed|no data)</li>', page)),
            "overview": table["SLOs"].get(name, ""),
            "api": _worst([SLO_WORDS[slo["state"]] for slo in target["slos"]]),
        }
        firing = alerts.get(name, set())
        of = EXPECTED[name]
        rows[name] = {
            "headline": _one(r'<h1 id="verdict"[^>]*>(.*?)</h1>', page),
            "state": states,
            "slos": slos,
            "alerts": sorted(firing),
            "agree": len(set(states.values())) == 1
            and len(set(slos.values())) == 1
            and _agrees(target["state"], slos, firing),
            "unexpected": sorted(
                ({of.state} ^ {states["api"]})
                | ({of.slos} ^ {slos["api"]})
                | (of.fires - firing)
                | (firing - of.fires - of.may)
            ),
        }
    return rows


def _agrees(state: str, slos: dict[str, str], firing: set[str]) -> bool:
    """Whether the alerts that fire are no contradiction to these states."""
    return ("LLMTargetFailing" in firing) == (state == "failing") and not (slos["api"] == "met" and BURN in firing)


def _column(prometheus: str, name: str) -> dict[str, str]:
    """Words of a column of the overview's table by target, from its query and its mapping."""
    (panel,) = (each for each in documents()["overview.json"]["panels"] if each.get("title") == "Targets")
    mappings = {
        override["matcher"]["options"]: one["value"][0]["options"]
        for override in panel["fieldConfig"]["overrides"]
        for one in override["properties"]
        if one["id"] == "mappings"
    }
    query = panel["targets"][("State", "SLOs").index(name)]["expr"].replace("$cluster", "")
    query = re.sub(r"\$\w+", ".*", query)
    found = json.loads(get(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"))["data"]["result"]
    return {each["metric"]["target"]: mappings[name][each["value"][1]]["text"] for each in found}


def _one(pattern: str, page: str) -> str:
    match = re.search(pattern, page, re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", "", match[1])).split()) if match else ""


def _worst(states: list[str]) -> str:
    return min(states, key=WORST.index, default="")


if __name__ == "__main__":
    main()

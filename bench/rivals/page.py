"""The page of the documentation: what is missed first, then the tables, then the command of each row."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.report import machine
from bench.rivals import clock, continuous, knee, truth
from bench.rivals.clients import CLIENTS
from bench.rivals.install import VERSIONS

INTRODUCTION = """\
# Beside the field
`python -m bench.rivals --page FILE` wrote this page, in one run on one machine. Each goal is the best figure of the others, or no fault
at all. The others were called as their documentation advises; their versions and the commands are at the end.
"""


def page(found: dict[str, Any], goals: Sequence[dict[str, Any]]) -> str:
    """The page, in Markdown."""
    on = machine()
    parts = [INTRODUCTION, f"{on['cpu']}, {on['cores']} cores, Python {on['python']}, load {on['load_1m']} at the end."]
    missed, met = ([one for one in goals if one["met"] is state] for state in (False, True))
    for title, rows in (("Missed", missed), ("Met", met)):
        cells = ([one["name"], f"{one['value']:g} {one['unit']}", f"{one['goal']:g} {one['unit']}"] for one in rows)
        parts.append(f"## {title}\n" + (table(("goal", "the prober", "at most"), cells) if rows else "Nothing."))
    for name, section in SECTIONS.items():
        if name in found:
            parts.append(section(found[name]))
    parts.append("## Versions\n" + table(("rival", "version"), VERSIONS.items()))
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in lines
    )


def _headed(documentation: str | None) -> str:
    """A section's head and first paragraphs, from the documentation of its module."""
    title, _, text = (documentation or "").partition(": ")
    return f"## {title}\n{text[:1].upper()}{text[1:].strip()}"


def _clock(found: dict[str, Any]) -> str:
    head = (
        *("client", "TTFT error p50; p99, ms", "ITL error p50; p99, ms", "answers with all gaps", "rate reached, 1/s"),
        *("CPU, s per 1,000 tokens", "memory, MB", "start, s"),
    )
    parts = [_headed(clock.__doc__)]
    for scene, runs in found.items():
        parts.append(
            f"### {scene}\n" + table(head, ([name, *_clock_cells(of, len(head) - 1)] for name, of in runs.items()))
        )
    parts.append(_commands(found[clock.SCENES[0].name]))
    return "\n\n".join(parts)


def _clock_cells(of: dict[str, Any], count: int) -> list[str]:
    if "problem" in of:
        return [of["problem"][-300:], *[""] * (count - 1)]
    kind = " (of means)" if of["itl_of"] == "means" else ""
    return [
        _spread(of["ttft_error_ms"]),
        _spread(of["itl_error_ms"]) + kind,
        f"{of['itl_answers_compared_ratio']:.0%}",
        f"{of['rate_per_s']:g}",
        f"{of['cpu_s_per_1k_tokens']:.3f}",
        str(of["memory_mb"]),
        f"{of['start_s']:g}",
    ]


def _spread(values: dict[str, float]) -> str:
    return f"{values['p50']:.3f}; {values['p99']:.3f}" if values else "none"


def _truth(found: dict[str, Any]) -> str:
    rows = []
    for client in CLIENTS:
        of = found[client.name]
        if wrong := of.get("wrong"):
            rows.append(
                [
                    client.name,
                    *(": ".join(filter(None, (str(len(words)), "; ".join(words)))) for words in wrong.values()),
                ]
            )
        else:
            rows.append([client.name, of["problem"][-300:], "", ""])
    head = ("client", "wrong verdicts", "wrong or no numbers of tokens", "wrong or no TTFTs")
    return "\n\n".join((_headed(truth.__doc__), table(head, rows), _commands(found)))


def _continuous(found: dict[str, Any]) -> str:
    names = (continuous.OURS, continuous.BLACKBOX)
    parts = [_headed(continuous.__doc__)]
    if costs := found.get("costs"):
        rows = [[name, costs[name]["cpu_ms_per_probe"], costs[name]["memory_mb"]] for name in names]
        parts.append(table(("prober", "CPU of a probe, ms", "memory, MB"), rows))
    if faults := found.get("faults"):
        rows = [[f"{name}: {of['fault']}", *(of[one] or "nothing" for one in names)] for name, of in faults.items()]
        parts.append(table(("fault", *names), rows))
    if found["left_out"]:
        parts.append(f"For want of time not measured: {', '.join(found['left_out'])}.")
    return "\n\n".join(parts)


def _knee(rows: list[dict[str, Any]]) -> str:
    head = ("engine", "knee, 1/s", "background, 1/s", *(search.name for search in knee.SEARCHES))
    cells = [
        [row["engine"], row["knee_per_s"], row["background_per_s"], *(_search(row[one.name]) for one in knee.SEARCHES)]
        for row in rows
    ]
    return "\n\n".join((_headed(knee.__doc__), table(head, cells), *([_commands(rows[0])] if rows else [])))


def _search(of: dict[str, Any]) -> str:
    answer = f"{of['rate_per_s']:g} ({of['error']:+.0%})" if "error" in of else of["problem"][:200]
    return f"{answer}; {of['requests']} requests, {of['seconds']} s, {of['harmed']} harmed"


def _commands(runs: dict[str, Any]) -> str:
    rows = ([name, f"`{of['command']}`"] for name, of in runs.items() if isinstance(of, dict) and "command" in of)
    return table(("client", "command"), rows)


SECTIONS: dict[str, Callable[[Any], str]] = {"clock": _clock, "truth": _truth, "continuous": _continuous, "knee": _knee}

"""The file of a workload matrix: its rows out, or every mistake at once.

Lengths, prefixes and objectives are those of a configuration, and `load` checks them: each row becomes a workload and its
probe there, under its number, and what `load` says of that is told of the row.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import yaml

from prober.config import units
from prober.config.document import BadYaml, parse
from prober.config.load import ConfigError, load
from prober.config.objectives import WRITE, Objective, block, named, objective
from prober.config.problems import Problems, no_such
from prober.measure.objective import Slo
from prober.workload.workloads import Workload

T = TypeVar("T")
MOST_IN_FLIGHT = 2_000
_SHAPE = ("prompt_tokens", "output_tokens", "prefix")
KEYS = ("name", *_SHAPE, "rate", "concurrency", "requests", "duration", "hypothesis", "accept")
_NAME = re.compile(r"[\w.-]{1,100}")
_LEAST = "the least that works is `rows: [{name: a, prompt_tokens: 256, output_tokens: 64, rate: 2/s, requests: 400, "
_LEAST += "accept: ['ttft<500ms:99%']}]`"


@dataclass(frozen=True, slots=True)
class Row:
    """A shape of request, how it is sent, and what it must keep.

    rate_per_s: of an open loop, or concurrency: requests that a closed loop keeps in flight; the other one is None
    requests: how many, or duration_s: how long is sent; the other one is None
    slos: all of them must hold, of a name that no other objective of the file has; hypothesis: what is expected, for people
    """

    name: str
    workload: Workload
    slos: tuple[Slo, ...]
    rate_per_s: float | None = None
    concurrency: int | None = None
    requests: int | None = None
    duration_s: float | None = None
    hypothesis: str = ""

    @property
    def closed(self) -> bool:
        """A request waits for another one's answer."""
        return self.concurrency is not None


def load_rows(text: str, *, source: str) -> tuple[Row, ...]:
    """The rows of a file, in their order; `source` names it in messages. Raises ConfigError with a line for each mistake."""
    try:
        raw = parse(text)
    except BadYaml as problem:
        raise ConfigError(f"{source}: {problem}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: not a mapping; {_LEAST}")
    problems = Problems(source)
    for key in raw:
        if key != "rows":
            problems.add("", no_such("key", str(key), ["rows"]))
    listed = raw.get("rows")
    if not isinstance(listed, list) or not listed:
        problems.add("rows", f"needed: a list of rows; {_LEAST}")
        listed = []
    reader = _Reader(problems)
    for index, row in enumerate(listed):
        reader.row(index, row)
    found = reader.rows()
    if problems.lines:
        raise ConfigError("\n".join(problems.lines))
    return found


class _Reader:
    """Rows as they are read: what a row alone has is read here, the rest is kept for `load`."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._own: dict[int, dict[str, Any]] = {}
        self._workloads: dict[str, dict[str, Any]] = {}
        self._accepted: dict[str, list[Objective]] = {}
        self._places: dict[Objective, str] = {}  # where each one stands first
        self._names: dict[str, int] = {}

    def row(self, index: int, raw: Any) -> None:
        """The next one."""
        place = f"rows[{index}]"
        if not isinstance(raw, dict):
            self._problems.add(place, f"{raw!r} is not a mapping of keys; write it as key: value")
            return
        for key in raw:
            if key not in KEYS:
                self._problems.add(f"{place}.{key}", no_such("key", str(key), KEYS))
        given = {key: value for key, value in raw.items() if value is not None}
        self._one_of(given, ("rate", "concurrency"), "an open loop has a rate, a closed one a concurrency", place)
        self._one_of(given, ("requests", "duration"), "how many, or for how long", place)
        self._own[index] = {
            "name": self._name(index, given, place),
            "rate_per_s": self._read(given, "rate", units.rate, place),
            "concurrency": self._read(given, "concurrency", _concurrency, place),
            "requests": self._read(given, "requests", _requests, place),
            "duration_s": self._read(given, "duration", _duration, place),
            "hypothesis": self._read(given, "hypothesis", _text, place) or "",
        }
        self._workloads[str(index)] = {key: given[key] for key in _SHAPE if key in given}
        self._accepted[str(index)] = self._accept(given.get("accept"), f"{place}.accept")

    def rows(self) -> tuple[Row, ...]:
        """All of them, with what `load` makes of them and says of them; not to be used where there are problems."""
        if not self._own:
            return ()
        names = named(self._places)
        probes = [
            {"workload": workload, "slos": [names[each] for each in accepted]}
            for workload, accepted in self._accepted.items()
        ]
        target = {"url": "http://localhost", "name": "rows", "probes": probes}
        document = {"targets": [target], "slos": block(self._places), "workloads": self._workloads}
        try:
            specs = load(yaml.safe_dump(document), source="", engines=(), environment={}, read=_no_file)
        except ConfigError as problem:
            for line in str(problem).splitlines():
                where, _, what = line.removeprefix(": ").partition(": ")
                self._problems.add(self._place(where), what)
            return ()
        if self._problems.lines:
            return ()
        return tuple(
            Row(workload=_named(probe.workload, own["name"]), slos=probe.slos, **own)
            for own, probe in zip(self._own.values(), specs.targets[0].probes, strict=True)
        )

    def _name(self, index: int, given: Mapping[str, Any], place: str) -> str:
        name = given.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            said = "needed, but not given" if name is None else f"{name!r} cannot be a name"
            self._problems.add(f"{place}.name", f"{said}; use up to 100 letters, digits, '_', '.' and '-'")
            return ""
        if name in self._names:
            self._problems.add(
                f"{place}.name", f"rows[{self._names[name]}] is called {name!r} too; give each a name of its own"
            )
        self._names.setdefault(name, index)
        return name

    def _one_of(self, given: Mapping[str, Any], keys: tuple[str, str], why: str, place: str) -> None:
        both = [key for key in keys if key in given]
        if len(both) != 1:
            said = f"has `{keys[0]}` and `{keys[1]}`; keep one of them" if both else f"needs `{keys[0]}` or `{keys[1]}`"
            self._problems.add(place, f"{said}: {why}")

    def _read(self, given: Mapping[str, Any], key: str, read: Callable[[Any], T], place: str) -> T | None:
        try:
            return read(given[key]) if key in given else None
        except ValueError as problem:
            self._problems.add(f"{place}.{key}", str(problem))
            return None

    def _accept(self, texts: Any, place: str) -> list[Objective]:
        """The row's objectives."""
        if not isinstance(texts, list) or not texts:
            self._problems.add(place, "needed: a list of what must hold, such as ['ttft<500ms:99%', 'success:99%']")
            return []
        found: list[Objective] = []
        for index, text in enumerate(texts):
            read = objective(text)
            if read is None or read.signal == "quality":
                why = "judges golden prompts, which a row has not" if read else "is no objective"
                self._problems.add(f"{place}[{index}]", f"{text!r} {why}; {WRITE}")
                continue
            self._places.setdefault(read, f"{place}[{index}]")
            found.append(read)
        return list(dict.fromkeys(found))

    def _place(self, where: str) -> str:
        """A path of the configuration as one of the file."""
        if match := re.match(r"workloads\.(\d+)", where):
            return f"rows[{match[1]}]{where[match.end() :]}"
        if match := re.match(r"slos\.([\w-]+)", where):
            return next(self._places[each] for each, name in named(self._places).items() if name == match[1])
        return where


def _named(workload: object, name: str) -> Workload:
    assert isinstance(workload, Workload), "a row has no key for a mix"
    return replace(workload, name=name)


def _concurrency(value: object) -> int:
    found = units.count(value)
    if not 1 <= found <= MOST_IN_FLIGHT:
        raise ValueError(f"{value!r} in flight cannot be kept; use 1 to {MOST_IN_FLIGHT:,}")
    return found


def _requests(value: object) -> int:
    found = units.count(value)
    if not found:
        raise ValueError(f"{value!r} shows nothing; send at least one")
    return found


def _duration(value: object) -> float:
    found = units.duration(value)
    if found <= 0:
        raise ValueError(f"{value!r} shows nothing; send for longer, such as 30s")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text; write it in quotes")
    return value


def _no_file(path: str) -> str:
    raise FileNotFoundError(2, "a row names no file", path)

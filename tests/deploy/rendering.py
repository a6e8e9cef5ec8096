"""Rendered manifests: by kubectl's kustomize, and the chart by an interpreter of the template constructs that it uses.

The chart's reader is not Helm. It knows `if`, `else`, `end`, `range`, variables, and the few functions below, and refuses
anything else; so the chart stays plain. Where Helm is, test_helm.py holds the reader against it.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
KUSTOMIZE = ROOT / "deploy/kustomize"
CHART = ROOT / "deploy/chart"

ACTION = re.compile(r"(\s*)\{\{-\s+(.*?)\s+\}\}|\{\{\s+(.*?)\s+\}\}", re.DOTALL)
Manifest = dict[str, Any]
LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # dashboards are long


def documents(text: str) -> list[Manifest]:
    """Those of a YAML stream that say something."""
    return [document for document in yaml.load_all(text, LOADER) if document]


def built(kubectl: Path, folder: Path) -> list[Manifest]:
    """The manifests that `kubectl apply -k` would send. Raises RuntimeError with its message if it refuses."""
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{folder}: {done.stderr}")
    return documents(done.stdout)


@dataclass
class Node:
    """A piece of a template: a text, an expression, or a block with its two branches."""

    kind: str
    text: str = ""
    then: list["Node"] = field(default_factory=list)
    otherwise: list["Node"] = field(default_factory=list)


def parsed(template: str) -> list[Node]:
    """The template's nodes; a ValueError names a construct that is not known."""
    root: list[Node] = []
    open_blocks: list[tuple[Node, list[Node]]] = []  # and where their text goes on
    into = root
    at = 0
    for match in ACTION.finditer(template):
        into.append(Node("text", template[at : match.start()]))
        at = match.end()
        text = match[2] if match[2] is not None else match[3]
        word = text.split()[0]
        if word in ("if", "range"):
            block = Node(word, text[len(word) :].strip())
            into.append(block)
            open_blocks.append((block, into))
            into = block.then
        elif word == "else":
            into = open_blocks[-1][0].otherwise
        elif word == "end":
            into = open_blocks.pop()[1]
        else:
            into.append(Node("value", text))
    if open_blocks:
        raise ValueError(f"{open_blocks[-1][0].kind} {open_blocks[-1][0].text} has no end")
    into.append(Node("text", template[at:]))
    return root


def looked_up(word: str, dot: Any, names: Mapping[str, Any]) -> Any:
    """A literal, a variable or a path such as .Values.image.tag; a KeyError if nothing is there."""
    if word.startswith('"'):
        return json.loads(word)
    if word.isdigit():
        return int(word)
    head, *path = word.split(".")
    here = dot if head == "" else names[head]
    for part in path:
        if part:
            here = here[part]
    return here


def glob(pattern: str) -> dict[str, str]:
    """The chart's own files by their paths in it."""
    return {str(path.relative_to(CHART)): "" for path in sorted(CHART.glob(pattern))}


FUNCTIONS: dict[str, Any] = {
    "toJson": lambda value: json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
    "indent": lambda width, value: "\n".join(" " * width + line for line in value.split("\n")),
    "base": lambda path: PurePosixPath(path).name,
    "replace": lambda old, new, value: value.replace(old, new),
    "print": lambda *texts: "".join(texts),  # of texts only: Helm puts spaces between what is none
    "trimSuffix": lambda suffix, value: value.removesuffix(suffix),
    "int": int,
    "len": len,
    "gt": lambda one, other: one > other,
    "eq": lambda one, other: one == other,
    "not": lambda value: not value,
    "or": lambda *values: next((value for value in values if value), values[-1]),
    "and": lambda *values: next((value for value in values if not value), values[-1]),
    "until": lambda count: list(range(count)),
    ".Files.Glob": glob,
    ".Files.Get": lambda path: (CHART / path).read_text(),
    "$.Files.Get": lambda path: (CHART / path).read_text(),
}
WORD = re.compile(r'"[^"]*"|[()]|[^\s()]+')


def called(words: list[str], piped: list[Any], dot: Any, names: Mapping[str, Any]) -> Any:
    """The value of a stage, up to its end or the bracket that closes it; its words are taken from the list."""
    word = words.pop(0)
    function = FUNCTIONS.get(word)
    values = [] if function else [called(words, [], dot, names) if word == "(" else looked_up(word, dot, names)]
    while words and words[0] != ")":
        word = words.pop(0)
        values.append(called(words, [], dot, names) if word == "(" else looked_up(word, dot, names))
    if words:
        words.pop(0)
    if function:
        return function(*values, *piped)
    if len(values) != 1 or piped:
        raise ValueError(f"{word} is no construct that this reader knows")
    return values[0]


def evaluated(expression: str, dot: Any, names: Mapping[str, Any]) -> Any:
    """A pipeline: each stage's value is the last argument of the next."""
    piped: list[Any] = []
    for stage in expression.split("|"):
        piped = [called(WORD.findall(stage), piped, dot, names)]
    return piped[0]


def written(value: Any) -> str:
    """The text that a template prints for the value."""
    return json.dumps(value) if isinstance(value, bool) else str(value)


def ranged(node: Node, dot: Any, names: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The dot and the variables of each turn."""
    left, assigned, right = node.text.rpartition(":=")
    over = evaluated(right.strip(), dot, names)
    if not assigned:
        yield from ((element, dict(names)) for element in over)
        return
    key, value = (word.strip() for word in left.split(","))
    for element in sorted(over):
        yield over[element], {**names, key: element, value: over[element]}


def rendered(nodes: list[Node], dot: Any, names: Mapping[str, Any]) -> str:
    """The nodes' text."""
    out = ""
    for node in nodes:
        if node.kind == "text":
            out += node.text
        elif node.kind == "value":
            out += written(evaluated(node.text, dot, names))
        elif node.kind == "if":
            out += rendered(node.then if evaluated(node.text, dot, names) else node.otherwise, dot, names)
        else:
            out += "".join(rendered(node.then, element, inner) for element, inner in ranged(node, dot, names))
    return out


def merged(values: Manifest, over: Mapping[str, Any]) -> Manifest:
    """Values with others laid over them, as Helm does: maps are merged, None takes a value away, the rest is replaced."""
    both = {
        name: merged(values[name], value) if isinstance(value, dict) and isinstance(values.get(name), dict) else value
        for name, value in over.items()
    }
    return {name: value for name, value in {**values, **both}.items() if value is not None}


def values(**over: Any) -> Manifest:
    """The chart's values with others laid over them."""
    return merged(yaml.safe_load((CHART / "values.yaml").read_text()), over)


def chart(name: str = "prober", **over: Any) -> list[Manifest]:
    """The chart's manifests for a release of that name."""
    top = {"Values": values(**over), "Release": {"Name": name, "Namespace": "llm"}}
    return [
        document
        for path in sorted((CHART / "templates").glob("*.yaml"))
        for document in documents(rendered(parsed(path.read_text()), top, {"$": top}))
    ]

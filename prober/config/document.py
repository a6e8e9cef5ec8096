"""YAML text into plain values: keys that come twice are refused, and every refusal names its line and column.

Dates stay text (no key wants one), and only plain data can be written: no tags that build objects.
"""

from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.error import Mark, MarkedYAMLError
from yaml.nodes import MappingNode, Node, ScalarNode
from yaml.reader import ReaderError
from yaml.scanner import ScannerError

Position = tuple[int, int]  # line and column, from 1
MOST_VALUES = (
    1_000_000  # of a file with every alias written out: a few hundred bytes can stand for millions of millions
)
MOST_BRACKETS = 100


class BadYaml(ValueError):
    """Text that is no YAML, or YAML that says two things at once. The message begins with where."""

    def __init__(self, what: str, at: Position | None) -> None:
        super().__init__(what if at is None else f"line {at[0]}, column {at[1]}: {what}")


class _Loader(yaml.SafeLoader):
    """SafeLoader without dates and without keys that come twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the declaration is PyYAML's
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 - the name is PyYAML's
        """At a bracket; raises ScannerError for one too many, which PyYAML would take quadratic time for."""
        if self.flow_level >= MOST_BRACKETS:
            raise ScannerError(
                None, None, f"more than {MOST_BRACKETS} brackets in each other; write it flat", self.get_mark()
            )
        super().fetch_flow_collection_start(TokenClass)

    def get_single_node(self) -> Node | None:
        """The document's node; raises ConstructorError for one that is too much with its aliases written out."""
        node: Node | None = super().get_single_node()
        if node is not None:
            _values(node, {})
        return node

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """The value of a node, at once and in full, which an alias to what it stands in cannot have: ConstructorError."""
        return super().construct_object(node, True)

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node whose keys differ; raises ConstructorError."""
        seen: dict[str, Mark] = {}
        for key, _ in node.value:
            if isinstance(key, ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    first = seen[key.value].line + 1
                    again = f'the key "{key.value}" is already on line {first}; keep one of the two'
                    raise ConstructorError(None, None, again, key.start_mark)
                seen[key.value] = key.start_mark
        return super().construct_mapping(node, deep)


def _values(node: Node, known: dict[int, int]) -> int:
    """How many a node stands for. known: of nodes by their id, 0 for those that it stands in."""
    if (found := known.get(id(node))) is not None:
        if found == 0:
            raise ConstructorError(None, None, "a value that contains itself; write it out", node.start_mark)
        return found
    known[id(node)] = 0
    inside = () if isinstance(node, ScalarNode) else node.value
    pairs = isinstance(node, MappingNode)
    count = 1 + sum(_values(each, known) for part in inside for each in (part if pairs else (part,)))
    if count > MOST_VALUES:
        said = f"stands for more than {MOST_VALUES:,} values with its aliases written out; use fewer"
        raise ConstructorError(None, None, said, node.start_mark)
    known[id(node)] = count
    return count


def parse(text: str) -> Any:
    """The value that YAML text stands for; None for empty text. Raises BadYaml."""
    try:
        return yaml.load(text, Loader=_Loader)
    except MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        what = problem.problem or problem.context or "this is not YAML"
        raise BadYaml(_advised(what), None if mark is None else (mark.line + 1, mark.column + 1)) from None
    except ReaderError as problem:
        before = text[: problem.position]
        at = (before.count("\n") + 1, problem.position - before.rfind("\n"))
        raise BadYaml(f"character {problem.character:#06x} is not allowed in YAML; remove it", at) from None
    except RecursionError:
        raise BadYaml("nested too deeply; write it flat", None) from None
    except ValueError as problem:  # from a value with an explicit tag, such as `!!int x`
        raise BadYaml(f"{problem}; remove the tag or mend the value", None) from None


def _advised(what: str) -> str:
    if what.startswith(("could not determine a constructor", "found undefined alias", "found undefined tag handle")):
        # Not repeated: it may be a password that has no quotes around it.
        return "a tag or an alias that is not known; put quotes around what begins with '!' or '*'"
    if ";" in what:
        return what
    if "'\\t'" in what:
        return f"{what}; indent with spaces"
    return f"{what}; mend the YAML there"

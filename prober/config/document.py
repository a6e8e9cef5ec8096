"""Parse YAML text into plain values. Duplicate keys are refused, and every error has line and column.

Dates and numbers in base 60, such as 1:30, stay text, since no key takes one, and tags that build objects are refused.
"""

from collections.abc import Sequence
from typing import Any

import yaml
from yaml._yaml import CParser
from yaml.composer import Composer, ComposerError
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.error import Mark, MarkedYAMLError
from yaml.nodes import MappingNode, Node, ScalarNode
from yaml.reader import ReaderError
from yaml.resolver import Resolver

Position = tuple[int, int]  # line and column, from 1
MAX_VALUES = 1_000_000  # of a file with all aliases expanded: a few hundred bytes can expand to 10^12
MAX_NODES = 200_000  # of a file as it is written: each takes 0.3 to 0.4 KB while it is read
MAX_DEPTH = 100
MAX_NUMBER_CHARS = 100  # a longer one, which takes long to convert and to show, is no number that a key takes
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class BadYaml(ValueError):
    """Invalid YAML, or a duplicate key. The message starts with the position."""

    def __init__(self, problem: str, at: Position | None) -> None:
        super().__init__(problem if at is None else f"line {at[0]}, column {at[1]}: {problem}")


class _Loader(Composer, CParser, SafeConstructor, Resolver):
    """SafeLoader without dates and base 60 that refuses duplicate keys.

    libyaml reads the text, and PyYAML's composer builds the nodes: libyaml's own ends the process for deeply nested ones.
    """

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._depth = self._nodes = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Next node; raises ComposerError if it is nested too deeply, or the file has too many."""
        self._depth += 1
        self._nodes += 1
        if self._depth > MAX_DEPTH or self._nodes > MAX_NODES:
            deep = f"more than {MAX_DEPTH} levels in each other; write it flat"
            problem = deep if self._depth > MAX_DEPTH else f"more than {MAX_NODES:,} values; use several files, or JSON"
            mark: Any = getattr(self.peek_event(), "start_mark", None)
            raise ComposerError(None, None, problem, mark)
        node: Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def get_single_node(self) -> Node | None:
        """Node of the document; raises ConstructorError if it is too large with its aliases expanded."""
        node: Node | None = super().get_single_node()
        if node is not None:
            _values(node, {})
        return node

    def resolve(self, kind: type[Node], value: str, implicit: Any) -> str:
        """Tag of a node that has none."""
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        is_text = tag.endswith(":timestamp") or (tag in _NUMBERS and ":" in value)
        return "tag:yaml.org,2002:str" if is_text else tag

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """Complete value of a node; raises ConstructorError for a recursive alias, a number that is too long or one in base 60."""
        if node.tag in _NUMBERS and (len(node.value) > MAX_NUMBER_CHARS or ":" in node.value):
            number = "a number in base 60" if ":" in node.value else f"a number of {len(node.value):,} characters"
            what = f"{number}; put quotes around it, or write at most {MAX_NUMBER_CHARS} characters in base 10"
            raise ConstructorError(None, None, what, node.start_mark)
        try:
            return super().construct_object(node, True)
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception as problem:  # PyYAML's own, of a value that is not one of its tag, such as `!!int ""`
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            what = f"a value that cannot be read as {tag}; remove the tag, mend the value, or put quotes around it"
            raise ConstructorError(None, None, what, node.start_mark) from problem

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Mapping of a node; raises ConstructorError for a duplicate key."""
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
    """Number of nodes after alias expansion. known: counts by node id, 0 for enclosing nodes."""
    if (count := known.get(id(node))) is not None:
        if count == 0:
            raise ConstructorError(None, None, "a value that contains itself; write it out", node.start_mark)
        return count
    known[id(node)] = 0
    inside = () if isinstance(node, ScalarNode) else node.value
    pairs = isinstance(node, MappingNode)
    count = 1 + sum(_values(child, known) for part in inside for child in (part if pairs else (part,)))
    if count > MAX_VALUES:
        too_many = f"stands for more than {MAX_VALUES:,} values with its aliases written out; use fewer"
        raise ConstructorError(None, None, too_many, node.start_mark)
    known[id(node)] = count
    return count


def _take_as_written(node: Node, path: Sequence[str]) -> None:
    """Take the scalars below these keys for text, as Go's YAML does where text is expected: 0x10, 1.50 and yes as they are written."""
    if isinstance(node, ScalarNode):
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if not path and kind in ("null", "bool", "int", "float"):
            node.tag, node.value = "tag:yaml.org,2002:str", "" if kind == "null" else node.value
    elif isinstance(node, MappingNode):
        for key, value in node.value:
            if not path or key.value == path[0]:
                _take_as_written(value, path[1:])
    else:
        for item in node.value:
            _take_as_written(item, path)


def parse(text: str, as_written: Sequence[str] | None = None) -> Any:
    """Value of YAML text; None for empty text. Raises BadYaml.

    as_written: path of keys, lists left out, below which each scalar is the text that the file has; one without a value is empty
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if as_written is not None:
            _take_as_written(node, as_written)
        return loader.construct_document(node)
    except MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        message = problem.problem or problem.context or "this is not YAML"
        begin = problem.context_mark
        if problem.problem and problem.context and begin and mark and begin.line != mark.line:  # of what was not ended
            message += f" {problem.context} from line {begin.line + 1}, column {begin.column + 1}"
        raise BadYaml(_advised(message), None if mark is None else _place(text, mark)) from None
    except ReaderError as problem:
        before = text[: problem.position]
        at = (before.count("\n") + 1, problem.position - before.rfind("\n"))
        raise BadYaml(f"character {problem.character:#06x} is not allowed in YAML; remove it", at) from None
    except RecursionError:
        raise BadYaml("nested too deeply; write it flat", None) from None
    except Exception as problem:  # PyYAML's own; the file is wrong, not the prober
        raise BadYaml(f"this is not YAML: {problem!r}; mend the YAML", None) from problem


def _place(text: str, mark: Mark) -> tuple[int, int]:
    """Line and column of a mark, from 1; the parser takes the end of a file for a line of its own."""
    lines = text.split("\n")
    return (mark.line + 1, mark.column + 1) if mark.line < len(lines) else (len(lines), len(lines[-1]) + 1)


def _advised(message: str) -> str:
    """An error of the parser with what to do about it."""
    if message.startswith(("could not determine a constructor", "found undefined alias", "found undefined tag handle")):
        # The value is not shown: it may be a password without quotes.
        return "a tag or an alias that is not known; put quotes around what begins with '!' or '*'"
    if ";" in message:
        return message
    if "'\\t'" in message:
        return f"{message}; indent with spaces"
    return f"{message}; mend the YAML there"

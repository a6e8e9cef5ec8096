"""YAML files: their plain values, and errors with their lines.

Duplicate keys and tags that build objects are refused. Dates and numbers in base 60, such as 1:30, stay text, because no key has
such a value.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from yaml._yaml import CParser
from yaml.composer import Composer
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.error import Mark, MarkedYAMLError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.reader import ReaderError
from yaml.resolver import Resolver

from prober.config.problems import MAX_PROBLEMS, ConfigError, below, explain

M = TypeVar("M", bound=BaseModel)
Position = tuple[int, int]  # line and column, from 1
# Of a file with all aliases expanded: a list of targets of a few hundred bytes can expand to 10^12.
MAX_VALUES = 1_000_000
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class BadYaml(ValueError):
    """Invalid YAML, or a duplicate key. The message starts with the position, if known; at: this position as text"""

    def __init__(self, problem: str, at: Position | None) -> None:
        super().__init__(problem if at is None else f"line {at[0]}, column {at[1]}: {problem}")
        self.problem, self.at = problem, at


class _Loader(Composer, CParser, SafeConstructor, Resolver):
    """SafeLoader that refuses duplicate keys and keeps dates and numbers in base 60 as text.

    libyaml reads the text, but PyYAML's composer builds the nodes, because libyaml's ends the process for deeply nested nodes.
    """

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)

    def get_single_node(self) -> Node | None:
        """Node of the document. Raises ConstructorError if it contains itself, or is too large after expanding its aliases."""
        node: Node | None = super().get_single_node()
        if node is not None:
            _values(node, {})
        return node

    def resolve(self, kind: type[Node], value: str, implicit: Any) -> str:
        """Tag for a node without an explicit tag."""
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        is_text = tag.endswith(":timestamp") or (tag in _NUMBERS and ":" in value)
        return "tag:yaml.org,2002:str" if is_text else tag

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """Complete value of a node. Raises ConstructorError for a value that contains itself."""
        return super().construct_object(node, True)

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Mapping of a node. Raises ConstructorError for a duplicate key."""
        marks: dict[str, Mark] = {}
        for key, _ in node.value:
            if isinstance(key, ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in marks:
                    first = marks[key.value].line + 1
                    again = f'the key "{key.value}" is already on line {first}; keep one of the two'
                    raise ConstructorError(None, None, again, key.start_mark)
                marks[key.value] = key.start_mark
        return super().construct_mapping(node, deep)


def _values(node: Node, known: dict[int, int]) -> int:
    """Count the nodes after alias expansion. known: counts by id of the node, 0 for nodes that enclose this one"""
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


def _position(mark: Mark) -> Position:
    return mark.line + 1, mark.column + 1


def _child(node: Node | None, path: str) -> tuple[Position, Node, str] | None:
    """Find the longest match for the beginning of a path, whose keys may contain dots: (position, node, rest of the path)."""
    if isinstance(node, SequenceNode):
        index, _, rest = path.removeprefix("[").partition("]")
        item = node.value[int(index)] if index.isdecimal() and int(index) < len(node.value) else None
        return (_position(item.start_mark), item, rest) if item is not None else None
    pairs = node.value if isinstance(node, MappingNode) else ()
    children = [(str(key.value), key.start_mark, value) for key, value in pairs]
    fitting = [child for child in children if path.startswith(child[0]) and path[len(child[0]) :][:1] in ("", ".", "[")]
    if not fitting:
        return None
    name, mark, value = max(reversed(fitting), key=lambda child: len(child[0]))
    return min(_position(mark), _position(value.start_mark)), value, path[len(name) :]


def _take_as_written(node: Node, path: Sequence[str]) -> None:
    """Keep the scalars below these keys as text, such as 0x10, 1.50 and yes, as Go's YAML does for text fields."""
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
    """Parse YAML text to a value; None for empty text. Raises BadYaml.

    as_written: path of keys, without list indexes, below which scalars stay the file's text, or "" if they have no value
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
        if problem.problem and problem.context and begin and mark and begin.line != mark.line:  # the element's start
            message += f" {problem.context} from line {begin.line + 1}, column {begin.column + 1}"
        lines, at = text.split("\n"), None
        if mark is not None:  # the parser counts the end of a file as a line
            at = _position(mark) if mark.line < len(lines) else (len(lines), len(lines[-1]) + 1)
        is_tab = at is not None and lines[at[0] - 1][at[1] - 1 : at[1]] == "\t"
        raise BadYaml(_advised(message, is_tab=is_tab), at) from None
    except ReaderError as problem:
        before = text[: problem.position]
        at = (before.count("\n") + 1, problem.position - before.rfind("\n"))
        raise BadYaml(f"character {problem.character:#06x} is not allowed in YAML; remove it", at) from None
    except RecursionError:
        raise BadYaml("nested too deeply; write it flat", None) from None
    except Exception as problem:  # bugs of PyYAML; the file is wrong, not the prober
        raise BadYaml(f"this is not YAML: {problem!r}; mend the YAML", None) from problem


def _advised(message: str, *, is_tab: bool) -> str:
    """Add advice on the remedy to an error message of the parser."""
    if message.startswith(("could not determine a constructor", "found undefined alias", "found undefined tag handle")):
        # The value is not shown, because it may be a password without quotes.
        return "a tag or an alias that is not known; put quotes around what begins with '!' or '*'"
    if ";" in message:
        return message
    if is_tab:
        return "a tab cannot be there; indent with spaces"
    if message.startswith("but found another document"):
        return "another document begins; keep one in a file, without ---"
    return f"{message}; mend the YAML there"


class Problems:
    """Collects the errors of a YAML file with their lines. The text is parsed again for the lines, which most files do not need."""

    def __init__(self, source: str, text: str) -> None:
        self._source, self._text = source, text
        self.count = 0  # number of errors; one repeated by aliases counts for each
        # Lines of the message by position, missing part of the path, and message without path.
        self._found: dict[tuple[Position, str, str], str] = {}

    def parse(self, as_written: Sequence[str] | None = None) -> Any:
        """Plain values of the file, as from `parse`. Raises ConfigError."""
        try:
            return parse(self._text, as_written)
        except BadYaml as bad:
            at = "".join(f":{number}" for number in bad.at or (1,))
            raise ConfigError(f"{self._source}{at}: {bad.problem}") from None

    def mapping(self, example: str, as_written: Sequence[str] | None = None) -> dict[Any, Any]:
        """The file's mapping. If the file is anything else, raises ConfigError with the example."""
        values = self.parse(as_written)
        if isinstance(values, dict):
            return values
        raise ConfigError(self.line("", f"not a mapping; {example}"))

    @cached_property
    def _root(self) -> Node | None:
        loader = _Loader(self._text)
        root: Node | None = loader.get_single_node()
        if root is not None:
            loader.construct_document(root)  # expands merged keys
        return root

    def _find(self, path: str) -> tuple[Position, str]:
        """Find a path such as `targets[0].url`: (position of its key or item, or else of the enclosing block; the missing rest of the
        path).

        A value that is defined elsewhere by an anchor has the position of the anchor.
        """
        node = self._root
        at = _position(node.start_mark) if node is not None else (1, 1)
        while path and (child := _child(node, path.removeprefix("."))) is not None:
            at, node, path = child
        return at, path

    def line(self, path: str, message: str) -> str:
        """Add path and line of the value at `path` to a message. Control characters are escaped."""
        path = path.lstrip("/.")
        (number, _), _ = self._find(path)
        text = f"{self._source}:{number}: {path}: {message}" if path else f"{self._source}:{number}: {message}"
        return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)

    def add(self, path: str, message: str) -> None:
        """Add an error. Equal errors, such as for aliases of a value, are added once. Raises ConfigError if there are too many."""
        self.count += 1
        self._found.setdefault((*self._find(path.lstrip("/.")), message), self.line(path, message))
        if len(self._found) > MAX_PROBLEMS:
            self.end()

    def unique(self, path: str, names: Mapping[int, str]) -> None:
        """Add an error for each name that an earlier item of the list at `path` also has. names: name by index"""
        places: dict[str, int] = {}
        for index, name in sorted(names.items()):
            first = places.setdefault(name, index)
            if first != index:
                self.add(
                    f"{path}[{index}].name", f"is called {name!r}, as {path}[{first}]; give each a name of its own"
                )

    def validated(
        self, model: type[M], raw: object, path: str, context: object, *, is_secret: bool = False
    ) -> M | None:
        """The valid block at a path; None if it has errors, which are added. is_secret: errors must not repeat any part of it"""
        try:
            return model.model_validate(raw, context=context)
        except ValidationError as error:
            for key, message in explain(error, model, raw, is_secret=is_secret).items():
                self.add(below(path, key), message)
            return None

    def end(self) -> None:
        """Raise ConfigError with all errors, sorted by position, if there are any."""
        lines = [line for _, line in sorted(self._found.items(), key=lambda item: item[0][0])]
        if len(lines) > MAX_PROBLEMS:
            lines[MAX_PROBLEMS:] = [f"{self._source}: there are more mistakes; fix these {MAX_PROBLEMS} first"]
        if lines:
            raise ConfigError("\n".join(lines), self)

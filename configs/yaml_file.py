"""Reads YAML files that people write: safely, strictly, and with errors that name the line.

The file is read as a stream of events, so that a quota file of any length takes no more memory than what it says.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from sluice.configs.errors import InvalidSettingsError

MAX_ALIAS_VALUES = 100
"""The largest mapping or list, values in it counted, that an alias may repeat. Without a bound, aliases of aliases make
gigabytes of a few lines."""

MAX_DEPTH = 100
"""Mappings and lists within each other; no setting and no quota needs more than three."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, which is many times as fast, where PyYAML has it

# Plain scalars mean what YAML 1.2 says: `yes`, `off`, `0123`, `12:30` and dates stay text, so a name or a password
# means what it looks like.
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,999})")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "~": None, "null": None, "": None}
_NUMBER_BEGINS = frozenset("-+.0123456789")
_TAG = "tag:yaml.org,2002:"


class _StrictError(yaml.MarkedYAMLError):
    """A fault that is found here rather than by PyYAML; the message shows keys only, never values."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)


_NO_KEY = object()


def read_yaml(path: Path, each: Callable[[object], None] | None = None) -> object:
    """The content of the YAML file `path`; None if it is empty.

    With `each`, the items of a list at the top are given to it one by one as they are read, and the list is empty.
    Raises InvalidSettingsError if the file can't be read, is not UTF-8 or not YAML, gives a key twice, or has aliases
    that repeat more than MAX_ALIAS_VALUES.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise InvalidSettingsError(f"{path}: {reason}; expected a readable YAML file") from error
    except UnicodeDecodeError as error:
        raise InvalidSettingsError(f"{path}: byte {error.start} is not UTF-8; expected a UTF-8 text") from None
    try:
        return _Document(each).read(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise InvalidSettingsError(f"{path}{where}: {_without_values(error)}") from None
    except yaml.reader.ReaderError:
        raise InvalidSettingsError(f"{path}:{_control_line(text)}: a control character; expected plain text") from None


def shown(value: object, most: int = 80) -> str:
    """The value as Python prints it, cut; never written out whole first, because aliases make giants of a few lines.

    >>> shown({"user": ["alice", None]}), shown(["x" * 200], 10)
    ("{'user': ['alice', None]}", "['xxxxxxxx")
    """
    text = ""
    for piece in _pieces(value, most):
        text += piece
        if len(text) >= most:
            return text[:most]
    return text


def _pieces(value: object, most: int) -> Iterator[str]:
    """The value as Python prints it, in pieces of at most some `most` characters."""
    if isinstance(value, dict):
        for number, (key, item) in enumerate(value.items()):
            yield ", " if number else "{"
            yield from _pieces(key, most)
            yield ": "
            yield from _pieces(item, most)
        yield "}" if value else "{}"
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield ", " if number else "["
            yield from _pieces(item, most)
        yield "]" if value else "[]"
    else:
        yield repr(value[:most] if isinstance(value, str) else value)


class _Collection:
    """A mapping or list that is being read."""

    __slots__ = ("anchor", "content", "key", "lines", "values")

    def __init__(self, *, mapping: bool, anchor: str | None) -> None:
        self.content: Any = {} if mapping else []
        self.lines: dict[str, int] | None = {} if mapping else None
        """Of a mapping: key as written -> its line."""
        self.key: object = _NO_KEY
        """Of a mapping: the key whose value comes next; _NO_KEY where a key comes next."""
        self.anchor = anchor
        self.values = 1
        """How many values it is, with those in it."""


class _Document:
    """The one document that a stream of events tells."""

    def __init__(self, each: Callable[[object], None] | None) -> None:
        self.content: object = None
        self._each = each
        self._documents = 0
        self._open: list[_Collection] = []
        self._anchors: dict[str, tuple[object, int]] = {}

    def read(self, events: Iterator[Any]) -> object:
        """The document's content. Raises _StrictError."""
        handlers = {
            yaml.ScalarEvent: self._scalar,
            yaml.MappingStartEvent: self._start,
            yaml.SequenceStartEvent: self._start,
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.AliasEvent: self._alias,
            yaml.DocumentStartEvent: self._start_document,
        }
        for event in events:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)
        return self.content

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        value = _scalar(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, 1
        self._add(value, 1, event)

    def _start(self, event: Any) -> None:
        mapping = type(event) is yaml.MappingStartEvent
        if self._open and self._open[-1].lines is not None and self._open[-1].key is _NO_KEY:
            raise _no_word(event)
        if event.tag not in (None, "!", f"{_TAG}map" if mapping else f"{_TAG}seq"):
            raise _unusual(event)
        if len(self._open) >= MAX_DEPTH:
            raise _StrictError("nested too deeply; expected sections of plain settings", event.start_mark)
        self._open.append(_Collection(mapping=mapping, anchor=event.anchor))

    def _end(self, event: Any) -> None:
        ended = self._open.pop()
        if ended.anchor is not None:
            self._anchors[ended.anchor] = ended.content, ended.values
        self._add(ended.content, ended.values, event)

    def _alias(self, event: yaml.AliasEvent) -> None:
        if event.anchor not in self._anchors:
            raise _unusual(event)
        value, values = self._anchors[event.anchor]
        if values > MAX_ALIAS_VALUES:
            problem = f"an alias of {values} values; expected one of at most {MAX_ALIAS_VALUES}, or them written out"
            raise _StrictError(problem, event.start_mark)
        self._add(value, values, event)

    def _start_document(self, event: yaml.DocumentStartEvent) -> None:
        self._documents += 1
        if self._documents > 1:
            raise _StrictError("another document begins; expected one", event.start_mark)

    def _add(self, value: object, values: int, event: Any) -> None:
        """Add a value, or a key, to the innermost collection."""
        if not self._open:
            self.content = value
            return
        inner = self._open[-1]
        inner.values += values
        if inner.lines is None:
            if self._each is not None and len(self._open) == 1:
                self._each(value)
            else:
                inner.content.append(value)
        elif inner.key is _NO_KEY:
            inner.key = _new_key(value, event, inner.lines)
        else:
            inner.content[inner.key] = value
            inner.key = _NO_KEY


def _new_key(key: object, event: Any, lines: dict[str, int]) -> object:
    """The key, noted with its line. Raises _StrictError if it is no word or the mapping has it already."""
    if isinstance(key, dict | list):
        raise _no_word(event)
    written = event.value if type(event) is yaml.ScalarEvent else str(key)
    line = event.start_mark.line + 1
    if written in lines:
        problem = f"the key {written[:80]} is already given in line {lines[written]}; expected it once"
        raise _StrictError(problem, event.start_mark)
    lines[written] = line
    return key


def _no_word(event: Any) -> _StrictError:
    return _StrictError("a key is not a plain word; expected a name before the colon", event.start_mark)


def _scalar(event: yaml.ScalarEvent) -> object:
    """What a scalar means. Raises _StrictError for a tag that no setting and no quota needs."""
    text: str = event.value
    tag = event.tag
    if tag is not None and tag != "!":
        return _tagged(event, tag.removeprefix(_TAG), text)
    if not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    return _number(text) if text[0] in _NUMBER_BEGINS else text


def _number(text: str) -> int | float | str:
    """A number, or the text itself."""
    if _INT.fullmatch(text):
        return int(text)
    return float(text.replace(".inf", "inf").replace(".nan", "nan")) if _FLOAT.fullmatch(text) else text


def _tagged(event: yaml.ScalarEvent, tag: str, text: str) -> object:
    value = _WORDS[text] if text in _WORDS else _number(text) if text[0] in _NUMBER_BEGINS else text
    match tag, value:
        case "str", _:
            return text
        case ("bool", bool()) | ("null", None) | ("float", float()):
            return value
        case "int" | "float", int() if not isinstance(value, bool):
            return float(value) if tag == "float" else value
    raise _unusual(event)


def _unusual(event: Any) -> _StrictError:
    """The error for a tag or an alias of nothing; it doesn't show the value: it may be a secret."""
    return _StrictError("not a plain value; quote a value that begins with * & or !", event.start_mark)


def _without_values(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's problem, unless that quotes a value: it may be a secret that starts with * & or !."""
    problem = error.problem or "not YAML"
    if not isinstance(error, _StrictError) and re.search(r"alias|anchor|tag", problem):
        return "not a plain value; quote a value that begins with * & or !"
    return problem


def _control_line(text: str) -> int:
    """The line of the first character that YAML doesn't take; libyaml and PyYAML count its place differently."""
    found = yaml.reader.Reader.NON_PRINTABLE.search(text)
    return text.count("\n", 0, found.start() if found else 0) + 1

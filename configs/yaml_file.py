"""Strict reading of YAML that people write: plain values, each key once, one document; an error names file and line."""

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from sluice.configs.errors import InvalidSettingsError

MAX_DEPTH = 100  # mappings and lists within each other; settings need three, thousands would overflow the stack
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, which is many times as fast, where PyYAML has it

# Plain scalars mean what YAML 1.2 says: `yes`, `0123`, `12:30` and dates stay text, as a name or a password has to.
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,999})")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "~": None, "null": None, "": None}
_UNUSUAL = "not a plain value; quote a value that begins with * & or !"


def read_yaml(path: Path) -> object:
    """Read a YAML file; None if it is empty. Raises InvalidSettingsError, which shows no value: it may be a secret."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidSettingsError(f"{path}: {error.strerror}; expected a readable YAML file") from error
    except UnicodeDecodeError as error:
        raise InvalidSettingsError(f"{path}: byte {error.start} is not UTF-8; expected a UTF-8 text") from None
    if control := yaml.reader.Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, control.start()) + 1
        raise InvalidSettingsError(f"{path}:{line}: a control character; expected plain text")
    try:
        parsed = yaml.parse(text, Loader=_LOADER)
        events = (event for event in parsed if isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent))
        content = _value(first, events) if (first := next(events, None)) else None
        if another := next(events, None):
            raise _error("another document begins; expected one", another)
    except yaml.MarkedYAMLError as error:
        problem = _UNUSUAL if "tag handle" in str(error.problem) else error.problem  # PyYAML quotes the tag
        mark: Any = error.problem_mark or error.context_mark
        problem = "a tab; YAML is indented with spaces" if text[mark.index : mark.index + 1] == "\t" else problem
        raise InvalidSettingsError(f"{path}:{mark.line + 1}:{mark.column + 1}: {problem}") from None
    return content


def _value(event: Any, events: Iterator[Any], depth: int = 0) -> object:
    """Build the value that begins with `event` from the events after it."""
    if type(event) is yaml.AliasEvent or event.anchor is not None or event.tag is not None:
        raise _error(_UNUSUAL, event)
    if type(event) is yaml.ScalarEvent:
        return _scalar(event.value) if event.implicit[0] else event.value
    if depth >= MAX_DEPTH:
        raise _error("nested too deeply; expected sections of plain settings", event)
    if type(event) is yaml.SequenceStartEvent:
        items = takewhile(lambda item: type(item) is not yaml.SequenceEndEvent, events)
        return [_value(item, events, depth + 1) for item in items]
    content: dict[object, object] = {}
    lines: dict[str, int] = {}
    for key in takewhile(lambda key: type(key) is not yaml.MappingEndEvent, events):
        name = _value(key, events, depth + 1)
        if isinstance(name, dict | list):
            raise _error("a key is not a plain word; expected a name before the colon", key)
        if before := lines.get(key.value):
            raise _error(f"the key {key.value[:80]} is already given in line {before}; expected it once", key)
        lines[key.value] = key.start_mark.line + 1
        content[name] = _value(next(events), events, depth + 1)
    return content


def _scalar(text: str) -> object:
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text.replace(".inf", "inf").replace(".nan", "nan")) if FLOAT.fullmatch(text) else text


def _error(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)

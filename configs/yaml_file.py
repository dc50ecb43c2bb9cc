"""Reads YAML files that people write: safe, without YAML's surprises, and with errors that point at the line."""

import re
from pathlib import Path

import yaml

from configs.errors import InvalidSettingsError


class _StrictError(yaml.MarkedYAMLError):
    """What this loader refuses beyond PyYAML; its message shows keys only."""

    def __init__(self, problem: str, mark: yaml.Mark) -> None:
        super().__init__(problem=problem, problem_mark=mark)


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and reads plain scalars as YAML 1.2 does.

    `yes`, `off`, `0123`, `12:30` and dates stay text, so a name or a password means what it looks like.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 -- PyYAML's own class attribute; empty, not inherited from YAML 1.1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """The mapping of `node`; a key that is written twice is an error that names both lines."""
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise _StrictError("a key is not a plain word; expected a name before the colon", key_node.start_mark)
            if key_node.value in lines:
                first = lines[key_node.value]
                problem = f"the key {key_node.value} is already given in line {first}; expected it once"
                raise _StrictError(problem, key_node.start_mark)
            lines[key_node.value] = line
        mapping: dict[object, object] = super().construct_mapping(node, deep)
        return mapping


_StrictLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
_StrictLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|)$"), ["~", "n", ""])
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9]{0,999})$"), list("-+0123456789")
)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^(?:[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)$"),
    list("-+.0123456789"),
)


def read_yaml(path: Path) -> object:
    """The content of the YAML file `path`; None if it is empty.

    Raises InvalidSettingsError if it can't be read, is not UTF-8 or not YAML, or gives a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise InvalidSettingsError(f"{path}: {reason}; expected a readable YAML file") from error
    except UnicodeDecodeError as error:
        raise InvalidSettingsError(f"{path}: byte {error.start} is not UTF-8; expected a UTF-8 text") from None
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 -- a SafeLoader, only stricter
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise InvalidSettingsError(f"{path}{where}: {_without_values(error)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InvalidSettingsError(f"{path}:{line}: a control character; expected plain text") from None
    except RecursionError:
        raise InvalidSettingsError(f"{path}: nested too deeply; expected sections of plain settings") from None


def _without_values(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's problem, but for those that would quote a value (it may be a secret that begins with * & ! or %)."""
    problem = error.problem or "not YAML"
    if not isinstance(error, _StrictError) and re.search(r"alias|anchor|tag", problem):
        return "not a plain value; quote a value that begins with * & or !"
    return problem

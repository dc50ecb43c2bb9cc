"""The login of `sasl.jaas.config`, read as Kafka's Java clients read it (JaasConfig.java, by a StreamTokenizer)."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from sluice.kafka_io.errors import UnsupportedPropertyError

EXAMPLE: Final = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="..." password="...";'

_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
}
"""The module of Kafka for a mechanism; another one of its own doesn't know the mechanism."""

_FLAGS = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")

_TOKEN = re.compile(
    r"""[\x00-\x20]+|/\*.*?(?:\*/|\Z)|/[^\r\n]*"""  # blanks and comments; a single slash begins one as well
    r"""|(?P<quote>["'])(?P<quoted>(?:\\.|(?!(?P=quote))[^\\\r\n])*)(?P=quote)?"""
    r"""|(?P<number>-?(?=[0-9.])[0-9]*\.?[0-9]*)"""
    r"""|(?P<word>[A-Za-z_$\xa0-\U0010ffff][A-Za-z0-9_$.\-\xa0-\U0010ffff]*)|(?P<other>.)""",
    re.DOTALL,
)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)


class Login(NamedTuple):
    """A login module and its options."""

    module: str
    options: dict[str, str]


class _Token(NamedTuple):
    text: str | None
    """The text of a word or a quoted one; None for a number and another character."""
    other: str = ""


def login_of(jaas: str) -> Login:
    """The one login of a JAAS text. Raises UnsupportedPropertyError, which shows no value, where Java would refuse it.

    >>> login_of('org.x.PlainLoginModule required username="al\\\\"ice" password=secret;').options
    {'username': 'al"ice', 'password': 'secret'}
    """
    tokens = _tokens(jaas)
    module, flag = next(tokens, _END), next(tokens, _END)
    if module.text is None:
        raise _fault("doesn't begin with the name of a module")
    if (flag.text or "").upper() not in _FLAGS:
        raise _fault("has no 'required' after the name of its module")
    options: dict[str, str] = {}
    for token in tokens:
        if token.other == ";":
            if next(tokens, _END) is not _END:
                raise _fault("has something after its semicolon")
            return Login(module.text, options)
        equals, value = next(tokens, _END), next(tokens, _END)
        if token.text is None or equals.other != "=" or value.text is None:
            raise _fault('has an option that isn\'t name="text": numbers need the quotes as well')
        options[token.text] = value.text
    raise _fault("doesn't end with a semicolon")


def check_login(jaas: str, mechanism: str) -> None:
    """Raise UnsupportedPropertyError for a text that Java refuses, or a module that doesn't know the mechanism."""
    module, right = login_of(jaas).module, _MODULES.get(mechanism)
    name = module.rpartition(".")[2]
    if right is not None and name in _MODULES.values() and name != right:
        raise _fault(f"has {name}, which doesn't know sasl.mechanism {mechanism}")


_END = _Token(None, "end")


def _fault(what: str) -> UnsupportedPropertyError:
    return UnsupportedPropertyError(f"sasl.jaas.config {what}; expected such as: {EXAMPLE}")


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        if match["quote"]:
            yield _Token(_ESCAPE.sub(_unescaped, match["quoted"]))
        elif match["word"]:
            yield _Token(match["word"])
        elif match["number"] or match["other"]:
            yield _Token(None, match["other"] or "number")


def _unescaped(match: re.Match[str]) -> str:
    found = match[1]
    return chr(int(found, 8)) if found.isdigit() and found < "8" else _ESCAPES.get(found, found)

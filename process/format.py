"""Names and figures as text, the same on pages, in commands and in `top`: amounts, shares, durations, times.

Names come from events, so no character of a name may act on a page or a terminal.
"""

import hashlib
from datetime import UTC, datetime

MAX_LABEL_LENGTH = 100
"""Characters of a name in a label."""

_DIGEST_DIGITS = 8
_LONGEST_ERROR = 1_000  # some of Kafka's have a whole response

NOTHING = "—"
"""Text for a missing figure."""


def printable(text: str) -> str:
    r"""Escape the characters that are invisible or change how text is shown: controls, direction marks, surrogates.

    >>> printable("al\u202eice\n"), printable("\ud800"), printable("straße 東京")
    ('al\\u202eice\\n', '\\ud800', 'straße 東京')
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def error_line(error: BaseException) -> str:
    """The error in one short line; never the arguments, they may hold a password."""
    line = " ".join(str(error).split()) or type(error).__name__
    return f"{line[:_LONGEST_ERROR]} …" if len(line) > _LONGEST_ERROR else line


def percent(share: float | None) -> str:
    """A share of a limit; beyond ten times of it how far is no matter.

    >>> percent(0.8), percent(None), percent(12.0)
    ('80 %', '—', '> 999 %')
    """
    if share is None:
        return NOTHING
    return "> 999 %" if share >= 9.995 else f"{share * 100:.0f} %"


def moment(at_ms: int) -> str:
    """A time in UTC, to the second.

    >>> moment(1_767_225_612_345)
    '2026-01-01 00:00:12'
    """
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def label_of(name: str) -> str:
    """The name as a label: unprintable characters are replaced, and a long name is cut.

    A digest of the name follows a changed label, so that two names remain two.

    >>> label_of("alice"), label_of("al\\nice")
    ('alice', 'al\ufffdice…8570c32e')
    """
    label = "".join(sign if sign.isprintable() else "\ufffd" for sign in name[:MAX_LABEL_LENGTH])
    if label == name:
        return label
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{label}…{digest[:_DIGEST_DIGITS]}"

"""Names and figures as text, the same on pages, in commands and in `top`: amounts, shares, durations, times.

Names come from events, so no character of a name may act on a page or a terminal.
"""

import hashlib
import math
from datetime import UTC, datetime

from sluice.state.quotas.kinds import Family, QuotaKind

MAX_NAME = 120
"""Characters of a name in a table."""

MAX_LABEL_LENGTH = 100
"""Characters of a name in a label."""

_DIGEST_DIGITS = 8

NOTHING = "—"
"""Text for a missing figure."""

_PREFIXES = ("", "k", "M", "G", "T", "P")


def printable(text: str) -> str:
    r"""Escape the characters that are invisible or change how text is shown: controls, direction marks, surrogates.

    >>> printable("al\u202eice\n"), printable("\ud800"), printable("straße 東京")
    ('al\\u202eice\\n', '\\ud800', 'straße 東京')
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def short(text: str, most: int = MAX_NAME) -> str:
    """Printable text, with the middle of a long one left out.

    >>> short("abcdefghij", most=5)
    'ab…ij'
    """
    if len(text) <= most:
        return printable(text)
    return f"{printable(text[: most // 2])}…{printable(text[-(most // 2) :])}"


def error_line(error: BaseException) -> str:
    """The error in one short line; never the arguments, they may hold a password."""
    return " ".join(str(error).split()) or type(error).__name__


def amount(kind: QuotaKind, value: float | None, *, per_s: bool = True) -> str:
    """A rate in the unit of the quota; an amount if `per_s` is false.

    >>> amount(QuotaKind.PRODUCER_BYTE_RATE, 1048576), amount(QuotaKind.REQUEST_PERCENTAGE, 12.34)
    ('1.05 MB/s', '12.3 %')
    >>> amount(QuotaKind.CONTROLLER_MUTATION_RATE, -60.0, per_s=False), amount(QuotaKind.CONSUMER_BYTE_RATE, None)
    ('-60', '—')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    slash = "/s" if per_s else ""
    if kind.family is Family.REQUEST_TIME:
        return f"{value:.3g} %" if abs(value) < 1000 else f"{value:.0f} %"
    return quantity(value, "B" if kind.family is Family.BYTES else "") + slash


def quantity(value: float, unit: str) -> str:
    """A finite number with three digits and a decimal prefix before its unit.

    >>> quantity(618562990, "B"), quantity(70, "B"), quantity(12345, "")
    ('619 MB', '70 B', '12.3 k')
    >>> quantity(999, "B"), quantity(999.6, "B")
    ('999 B', '1 kB')
    """
    power = min(max(0, math.floor(math.log10(max(abs(value), 1.0)) / 3 + 0.0000725)), len(_PREFIXES) - 1)
    scaled, prefix = value / 1000.0**power, _PREFIXES[power]
    number = f"{scaled:.3g}" if prefix or abs(scaled) < 100 else f"{scaled:.0f}"
    return f"{number} {prefix}{unit}" if prefix or unit else number


def figure(value: float | None) -> str:
    """A figure in the unit of its quota, as people write limits: whole, or with three digits after the point.

    >>> figure(1048576.0), figure(18.66666), figure(None)
    ('1048576', '18.667', '—')
    """
    if value is None:
        return NOTHING
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3f}"


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

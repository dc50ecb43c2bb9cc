"""Figures and names as text, the same on pages, in commands and in top."""

import math

from sluice.process.format import NOTHING, printable
from sluice.state.quotas.kinds import Family, QuotaKind

MAX_NAME = 120
"""Characters of a name in a table."""


_PREFIXES = ("", "k", "M", "G", "T", "P")


def short(text: str, most: int = MAX_NAME) -> str:
    """Printable text, with the middle of a long one left out.

    >>> short("abcdefghij", most=5)
    'ab…ij'
    """
    if len(text) <= most:
        return printable(text)
    return f"{printable(text[: most // 2])}…{printable(text[-(most // 2) :])}"


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

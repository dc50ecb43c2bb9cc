"""Findings of the bench: figures, each with all its runs, and ratios between them; as Markdown tables and as JSON."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Bar(NamedTuple):
    """Bound that a ratio must reach: the least or the greatest value."""

    bound: float
    is_least: bool

    def reached(self, value: float) -> bool:
        """True if the value is on the right side."""
        return value >= self.bound if self.is_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.is_least else '≤'} {shown(self.bound)}"


def at_least(bound: float) -> Bar:
    """The bar of a quantity that should be large."""
    return Bar(bound, is_least=True)


def at_most(bound: float) -> Bar:
    """The bar of a quantity that should be small."""
    return Bar(bound, is_least=False)


class Figure(NamedTuple):
    """One quantity, measured once per run."""

    section: str
    name: str
    unit: str
    values: Sequence[float]

    @property
    def median(self) -> float:
        """The median of the runs."""
        return statistics.median(self.values)


class Ratio(NamedTuple):
    """The median of one figure divided by that of another one."""

    name: str
    of: Figure
    to: Figure
    bar: Bar | None = None

    @property
    def value(self) -> float:
        """Infinite where the divisor was too small to be measured."""
        return self.of.median / self.to.median if self.to.median else float("inf")

    @property
    def verdict(self) -> str:
        """The bar, and whether it is reached."""
        return "" if self.bar is None else f"{self.bar} {'reached' if self.bar.reached(self.value) else 'MISSED'}"


@dataclass(slots=True)
class Findings:
    """All figures and ratios."""

    figures: list[Figure] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)

    def add(self, section: str, name: str, unit: str, values: Sequence[float]) -> Figure:
        """Add a figure. Raises ValueError when there are no values: nothing was measured."""
        if not values:
            raise ValueError(f"{section}: {name} was not measured")
        self.figures.append(Figure(section, name, unit, list(values)))
        return self.figures[-1]

    def compare(self, name: str, of: Figure, to: Figure, bar: Bar | None = None) -> None:
        """Add a ratio."""
        self.ratios.append(Ratio(name, of, to, bar))


def to_json(environment: Mapping[str, str], findings: Findings) -> str:
    """Everything as JSON, with every single run."""
    figures = [figure._asdict() | {"median": figure.median} for figure in findings.figures]
    ratios = [
        {"name": each.name, "value": each.value, "of": each.of.name, "to": each.to.name}
        | {"bar": str(each.bar or ""), "verdict": each.verdict}
        for each in findings.ratios
    ]
    content = {"environment": dict(environment), "figures": figures, "ratios": ratios}
    return json.dumps(content, indent=1, ensure_ascii=False)


def to_markdown(environment: Mapping[str, str], findings: Findings) -> str:
    """Everything as Markdown tables, for a terminal and for docs/performance.md."""
    lines = [f"- {name}: {value}" for name, value in environment.items()]
    for title in dict.fromkeys(figure.section for figure in findings.figures):
        rows = (
            (f.name, *map(shown, (f.median, min(f.values), max(f.values))), f.unit)
            for f in findings.figures
            if f.section == title
        )
        lines += ["", *table(title, "Median", "Lowest", "Highest", "Unit", rows=rows)]
    ratios = ((r.name, shown(r.value), r.verdict) for r in findings.ratios)
    return "\n".join([*lines, "", *table("Ratio of medians", "Value", "Bar", rows=ratios)]) + "\n"


def table(*head: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """A table whose columns are aligned."""
    table = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    table.insert(1, ["-" * width for width in widths])
    return [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in table]


def shown(number: float) -> str:
    """A number with three significant digits.

    >>> shown(16234.5), shown(0.4567), shown(12.0)
    ('16 200', '0.457', '12')
    """
    rounded = float(f"{number:.3g}")
    return f"{rounded:,.0f}".replace(",", " ") if abs(rounded) >= 1000 else f"{rounded:.3g}"

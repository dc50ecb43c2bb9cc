"""Findings of the bench: figures, each with all its runs, and ratios between them; as Markdown tables and as JSON."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Bar(NamedTuple):
    """Bounds that a quantity must keep: the least value, the greatest one, or both."""

    least: float
    most: float

    def reached(self, value: float) -> bool:
        """True if the value keeps them."""
        return self.least <= value <= self.most

    def __str__(self) -> str:
        if self.most == math.inf:
            return f"≥ {shown(self.least)}"
        return f"≤ {shown(self.most)}" if self.least == -math.inf else f"{shown(self.least)} to {shown(self.most)}"


def at_least(bound: float) -> Bar:
    """The bar of a quantity that should be large."""
    return Bar(bound, math.inf)


def at_most(bound: float) -> Bar:
    """The bar of a quantity that should be small."""
    return Bar(-math.inf, bound)


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


class Line(NamedTuple):
    """Figures side by side, by their columns, and the bars of some: a line of its section's table."""

    section: str
    name: str
    figures: Mapping[str, Figure]
    bars: Mapping[str, Bar]

    @property
    def verdict(self) -> str:
        """The bars that are missed, if there are any bars."""
        found = {column: self.figures[column].median for column in self.bars}
        missed = [column for column, value in found.items() if not self.bars[column].reached(value)]
        told = ", ".join(f"{column} {found[column]:.4g} ({self.bars[column]})" for column in missed)
        return f"MISSED: {told}" if missed else "reached" if self.bars else ""


@dataclass(slots=True)
class Findings:
    """All figures, lines and ratios."""

    figures: list[Figure] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)

    def add(self, section: str, name: str, unit: str, values: Sequence[float]) -> Figure:
        """Add a figure. Raises ValueError when there are no values: nothing was measured."""
        if not values:
            raise ValueError(f"{section}: {name} was not measured")
        self.figures.append(Figure(section, name, unit, list(values)))
        return self.figures[-1]

    def add_line(
        self, section: str, name: str, runs: Mapping[str, tuple[str, Sequence[float]]], bars: Mapping[str, Bar]
    ) -> None:
        """Add a line of its section's table: the unit and the values of each column."""
        figures = {
            column: self.add(section, f"{name}: {column}", unit, values) for column, (unit, values) in runs.items()
        }
        self.lines.append(Line(section, name, figures, bars))

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
    lines = [{"section": each.section, "name": each.name, "verdict": each.verdict} for each in findings.lines]
    content = {"environment": dict(environment), "figures": figures, "lines": lines, "ratios": ratios}
    return json.dumps(content, indent=1, ensure_ascii=False)


def to_markdown(environment: Mapping[str, str], findings: Findings) -> str:
    """Everything as Markdown tables, for a terminal and for the laboratory's README.md."""
    text = [f"- {name}: {value}" for name, value in environment.items()]
    for title in dict.fromkeys(figure.section for figure in findings.figures):
        of_table = [line for line in findings.lines if line.section == title]
        text += ["", *(_lines(of_table) if of_table else _figures(title, findings))]
    if findings.ratios:
        ratios = ((r.name, shown(r.value), r.verdict) for r in findings.ratios)
        text += ["", *table("Ratio of medians", "Value", "Bar", rows=ratios)]
    return "\n".join(text) + "\n"


def _figures(title: str, findings: Findings) -> list[str]:
    """A line for each figure of a section."""
    rows = (
        (f.name, *map(shown, (f.median, min(f.values), max(f.values))), f.unit)
        for f in findings.figures
        if f.section == title
    )
    return table(title, "Median", "Lowest", "Highest", "Unit", rows=rows)


def _lines(lines: Sequence[Line]) -> list[str]:
    """The medians of a section whose figures are side by side."""
    units = {column: f", {figure.unit}" if figure.unit else "" for column, figure in lines[0].figures.items()}
    rows = ((each.name, *(shown(figure.median) for figure in each.figures.values()), each.verdict) for each in lines)
    return table(lines[0].section, *(column + unit for column, unit in units.items()), "verdict", rows=rows)


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

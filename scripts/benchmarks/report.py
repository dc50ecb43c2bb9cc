"""Findings of the bench: figures, each with all its runs, and ratios between them; as Markdown tables and as JSON."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Bar:
    """Bound that a ratio or a figure must reach: the least or the greatest value."""

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


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity, measured once per run."""

    section: str
    name: str
    unit: str
    values: Sequence[float]
    bar: Bar | None = None

    @property
    def median(self) -> float:
        """The median of the runs."""
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of one figure divided by that of another one."""

    name: str
    of: Figure
    to: Figure
    bar: Bar | None = None

    @property
    def value(self) -> float:
        """Infinite where the divisor was too small to be measured."""
        return self.of.median / self.to.median if self.to.median else float("inf")


@dataclass(slots=True)
class Findings:
    """All figures and ratios."""

    figures: list[Figure] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)

    def add(self, section: str, name: str, unit: str, values: Sequence[float], bar: Bar | None = None) -> Figure:
        """Add a figure. Raises ValueError when there are no values: nothing was measured."""
        if not values:
            raise ValueError(f"{section}: {name} was not measured")
        self.figures.append(Figure(section, name, unit, list(values), bar))
        return self.figures[-1]

    def compare(self, name: str, of: Figure, to: Figure, bar: Bar | None = None) -> None:
        """Add a ratio."""
        self.ratios.append(Ratio(name, of, to, bar))


@dataclass(frozen=True, slots=True)
class Report:
    """Findings with the environment they were measured in: machine, versions, command."""

    environment: Mapping[str, str]
    findings: Findings

    def to_json(self) -> str:
        """Everything as JSON, with every single run."""
        figures = [
            {"section": f.section, "name": f.name, "unit": f.unit, "median": f.median, "values": f.values}
            | _bar_json(f.bar, f.median)
            for f in self.findings.figures
        ]
        ratios = [
            {"name": r.name, "value": r.value, "of": r.of.name, "to": r.to.name} | _bar_json(r.bar, r.value)
            for r in self.findings.ratios
        ]
        content = {"environment": dict(self.environment), "figures": figures, "ratios": ratios}
        return json.dumps(content, indent=1, ensure_ascii=False)

    def markdown(self) -> str:
        """Everything as Markdown tables, for a terminal and for docs/performance.md."""
        lines = [f"- {name}: {value}" for name, value in self.environment.items()]
        for title in dict.fromkeys(figure.section for figure in self.findings.figures):
            lines += ["", *_table(title, "Median", "Lowest", "Highest", "Unit", "Bar", rows=self._figures(title))]
        ratios = ((r.name, shown(r.value), _verdict(r.bar, r.value)) for r in self.findings.ratios)
        return "\n".join([*lines, "", *_table("Ratio of medians", "Value", "Bar", rows=ratios)]) + "\n"

    def _figures(self, section: str) -> Iterator[Sequence[str]]:
        for figure in self.findings.figures:
            if figure.section == section:
                numbers = map(shown, (figure.median, min(figure.values), max(figure.values)))
                yield figure.name, *numbers, figure.unit, _verdict(figure.bar, figure.median)


def _table(*head: str, rows: Iterator[Sequence[str]]) -> list[str]:
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


def _verdict(bar: Bar | None, value: float) -> str:
    return "" if bar is None else f"{bar} {'reached' if bar.reached(value) else 'MISSED'}"


def _bar_json(bar: Bar | None, value: float) -> dict[str, Any]:
    return {"bar": str(bar) if bar else None, "reached": bar.reached(value) if bar else None}

"""The findings of a benchmark: figures, each with all its runs, and ratios between them; as tables and as JSON."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Column, Table

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity, measured once per run.

    In a section whose figures have a `row`, each row of the table has several figures, with a column for each name.
    """

    section: str
    name: str
    unit: str
    values: Sequence[float]
    row: str = ""

    @property
    def median(self) -> float:
        """The median of the runs."""
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Bar:
    """The bound that a ratio or a figure must reach."""

    bound: float
    at_least: bool

    def reached(self, value: float) -> bool:
        """Whether the value is on the right side."""
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {shown(self.bound)}"


def at_least(bound: float) -> Bar:
    """The bar of a quantity that should be large."""
    return Bar(bound, at_least=True)


def at_most(bound: float) -> Bar:
    """The bar of a quantity that should be small."""
    return Bar(bound, at_least=False)


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
    """All figures and ratios; `bars` holds the bars of single figures, by name of the figure."""

    figures: list[Figure] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    bars: dict[str, Bar] = field(default_factory=dict)

    def add(
        self, section: str, name: str, unit: str, values: Sequence[float], bar: Bar | None = None, row: str = ""
    ) -> Figure:
        """Add a figure. Raises ValueError when there are no values: nothing was measured."""
        if not values:
            raise ValueError(f"{section}: {name} was not measured")
        figure = Figure(section, name, unit, list(values), row)
        self.figures.append(figure)
        if bar is not None:
            self.bars[name] = bar
        return figure

    def compare(self, name: str, of: Figure, to: Figure, bar: Bar | None = None) -> None:
        """Add a ratio."""
        self.ratios.append(Ratio(name, of, to, bar))

    def sections(self) -> list[str]:
        """The sections in the order of measurement."""
        return list(dict.fromkeys(figure.section for figure in self.figures))


@dataclass(frozen=True, slots=True)
class Report:
    """Findings with the environment they were measured in: machine, versions, command."""

    environment: Mapping[str, str]
    findings: Findings

    def to_json(self) -> str:
        """Everything as JSON, with every single run."""
        bars = self.findings.bars
        figures = [
            {"section": figure.section, "name": figure.name, "unit": figure.unit, "median": figure.median}
            | {"values": list(figure.values), **_bar_json(bars.get(figure.name), figure.median)}
            | ({"row": figure.row} if figure.row else {})
            for figure in self.findings.figures
        ]
        ratios = [
            {"name": ratio.name, "value": ratio.value, "of": ratio.of.name, "to": ratio.to.name}
            | _bar_json(ratio.bar, ratio.value)
            for ratio in self.findings.ratios
        ]
        content = {"environment": dict(self.environment), "figures": figures, "ratios": ratios}
        return json.dumps(content, indent=1, ensure_ascii=False)

    def renderable(self) -> Group:
        """Everything as tables for a terminal."""
        environment = "\n".join(f"{name}: {value}" for name, value in self.environment.items())
        tables = []
        for (title, *columns), rows in self._tables():
            table = Table(Column(min_width=24), *columns, title=title, title_justify="left")
            for row in rows:
                table.add_row(*row)
            tables.append(table)
        return Group(environment, *tables)

    def markdown(self) -> str:
        """Everything as Markdown tables, for docs/performance.md."""
        lines = [f"- {name}: {value}" for name, value in self.environment.items()]
        for head, rows in self._tables():
            lines += ["", *(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))]
        return "\n".join(lines) + "\n"

    def _tables(self) -> Iterator[tuple[Row, list[Row]]]:
        """Head and rows of each table; the first column of the head is the title."""
        for section in self.findings.sections():
            figures = [figure for figure in self.findings.figures if figure.section == section]
            if figures[0].row:
                yield _with_columns(section, figures)
                continue
            yield (section, "Median", "Lowest", "Highest", "Unit", "Bar"), [self._figure_row(f) for f in figures]
        ratios = self.findings.ratios
        yield (
            ("Ratio of medians", "Value", "Bar", ""),
            [(r.name, shown(r.value), str(r.bar or ""), _verdict(r.bar, r.value)) for r in ratios],
        )

    def _figure_row(self, figure: Figure) -> Row:
        numbers = (figure.median, min(figure.values), max(figure.values))
        bar = self.findings.bars.get(figure.name)
        return figure.name, *map(shown, numbers), figure.unit, f"{bar or ''} {_verdict(bar, figure.median)}".strip()


def _with_columns(section: str, figures: Sequence[Figure]) -> tuple[Row, list[Row]]:
    """Head and rows of a table with a column for each name; a cell is the median, and the range of several runs."""
    names = dict.fromkeys((figure.name, figure.unit) for figure in figures)
    rows: dict[str, dict[str, str]] = {}
    for figure in figures:
        rows.setdefault(figure.row, {})[figure.name] = _cell(figure)
    head = (section, *(f"{name} ({unit})" if unit else name for name, unit in names))
    return head, [(row, *(cells.get(name, "") for name, _ in names)) for row, cells in rows.items()]


def _cell(figure: Figure) -> str:
    spread = f" ({shown(min(figure.values))} to {shown(max(figure.values))})" if len(figure.values) > 1 else ""
    return f"{shown(figure.median)}{spread}"


def shown(number: float) -> str:
    """A number with three significant digits.

    >>> shown(16234.5), shown(0.4567), shown(12.0)
    ('16 200', '0.457', '12')
    """
    rounded = float(f"{number:.3g}")
    return f"{rounded:,.0f}".replace(",", " ") if abs(rounded) >= 1000 else f"{rounded:.3g}"


def _verdict(bar: Bar | None, value: float) -> str:
    if bar is None:
        return ""
    return "reached" if bar.reached(value) else "MISSED"


def _bar_json(bar: Bar | None, value: float) -> dict[str, Any]:
    return {"bar": str(bar) if bar else None, "reached": bar.reached(value) if bar else None}

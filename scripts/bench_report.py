"""What a bench found: figures, each with all its runs, the ratios between them, and how both are shown."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity, measured once a run."""

    section: str
    name: str
    unit: str
    values: Sequence[float]

    @property
    def median(self) -> float:
        """The middle run; with an even number the mean of the two in the middle."""
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Bar:
    """What a ratio or a figure must reach."""

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
    """The median of one figure over that of another of the same run of the bench."""

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
    """Everything measured; `bars` are those of figures that have to reach something by themselves, by name."""

    figures: list[Figure] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    bars: dict[str, Bar] = field(default_factory=dict)

    def add(self, section: str, name: str, unit: str, values: Sequence[float], bar: Bar | None = None) -> Figure:
        """A new figure. Raises ValueError without a value: a figure that was not measured must not look like one."""
        if not values:
            raise ValueError(f"{section}: {name} was not measured")
        figure = Figure(section, name, unit, list(values))
        self.figures.append(figure)
        if bar is not None:
            self.bars[name] = bar
        return figure

    def compare(self, name: str, of: Figure, to: Figure, bar: Bar | None = None) -> None:
        """A new ratio."""
        self.ratios.append(Ratio(name, of, to, bar))

    def sections(self) -> list[str]:
        """The sections in the order in which they were measured."""
        return list(dict.fromkeys(figure.section for figure in self.figures))


@dataclass(frozen=True, slots=True)
class Report:
    """Findings, and on what they were found: machine, versions, command."""

    environment: Mapping[str, str]
    findings: Findings

    def to_json(self) -> str:
        """All of it, with every single run."""
        content = {
            "environment": dict(self.environment),
            "figures": [_figure_json(figure, self.findings.bars.get(figure.name)) for figure in self.findings.figures],
            "ratios": [_ratio_json(ratio) for ratio in self.findings.ratios],
        }
        return json.dumps(content, indent=1, ensure_ascii=False)

    def renderable(self) -> Group:
        """Tables for a terminal."""
        environment = "\n".join(f"{name}: {value}" for name, value in self.environment.items())
        figures = [_figure_table(section, self.findings) for section in self.findings.sections()]
        return Group(environment, *figures, _ratio_table(self.findings.ratios))

    def markdown(self) -> str:
        """The same for docs/performance.md."""
        lines = [f"- {name}: {value}" for name, value in self.environment.items()]
        lines += ["", *_markdown_rows(("Ratio", "Value", "Bar", ""), _ratio_rows(self.findings.ratios))]
        for section in self.findings.sections():
            rows = _figure_rows(section, self.findings)
            lines += ["", *_markdown_rows((section, "Median", "Lowest", "Highest", "Unit", "Bar"), rows)]
        return "\n".join(lines) + "\n"


def shown(number: float) -> str:
    """A number with three digits that count.

    >>> shown(16234.5), shown(0.4567), shown(12.0)
    ('16 200', '0.457', '12')
    """
    rounded = float(f"{number:.3g}")
    return f"{rounded:,.0f}".replace(",", " ") if abs(rounded) >= 1000 else f"{rounded:.3g}"


def _figure_rows(section: str, findings: Findings) -> Iterator[tuple[str, ...]]:
    for figure in findings.figures:
        if figure.section == section:
            numbers = (figure.median, min(figure.values), max(figure.values))
            yield figure.name, *map(shown, numbers), figure.unit, _verdict(findings.bars.get(figure.name), numbers[0])


def _ratio_rows(ratios: Sequence[Ratio]) -> Iterator[tuple[str, ...]]:
    for ratio in ratios:
        yield ratio.name, shown(ratio.value), str(ratio.bar or ""), _word(ratio.bar, ratio.value)


def _verdict(bar: Bar | None, value: float) -> str:
    return "" if bar is None else f"{bar} {_word(bar, value)}"


def _word(bar: Bar | None, value: float) -> str:
    if bar is None:
        return ""
    return "reached" if bar.reached(value) else "MISSED"


def _figure_table(section: str, findings: Findings) -> Table:
    table = Table("", "median", "lowest", "highest", "unit", "bar", title=section, title_justify="left")
    for row in _figure_rows(section, findings):
        table.add_row(*row)
    return table


def _ratio_table(ratios: Sequence[Ratio]) -> Table:
    table = Table("ratio", "value", "bar", "", title="Ratios of medians", title_justify="left")
    for row in _ratio_rows(ratios):
        table.add_row(*row)
    return table


def _markdown_rows(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _figure_json(figure: Figure, bar: Bar | None) -> dict[str, Any]:
    return {
        "section": figure.section,
        "name": figure.name,
        "unit": figure.unit,
        "median": figure.median,
        "values": list(figure.values),
        "bar": str(bar) if bar else None,
        "reached": bar.reached(figure.median) if bar else None,
    }


def _ratio_json(ratio: Ratio) -> dict[str, Any]:
    return {
        "name": ratio.name,
        "value": ratio.value,
        "of": ratio.of.name,
        "to": ratio.to.name,
        "bar": str(ratio.bar) if ratio.bar else None,
        "reached": ratio.bar.reached(ratio.value) if ratio.bar else None,
    }

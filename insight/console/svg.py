"""Charts as SVG, drawn by the server. Each has a text for readers who can't see it."""

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

WIDTH = 640
HEIGHT = 160


def sparkline(points: Sequence[float], limit: float | None, text: str) -> Markup:
    """Bars of the rates, NaN for none, under a line at the limit; the highest of both is the top."""
    width, height = 120, 24
    top = _top(points, limit)
    return _svg("spark", width, height, text, _bars(points, limit, top, width, height))


def chart(points: Sequence[float], limit: float | None, text: str, labels: tuple[str, str], ticks: str) -> Markup:
    """A chart of bars under a line at the limit; `labels` name the limit and the top, `ticks` the span of time."""
    top = _top(points, limit) * 1.1
    words = Markup('<text x="4" y="12">{}</text><text x="4" y="{}" class="tick">{}</text>').format(
        labels[1], HEIGHT + 14, ticks
    )
    if limit is not None:
        words += Markup('<text x="{}" y="{:.1f}" class="limit" text-anchor="end">{}</text>').format(
            WIDTH - 4, max(10.0, HEIGHT - limit / top * HEIGHT - 4), labels[0]
        )
    return _svg("chart", WIDTH, HEIGHT + 20, text, _bars(points, limit, top, WIDTH, HEIGHT) + words)


def highest(points: Sequence[float]) -> float:
    """The highest point; 0 without any."""
    return max((point for point in points if not math.isnan(point)), default=0.0)


def _top(points: Sequence[float], limit: float | None) -> float:
    return max(highest(points), limit or 0.0) or 1.0


def _bars(points: Sequence[float], limit: float | None, top: float, width: int, height: int) -> Markup:
    step = width / max(1, len(points))
    bars = Markup().join(
        Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="{}"/>').format(
            index * step, height - tall, step * 0.8, tall, "over" if limit is not None and point > limit else "bar"
        )
        for index, point in enumerate(points)
        if not math.isnan(point) and (tall := max(1.0, min(point / top, 1.0) * height))
    )
    if limit is None:
        return bars
    y = max(height - limit / top * height, 0.5)
    return bars + Markup('<line x1="0" x2="{}" y1="{:.1f}" y2="{:.1f}" class="limit"/>').format(width, y, y)


def _svg(kind: str, width: int, height: int, text: str, content: Markup) -> Markup:
    return Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        kind, width, height, escape(text), content
    )

"""Draws the pictures of the pages that explain: shares, tightening, a tenant. The site's build calls it.

`python -m scripts.drawings [FOLDER]` writes them into docs/images. `sluice_lab.scenarios.picture` those of screens.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from sluice.state.quotas.overrides import bound_of_share, factor_of
from sluice_elastic.tighten import ElasticRule, MeasuredLoad

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"

_WIDTH = 760
_STYLE = """
    .back { fill: #ffffff; } text { font: 14px system-ui, "Segoe UI", sans-serif; fill: #171a20; }
    .quiet { fill: #5a6270; font-size: 12px; } .box { fill: #f0f2f6; stroke: #b9c0cc; }
    .shade { fill: #dc9a4e; opacity: .25; }
    .flow { stroke: #8791ea; } .line { stroke: #4450c8; stroke-width: 2.5; fill: none; } .axis { stroke: #b9c0cc; }
    .limit { stroke: #a84e00; stroke-width: 1.5; stroke-dasharray: 5 4; } .use { fill: #8791ea; }
    @media (prefers-color-scheme: dark) {
      .back { fill: #14161b; } text { fill: #e5e7ec; } .quiet { fill: #969dab; }
      .box { fill: #1c1f26; stroke: #4a505c; } .flow { stroke: #6671d6; } .line { stroke: #9aa2ff; }
      .axis { stroke: #4a505c; } .limit { stroke: #f0975a; } .use { fill: #6671d6; }
    }
"""


def _svg(height: int, description: str, parts: Iterable[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"',
            f'  aria-label="{description}">',
            f"  <style>{_STYLE}  </style>",
            f'  <rect class="back" width="{_WIDTH}" height="{height}" rx="8"/>',
            *(f"  {part}" for part in parts),
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{text}</text>'


def _box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{kind}"/>'


def shares() -> str:
    """Three brokers, one limit, three arrows."""
    brokers = (
        ("broker-1", 450, "wants more: an equal part"),
        ("broker-2", 450, "wants more: an equal part"),
        ("broker-3", 100, "wants no more: keeps its use"),
    )

    def parts() -> Iterator[str]:
        yield _box(30, 95, 170, 90)
        yield _text(115, 132, "client app", anchor="middle")
        yield _text(115, 156, "limit 1 MB/s", "quiet", "middle")
        for number, (name, rate, why) in enumerate(brokers):
            y = 60 + 80 * number
            from_y, thick = 140 + (number - 1) * 24, rate / 22
            curve = f"M200 {from_y} C300 {from_y} 320 {y} 420 {y}"
            yield f'<path class="flow" stroke-width="{thick:.1f}" fill="none" d="{curve}"/>'
            yield _box(420, y - 30, 310, 60)
            yield _text(438, y - 4, f"{name}: {rate} kB/s")
            yield _text(438, y + 16, why, "quiet")
        yield _text(
            30, 272, "450 + 450 + 100 kB/s: one limit in the whole cluster, whichever brokers the client uses", "quiet"
        )

    return _svg(290, "Three brokers share one limit of a client: 450, 450 and 100 kB per second", parts())


class _Moment(NamedTuple):
    """A half second of a minute: the broker's load, and the rate that the client may have, in MB/s."""

    at_s: float
    load: float
    allowed: float


def _minute(limit: float, reservation: float) -> Iterator[_Moment]:
    """Limits by the rule while a neighbour without a limit loads the broker from second 15 to second 30."""
    rule, allowed = ElasticRule(), limit
    for half in range(120):
        now_ms = 100_000 + 500 * half
        load = (1.3 if 15 <= half / 2 < 30 else 0.1) + allowed / 10
        overrides = rule.decide({"b": MeasuredLoad(load, "b: bytes in", now_ms - 1_000)}, now_ms)
        allowed = limit * bound_of_share(factor_of(overrides, "b"), limit, reservation)
        yield _Moment(half / 2, load, allowed)


def elastic() -> str:
    """Tightening over a minute, by the job's own rule."""
    limit, reservation = 1.0, 0.4
    left, right, top, bottom = 60, _WIDTH - 155, 40, 240

    def x(at_s: float) -> float:
        return left + at_s / 60 * (right - left)

    def y(rate: float) -> float:
        return bottom - rate / 1.1 * (bottom - top)

    def parts() -> Iterator[str]:
        yield _box(x(15), top - 8, x(30) - x(15), bottom - top + 8, "shade")
        yield _text((x(15) + x(30)) / 2, top - 16, "a neighbour loads the broker", "quiet", "middle")
        for name, rate in (("limit Q", limit), ("reservation R", reservation)):
            yield f'<path class="limit" d="M{left} {y(rate):.1f}H{right}"/>'
            yield _text(right + 8, y(rate) + 4, f"{name}, {rate:g} MB/s", "quiet")
        points = " ".join(f"{x(each.at_s):.1f},{y(each.allowed):.1f}" for each in _minute(limit, reservation))
        yield f'<polyline class="line" points="{points}"/>'
        yield f'<path class="axis" d="M{left} {top}V{bottom}H{right}" fill="none"/>'
        for second in range(0, 61, 10):
            yield _text(x(second), bottom + 18, f"{second} s", "quiet", "middle")
        yield _text(left, 20, "rate that the client may have", "quiet")

    return _svg(275, "Over a minute a limit is tightened to its reservation, and recovers", parts())


def tenant() -> str:
    """A tenant above its members."""
    members = (("shop-web", 1.2, 2.0), ("shop-etl", 1.5, 2.0), ("shop-stock", 0.3, 2.0))

    def bar(left: float, top: float, width: float, used: float, limit: float) -> Iterator[str]:
        yield _box(left, top, width, 12)
        yield _box(left, top, width * used / limit, 12, "use")

    def parts() -> Iterator[str]:
        yield _box(180, 24, 400, 84)
        yield _text(200, 52, "tenant shop")
        yield _text(560, 52, "3 of 3 MB/s: the next request waits", "quiet", "end")
        yield from bar(200, 70, 360, 3.0, 3.0)
        for number, (name, used, limit) in enumerate(members):
            left = 30 + 240 * number
            yield f'<path class="axis" d="M380 108V130H{left + 110}V152" fill="none"/>'
            yield _box(left, 152, 220, 84)
            yield _text(left + 16, 178, name)
            yield _text(left + 204, 178, f"{used:g} of {limit:g} MB/s", "quiet", "end")
            yield from bar(left + 16, 196, 188, used, limit)
        yield _text(
            30,
            264,
            "Each request is charged to its client's counter and to the tenant's: the longer wait counts",
            "quiet",
        )

    return _svg(282, "A tenant's limit of 3 MB per second above three members with limits of 2 MB per second", parts())


DRAWINGS: dict[str, Callable[[], str]] = {"shares.svg": shares, "elastic.svg": elastic, "tenant.svg": tenant}


def draw(folder: Path = IMAGES) -> None:
    """Write the pictures that differ, so that a server of the site that watches them comes to rest."""
    for name, drawing in DRAWINGS.items():
        file, content = folder / name, drawing()
        if not file.exists() or file.read_text() != content:
            file.write_text(content)


if __name__ == "__main__":
    draw(*map(Path, sys.argv[1:2]))

"""A line plot as SVG, both axes logarithmic where a line spans more than a decade. Pure."""

import math
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 360, 70, 40, 40, 170
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#e09f3e", "#6a4c93", "#555555")


class Line(NamedTuple):
    """A named line of (x, y) points, x rising."""

    name: str
    points: list[tuple[float, float]]


class Axis:
    """Maps amounts to pixels."""

    def __init__(self, amounts: list[float], start: float, end: float) -> None:
        low, high = min(amounts), max(amounts)
        self.log = low > 0 and high / low > 10
        self.low, self.high = (math.log10(low), math.log10(high)) if self.log else (min(low, 0.0), high)
        if self.high <= self.low:
            self.high = self.low + 1.0
        self.start, self.end = start, end

    def at(self, amount: float) -> float:
        """Return the pixel of an amount."""
        value = math.log10(amount) if self.log else amount
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return some amounts to label."""
        if self.log:
            decades = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
            marks = [10.0**n for n in decades]
            ends = [10**self.low, 10**self.high]
            return sorted({*marks, *(ends if len(marks) < 2 else [])})
        return [self.low + (self.high - self.low) * n / 4 for n in range(5)]


def line_plot(title: str, unit: str, lines: list[Line]) -> str:
    """Return an SVG document."""
    across = Axis([x for line in lines for x, _ in line.points], LEFT, WIDTH - RIGHT)
    up = Axis([y for line in lines for _, y in line.points], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.3g} {escape(unit)}</text>')
    for tick in across.ticks():
        parts.append(
            f'<text x="{across.at(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:.4g}</text>'
        )
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        dots = [(across.at(x), up.at(y)) for x, y in line.points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in dots)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in dots]
        at = TOP + 16 * number
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{at + 4}" fill="{colour}">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"

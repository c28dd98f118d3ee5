"""Curves as an SVG picture: a handful of lines over a logarithmic axis. Standard library only."""

from html import escape
from math import log2

COLOURS = ("#1b6ca8", "#c8553d", "#2e7d4f", "#8a5aab", "#b8860b", "#444444", "#00838f", "#ad1457")
WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 62, 150, 40, 56


def draw(
    title: str, x_name: str, y_name: str, x_labels: list[str], xs: list[float], lines: dict[str, list[float]]
) -> str:
    """Return an SVG document. `xs` > 0, ascending; each line has a y (0..1, drawn in percent) per x; `bound` lines are dashed."""
    top = max((y for ys in lines.values() for y in ys), default=0.0) or 1.0
    low, high = log2(xs[0]), log2(xs[-1])

    def x_of(x: float) -> float:
        share = (log2(x) - low) / (high - low) if high > low else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y_of(y: float) -> float:
        return HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for step in range(5):
        y = top * step / 4
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_of(y):.1f}" y2="{y_of(y):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y_of(y) + 4:.1f}" text-anchor="end">{y:.1%}</text>')
    for x, label in zip(xs, x_labels, strict=True):
        parts.append(f'<text x="{x_of(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{escape(label)}</text>')
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_name)}</text>')
    parts.append(f'<text x="14" y="{TOP - 8}">{escape(y_name)}</text>')
    for number, (name, ys) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        dashes = ' stroke-dasharray="5 4"' if "bound" in name else ""
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in zip(xs, ys, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        y = TOP + 16 + number * 18
        parts.append(f'<line x1="{WIDTH - RIGHT + 12}" x2="{WIDTH - RIGHT + 34}" y1="{y - 4}" y2="{y - 4}" '
                     f'stroke="{colour}" stroke-width="2"{dashes}/>')  # fmt: skip
        parts.append(f'<text x="{WIDTH - RIGHT + 40}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])

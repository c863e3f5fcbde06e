"""Pictures as SVG text: bars of ratios and lines of growth, both on logarithmic scales.

They are embedded as images in light and dark pages: colours follow the reader's scheme,
the background is transparent, and numbers stand beside what they belong to. Output
depends on the data alone, so that a test can compare it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

__all__ = ["bars", "lines"]

STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #24292f }
.quiet { fill: #6e7781 } .grid { stroke: #d0d7de } .one { stroke: #57606a }
.faster { fill: #1a7f37 } .slower { fill: #cf222e } .case { font-weight: 600 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .quiet { fill: #8d96a0 } .grid { stroke: #30363d } .one { stroke: #8d96a0 }
.faster { fill: #3fb950 } .slower { fill: #f85149 }
}
</style>"""
COLOURS = ("#0969da", "#cf222e", "#1a7f37", "#9a6700", "#8250df", "#bc4c00", "#1b7c83", "#6e7781")


def _document(width: int, height: int, title: str, body: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return "\n".join([f'{head} role="img"><title>{escape(title)}</title>', STYLE, *body, "</svg>", ""])


def _text(x: float, y: float, text: str, classes: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{classes}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, classes: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{classes}"/>'


def bars(title: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """For each case a bar for each peer: to the right of the line at 1 where we are faster, to the left where not."""
    left, width, step = 130, 760, 18
    ratios = [ratio for peers in rows.values() for ratio in peers.values()]
    low = 10 ** math.floor(math.log10(min([0.5, *ratios])))
    high = 10 ** math.ceil(math.log10(max([2.0, *ratios])))

    def at(ratio: float) -> float:
        share = (math.log10(ratio) - math.log10(low)) / (math.log10(high) - math.log10(low))
        return left + share * (width - left - 60)

    body, y = [], 38.0
    for case, peers in rows.items():
        body.append(_text(0, y, case, "case"))
        y += step
        for peer, ratio in peers.items():
            begin, end = sorted((at(1), at(ratio)))
            kind = "faster" if ratio >= 1 else "slower"
            body.append(_text(left - 8, y, peer, "quiet", "end"))
            bar = f'<rect x="{begin:.1f}" y="{y - 10:.1f}" width="{max(end - begin, 1):.1f}" height="12"'
            body.append(f'{bar} class="{kind}"/>')
            body.append(_text(max(end, at(1)) + 5, y, f"{ratio:.3g} ×"))
            y += step
        y += 6
    grid = []
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        x = at(10.0**power)
        grid.append(_line(x, 20, x, y - step, "one" if power == 0 else "grid"))
        grid.append(_text(x, 14, f"{10.0**power:g} ×", "quiet", "middle"))
    return _document(width, math.ceil(y), title, [*grid, *body])


def lines(title: str, unit: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """For each name the points of a curve; both axes by powers of ten."""
    left, top, width, height, legend = 64, 12, 760, 420, 190
    points = [point for curve in series.values() for point in curve]
    edges = []
    for axis in (0, 1):
        powers = [math.log10(point[axis]) for point in points]
        edges.append((math.floor(min(powers)), max(math.ceil(max(powers)), math.floor(min(powers)) + 1)))
    (x_low, x_high), (y_low, y_high) = edges

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x_low) / (x_high - x_low)
        up = (math.log10(y) - y_low) / (y_high - y_low)
        return left + across * (width - left - legend), height - 30 - up * (height - 30 - top)

    body = []
    for power in range(x_low, x_high + 1):
        x, y = at(10.0**power, 10.0**y_low)
        body += [_line(x, top, x, y, "grid"), _text(x, y + 18, f"{10.0**power:.0e}", "quiet", "middle")]
    for power in range(y_low, y_high + 1):
        x, y = at(10.0**x_low, 10.0**power)
        body += [_line(x, y, width - legend, y, "grid"), _text(x - 6, y + 4, f"{10.0**power:g}", "quiet", "end")]
    body.append(_text(width - legend, height - 12, unit, "quiet", "end"))
    for i, (name, curve) in enumerate(series.items()):
        colour, dash = COLOURS[i % len(COLOURS)], ("", "6 3", "2 3")[i // len(COLOURS) % 3]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in curve))
        look = f'fill="none" stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dash}"'
        body.append(f'<polyline points="{path}" {look}/>')
        y = top + 12 + i * 17
        body.append(f'<polyline points="{width - legend + 10},{y - 4} {width - legend + 34},{y - 4}" {look}/>')
        body.append(_text(width - legend + 40, y, name))
    return _document(width, max(height, top + 20 + 17 * len(series)), title, body)

"""Bars in an SVG: groups side by side, a bar for each series, values written at their ends.

    bars(path, title, unit, groups=["100 Mb/s", "1 Gb/s"], series={"Adam": [3.1, 1.2], "0/1 Adam": [1.0, 0.9]})

The scale is logarithmic where the longest bar is more than 20 times the shortest, and says so.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

COLOURS = ["#5b6b7b", "#c2703d", "#2f7f79", "#7a5ea8", "#b0413e"]
ROW, GAP, LEFT, WIDTH, TOP = 20, 14, 290, 420, 64


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bars(path: Path, title: str, unit: str, groups: Sequence[str], series: Mapping[str, Sequence[float]]) -> None:
    values = [value for row in series.values() for value in row]
    most, least = max(values), min(values)
    logarithmic = most > 20 * least > 0
    floor = 10 ** math.floor(math.log10(least / 1.5)) if logarithmic else 0

    def length(value: float) -> float:
        part = math.log(value / floor) / math.log(most / floor) if logarithmic else value / most
        return max(1.0, part * WIDTH)

    height = TOP + len(groups) * (len(series) * ROW + GAP) + 10
    scale = f"{unit}, logarithmic" if logarithmic else unit
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 110}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="600">{escape(title)}</text>',
        f'<text x="16" y="46" fill="#555">{escape(scale)}</text>',
    ]
    y = TOP
    for index, group in enumerate(groups):
        out.append(f'<text x="16" y="{y + 14}" font-weight="600">{escape(group)}</text>')
        for colour, (name, row) in zip(COLOURS, series.items(), strict=False):
            long = length(row[index])
            out.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end" fill="#333">{escape(name)}</text>')
            out.append(f'<rect x="{LEFT}" y="{y + 2}" width="{long:.1f}" height="{ROW - 5}" fill="{colour}"/>')
            out.append(f'<text x="{LEFT + long + 6:.1f}" y="{y + 14}">{short(row[index])}</text>')
            y += ROW
        y += GAP
    out.append("</svg>\n")
    path.write_text("\n".join(out))

"""Escaping for HTML and SVG: the one door through which text enters either."""

from __future__ import annotations

import html
import re

# Right-to-left letters would reorder their neighbours: each run of them is kept to itself.
RIGHT_TO_LEFT = re.compile(
    "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]+"
)


def for_html(text: str) -> str:
    return RIGHT_TO_LEFT.sub(lambda run: f"<bdi>{run[0]}</bdi>", html.escape(text))


def for_svg(text: str) -> str:
    return RIGHT_TO_LEFT.sub(lambda run: f'<tspan class="iso">{run[0]}</tspan>', html.escape(text))


def for_title(text: str) -> str:
    """Where no element may stand: titles, descriptions, attributes."""
    return html.escape(text)

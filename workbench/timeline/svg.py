"""The few SVG elements the picture is made of; every text that enters one is escaped here."""

from __future__ import annotations

from .layout import Label, is_plain
from .markup import for_svg, for_title


def number(value: float) -> str:
    """Short coordinates: one decimal, no trailing zero."""
    return f"{value:.1f}".removesuffix(".0")


def line(x1: float, y1: float, x2: float, y2: float, css: str, extra: str = "") -> str:
    place = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
    return f'<line {place} class="{css}"{extra}/>'


def arrow(x1: float, y1: float, x2: float, y2: float, css: str, head: str) -> str:
    return line(x1, y1, x2, y2, css, f' marker-end="url(#{head})"')


def rect(x: float, y: float, width: float, height: float, css: str, radius: float = 0) -> str:
    size = f'width="{number(max(0.0, width))}" height="{number(height)}"'
    round_ = f' rx="{number(radius)}"' if radius else ""
    return f'<rect x="{number(x)}" y="{number(y)}" {size}{round_} class="{css}"/>'


def path(d: str, css: str) -> str:
    return f'<path d="{d}" class="{css}"/>'


def circle(x: float, y: float, r: float, css: str) -> str:
    return f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(r)}" class="{css}"/>'


def titled(title: str, body: str) -> str:
    """A group with a tooltip."""
    return f"<g><title>{for_title(title)}</title>{body}</g>"


def text(x: float, y: float, content: str, css: str, side: str = "start", forced: float = 0) -> str:
    """forced: a width to squeeze text into whose own width nobody can foresee."""
    anchor = "" if side == "start" else f' text-anchor="{side}"'
    squeeze = f' textLength="{number(forced)}" lengthAdjust="spacingAndGlyphs"' if forced else ""
    place = f'x="{number(x)}" y="{number(y)}"'
    return f'<text {place} class="{css}"{anchor}{squeeze}>{for_svg(content)}</text>'


def label(found: Label, x: float) -> str:
    """A solved label at its anchor's x (for one between two points: the middle)."""
    css = found.css + (" m" if found.mono else "")
    forced = 0.0 if is_plain(found.text) else found.width
    return text(x + found.dx, found.y, found.text, css, found.side, forced)


def check(x: float, y: float) -> str:
    """A committed checkpoint."""
    tick = f"M{number(x - 3.4)},{number(y + 0.2)} l2.5,2.7 l4.4,-5.2"
    return circle(x, y, 7.5, "cp") + path(tick, "ck")


def question(x: float, y: float) -> str:
    """An answer that settles nothing."""
    hook = f"M{number(x - 2.2)},{number(y - 1.6)} a2.3,2.3 0 1 1 2.3,2.6 v1.2 m0,2.2 v0.1"
    return circle(x, y, 7.5, "qm") + path(hook, "ck")


def cross(x: float, y: float) -> str:
    """Where a worker went silent."""
    return path(f"M{number(x - 6)},{number(y - 6)} l12,12 m0,-12 l-12,12", "x")


def diamond(x: float, y: float) -> str:
    """The dispatch marker."""
    return path(f"M{number(x)},{number(y - 8.5)} l8.5,8.5 l-8.5,8.5 l-8.5,-8.5 Z", "dp")


def stop(x: float, y: float, css: str) -> str:
    """A recorded end of a generation that is no success: a square with a bar."""
    bar = path(f"M{number(x - 3.5)},{number(y)} h7", "ck")
    return rect(x - 7, y - 7, 14, 14, css, 3) + bar


def retry(x: float, y: float) -> str:
    """An attempt put off: a circle with an arrow that goes round."""
    head = f"M{number(x + 3.9)},{number(y - 3.6)} v2.7 h-2.7"
    turn = f"M{number(x + 3.4)},{number(y - 1.2)} a3.7,3.7 0 1 0 0.1,2.6 {head}"
    return circle(x, y, 7.5, "rt") + path(turn, "ck thin")


def receipt(x: float, y: float, css: str) -> str:
    """A document; css tells a stored one from one only spoken of."""
    left, top = x - 8, y - 10
    lines = f"M{number(left + 4)},{number(top + 6)} h8 m-8,4 h8 m-8,4 h5"
    return rect(left, top, 16, 20, css, 2.5) + path(lines, css + "l")


def fact(x: float, y: float, name: str, value: str) -> str:
    """A name and, in the stronger colour, its value."""
    place = f'x="{number(x)}" y="{number(y)}"'
    return (
        f'<text {place} class="fact">{for_svg(name)}<tspan dx="7">{for_svg(value)}</tspan></text>'
    )

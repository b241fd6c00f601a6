"""The picture as a stand-alone SVG: for an <img>, in light and dark, with nothing loaded."""

from __future__ import annotations

from collections.abc import Sequence

from . import svg
from .figure import figure
from .layout import is_plain, text_width
from .life import Life
from .markup import for_title
from .story import words
from .style import DEFS, FONT, SVG_RULES, themed
from .verdict import facts, headline
from .wording import brief, visible

TARGET = 1040.0  # as narrow as the labels allow, since READMEs shrink it
MARGIN = 24.0
LEGEND = (
    "Solid is recorded in a database. Dashed or hatched is inferred. Order is exact, width is not."
)
RULES = (
    ".page{fill:var(--bg);stroke:var(--rule)}.h{font-size:21px;font-weight:650}"
    ".id{font-size:13px;fill:var(--mut)}.fact{font-size:13px;fill:var(--mut)}"
    ".fact tspan{fill:var(--ink);font-weight:600}.key{font-size:12px;fill:var(--mut)}"
)


def image(life: Life) -> str:
    """The SVG document."""
    drawn = figure(life, TARGET)
    width = drawn.width + 2 * MARGIN
    head, y = _head(life, drawn.width)
    legend = svg.text(MARGIN, y + drawn.height + 26, LEGEND, "key")
    height = y + drawn.height + 46
    style = f"<style>.tl{{font-family:{FONT}}}{themed('.tl')}{SVG_RULES}{RULES}</style>"
    title = f"Life of job {visible(life.record.job)}"
    return (
        f'<svg class="tl" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"'
        f' width="{width:.0f}" height="{height:.0f}" role="img" aria-labelledby="tl-title tl-desc">'
        f'<title id="tl-title">{for_title(title)}</title>'
        f'<desc id="tl-desc">{for_title(" ".join(words(life)))}</desc>{style}{DEFS}'
        f'<rect x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="8"'
        f' class="page"/>\n{head}\n'
        f'<g transform="translate({MARGIN:.0f} {y:.0f})">{drawn.body}</g>\n'
        f"{legend}</svg>\n"
    )


def _head(life: Life, width: float) -> tuple[str, float]:
    """Job, headline and facts, and the y below them."""
    record = life.record
    line = f"Job {brief(record.job, 48)} in {brief(record.database, 48)}"
    out, y = [svg.text(MARGIN, 34, line, "id", forced=_forced(line, 13))], 62.0
    for part in _lines(headline(life)[0].split(" "), width, 21):
        out.append(svg.text(MARGIN, y, part, "h"))
        y += 26
    x = MARGIN
    for name, value in facts(life):
        said = brief(value, 60)
        wide = text_width(f"{name}  {said}", 13, bold=True) + 24
        if x > MARGIN and x + wide > width + MARGIN:
            x, y = MARGIN, y + 21
        out.append(svg.fact(x, y + 2, name, said))
        x += wide
    return "\n".join(out), y + 22


def _forced(text: str, size: float) -> float:
    return 0.0 if is_plain(text) else text_width(text, size)


def _lines(words: Sequence[str], width: float, size: float) -> list[str]:
    lines = [""]
    for word in words:
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size, bold=True) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines

"""One self-contained HTML page: no script, nothing loaded, readable by a screen reader."""

from __future__ import annotations

from .figure import figure
from .life import Life
from .markup import for_html, for_title
from .rail import RULES as RAIL_RULES
from .rail import rail
from .story import Line, table, words
from .style import DEFS, PAGE_RULES, SVG_RULES, themed
from .verdict import facts, headline
from .wording import visible

SMALLEST = 0.85  # the wide picture shrinks to this before it scrolls in its own box
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
LEGEND = (
    (
        "Order is exact, width is not:",
        "every gap has a floor and long ones are shortened; read the numbers on the axis.",
    ),
    ("Solid", "is recorded in a database."),
    ("Dashed or hatched", "is inferred: a process that is gone writes nothing."),
)


def page(life: Life) -> str:
    """The whole page."""
    job, database = visible(life.record.job), visible(life.record.database)
    title, _ = headline(life)
    told = words(life)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{for_title(POLICY)}">',
            f"<title>{for_title(job)}: {for_title(visible(life.record.status, 40))}</title>",
            f"<style>{themed(':root')}{PAGE_RULES}{SVG_RULES}{RAIL_RULES}</style></head><body><main>",
            f'<header><p class="id">Job <code>{for_html(job)}</code> in '
            f"<code>{for_html(database)}</code></p><h1>{for_html(title)}</h1>",
            _facts(life),
            "</header>",
            _doubts(life),
            _figure(life, told),
            "<section><h2>The same story in words</h2>",
            *(f"<p>{for_html(paragraph)}</p>" for paragraph in told),
            _table(table(life)),
            "</section></main></body></html>\n",
        ]
    )


def _facts(life: Life) -> str:
    parts = [
        f"<div><dt>{for_html(name)}</dt><dd>{_value(name, value)}</dd></div>"
        for name, value in facts(life)
    ]
    return f"<dl>{''.join(parts)}</dl>"


def _value(name: str, value: str) -> str:
    return f"<code>{for_html(value)}</code>" if name == "Status" else for_html(value)


def _doubts(life: Life) -> str:
    found = [*life.doubts, *life.record.oddities]
    if not found:
        return ""
    items = "".join(f"<li>{for_html(text)}</li>" for text in found)
    return f'<section class="doubt"><h2>What does not fit</h2><ul>{items}</ul></section>'


def _figure(life: Life, told: list[str]) -> str:
    drawn = figure(life)
    size = f'style="min-width:{drawn.width * SMALLEST:.0f}px;max-width:{drawn.width:.0f}px"'
    legend = "".join(f"<span><b>{name}</b> {text}</span>" for name, text in LEGEND)
    return (
        '<figure><div class="scroll wide" tabindex="0" role="group"'
        ' aria-label="Timeline, scrolls sideways">'
        f'<svg viewBox="0 0 {drawn.width:.0f} {drawn.height:.0f}" {size} role="img"'
        ' aria-labelledby="tl-title tl-desc" xmlns="http://www.w3.org/2000/svg">'
        f'<title id="tl-title">Life of job {for_title(visible(life.record.job))}</title>'
        f'<desc id="tl-desc">{for_title(" ".join(told))}</desc>{DEFS}\n{drawn.body}\n</svg></div>'
        f'<div class="narrow">{rail(life)}</div>'
        f"<figcaption>{legend}</figcaption></figure>"
    )


def _table(lines: list[Line]) -> str:
    heads = ("seq", "time (ISO 8601)", "seconds", "gen", "event", "detail")
    head = "".join(
        f'<th scope="col"{" class=n" if name == "seconds" else ""}>{name}</th>' for name in heads
    )
    rows = "".join(_row(line) for line in lines)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(line: Line) -> str:
    time = f'<time datetime="{line.at}">{line.at}</time>' if "T" in line.at else for_html(line.at)
    quiet = ' class="quiet"' if line.quiet else ""
    return (
        f'<tr{quiet}><td class="t">{line.seq}</td><td class="t">{time}</td>'
        f'<td class="n">{for_html(line.since)}</td><td>{line.generation}</td>'
        f"<td><code>{for_html(line.kind)}</code></td><td>{for_html(line.detail)}</td></tr>"
    )

"""The picture for a terminal: one row for each point, rails at the left, words at the right.

Box characters where the encoding has them, else ASCII; nothing but printable characters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from .life import Life
from .rows import Row, rows
from .verdict import facts, headline, unknown_words
from .wording import ELLIPSIS, MINUS, visible

RAILS = {  # what holds between two rows, by rail
    "": " ",
    "open": "┊",
    "permit": "┃",
    "used": "╎",
    "lease": "┃",
    "dead": "▒",
    "idle": "┈",
    "runs": "┊",
    "ask": "┃",
    "maybe": "╎",
    "held": "┃",
    "maybe bad": "╎",
}
SIGNS = {
    "check": "✓",
    "cross": "✗",
    "diamond": "◆",
    "question": "?",
    "retry": "↻",
    "stop": "■",
    "halt": "■",
    "receipt": "▣",
    "ghost": "□",
    "ring": "○",
    "disc": "●",
    "nay": "✗",
    "bar": "┳",
    "end": "┻",
    "dot": "·",
    "dots": "⋮",
}
PLAIN = str.maketrans(
    {
        "┊": ":",
        "┃": "|",
        "╎": ":",
        "▒": "x",
        "┈": ".",
        "✓": "*",
        "✗": "X",
        "◆": "#",
        "↻": "@",
        "■": "!",
        "▣": "S",
        "□": "s",
        "○": "o",
        "●": "O",
        "┳": "+",
        "┻": "+",
        "·": ".",
        "⋮": ":",
        "░": "?",
        "→": ">",
        MINUS: "-",
        ELLIPSIS: "...",
    }
)
LANES = ("approval", "worker", "service")
HEAD = 26  # columns before the words
NARROWEST, WIDEST = 56, 120


def text(life: Life, width: int, encoding: str = "utf-8") -> str:
    """The whole picture, at most `width` columns where that leaves room for words."""
    width = max(NARROWEST, min(width, WIDEST))
    title, _ = headline(life)
    lines = wrap(f"Job {visible(life.record.job)} in {visible(life.record.database)}", width)
    lines += wrap(title, width)
    lines += wrap(" | ".join(f"{name}: {value}" for name, value in facts(life)), width)
    lines += ["", *_picture(life, width), "", *_legend(life, width)]
    for doubt in (*life.doubts, *life.record.oddities):
        lines += wrap(f"Does not fit: {doubt}", width)
    return encodable("\n".join(line.rstrip() for line in lines) + "\n", encoding)


def _picture(life: Life, width: int) -> list[str]:
    found = rows(life)
    lines = [_line("", "A", "W", " ", "R", "")]
    before = None
    for row in found:
        lines += _row(life, row, before, width)
        before = row
    return lines


def _line(time: str, approval: str, worker: str, unknown: str, service: str, words: str) -> str:
    return f"{time:>12} {approval} {worker} {unknown} ╎ {service}  {words}"


def _row(life: Life, row: Row, before: Row | None, width: int) -> list[str]:
    """A row's own line, with its sign, its notes, and the time that then passes."""
    upper = {
        "approval": before.approval if before else "",
        "worker": before.worker if before else "",
        "service": before.service if before else "",
    }
    signs = {lane: SIGNS[row.mark] if lane == row.lane else RAILS[upper[lane]] for lane in LANES}
    status = f" → {visible(row.status, 40)}" if row.changed else ""
    what = f"[{row.title}]" if row.inferred and row.point.kind != "now" else row.title
    title = wrap(what + status, width - HEAD)
    shade = "░" if row.unknown else " "
    lines = [_line(row.time, signs["approval"], signs["worker"], shade, signs["service"], title[0])]
    notes = [*title[1:]]
    for note in row.notes:
        notes += wrap(note, width - HEAD)
    if row.edge:
        said = unknown_words(life) if row.edge == "boundary" else "known from here on"
        notes += wrap(said, width - HEAD)
    rails = (RAILS[row.approval], RAILS[row.worker], shade, RAILS[row.service])
    lines += [_line("", *rails, note) for note in notes]
    if row.long:
        lines.append(_line(row.gap, *rails, ""))
    return lines


def _legend(life: Life, width: int) -> list[str]:
    said = (
        "A approval, W worker, R report service behind the wall, ░ outcome unknown. "
        "Order is exact. ┃ is recorded; ▒ ┊ ╎ ┈ and what stands in brackets is inferred."
    )
    return wrap(said, width)


def columns(text: str) -> int:
    """How many terminal columns a text takes."""
    return sum(_wide(character) for character in text)


def _wide(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns; a word longer than that is cut."""
    lines, line = [], ""
    for word in _pieces(text.split(" "), width):
        if line and columns(line) + 1 + columns(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def _pieces(words: Iterable[str], width: int) -> Iterable[str]:
    for word in words:
        piece = ""
        for character in word:
            if columns(piece) + _wide(character) > width:
                yield piece
                piece = ""
            piece += character
        yield piece


def encodable(text: str, encoding: str) -> str:
    """The text as it can be written: ASCII signs for an encoding without the box characters."""
    signs = "".join(chr(sign) for sign in PLAIN if isinstance(sign, int))
    try:
        signs.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        text = text.translate(PLAIN)
    try:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        return text.encode("ascii", "backslashreplace").decode("ascii")

"""Text that is safe to show, and times in words.

Whatever a database holds may be hostile: control, format and bidirectional characters, half
surrogates and stacked accents become visible escapes, and long text is shortened with its length
said. What is returned still has to be escaped for HTML or SVG by whoever writes that.
"""

from __future__ import annotations

import datetime
import unicodedata
from collections.abc import Sequence

MINUS = "\N{MINUS SIGN}"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
MINUTE, HOUR, DAY = 60, 3600, 86400
MANY = 2000  # characters: beyond this a text's exact length is not told
FAR = 100_000 * DAY  # no clock of the lab can show more; such a number is a damaged one


def visible(value: object, limit: int = 80) -> str:
    """Any value as one line of harmless text, at most about `limit` characters."""
    text = value if isinstance(value, str) else repr(value)
    if not text:
        return "(empty)"
    out, marks = [], 0
    for character in text[:limit]:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        blank = category == "Zs" and character != " "
        if category in HIDDEN or blank or marks > 2:
            out.append(_escape(character))
        else:
            out.append(character)
    shown = "".join(out)
    if len(text) > limit or len(shown) > 2 * limit:
        size = f"{len(text):,}" if len(text) <= MANY else f"over {MANY:,}"
        return f"{shown[: 2 * limit].rstrip()}{ELLIPSIS} ({size} characters)"
    return shown


def _escape(character: str) -> str:
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    if short:
        return short
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def brief(value: object, limit: int) -> str:
    """Like `visible`, but cut to `limit` with only an ellipsis: for a label in a picture."""
    text = value if isinstance(value, str) else repr(value)
    shown = visible(text[: limit + 1], limit + 1)
    return shown if len(shown) <= limit else shown[: limit - 1].rstrip() + ELLIPSIS


def duration(seconds: float | None, digits: int = 1) -> str:
    """A length of time for a person; negative ones (a clock that stepped back) keep their sign."""
    if seconds is None:
        return "?"
    if seconds < 0:
        return MINUS + duration(-seconds, digits)
    if seconds > FAR:
        return "over 100,000 days"
    if seconds < 0.9995:
        milliseconds = round(seconds * 1000)
        return f"{milliseconds} ms" if milliseconds or not seconds else "<1 ms"
    if seconds < 59.95:
        number = f"{seconds:.{digits}f}"
        return (number.rstrip("0").rstrip(".") if "." in number else number) + " s"
    whole = round(seconds)
    if whole < HOUR:
        return _two(whole, MINUTE, "min", 1, "s")
    if whole < DAY:
        return _two(whole, HOUR, "h", MINUTE, "min")
    return _two(whole, DAY, "d", HOUR, "h")


def _two(whole: int, unit: int, name: str, rest_unit: int, rest_name: str) -> str:
    count, rest = divmod(whole, unit)
    rest //= rest_unit
    return f"{count:,} {name} {rest} {rest_name}" if rest else f"{count:,} {name}"


def offset(at: float | None, start: float | None) -> str:
    """Where a moment lies, counted from the first event: `+49.85 s`."""
    if at is None or start is None:
        return "at an unreadable time"
    seconds = at - start
    if not seconds:
        return "+0 s"
    return duration(seconds, 2) if seconds < 0 else "+" + duration(seconds, 2)


def clock(at: float | None, date: bool = False) -> str:
    """The wall clock of a moment, UTC, to the millisecond."""
    moment = _moment(at)
    if moment is None:
        return "unreadable"
    text = moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    return text if date else text[11:]


def day(at: float | None) -> str:
    """The date of a moment, UTC."""
    moment = _moment(at)
    return "an unreadable date" if moment is None else moment.date().isoformat()


def iso(at: float | None) -> str:
    """ISO 8601 with the zone; empty when the number is no date."""
    moment = _moment(at)
    return "" if moment is None else moment.isoformat(timespec="milliseconds")


def _moment(at: float | None) -> datetime.datetime | None:
    if at is None:
        return None
    try:
        rounded = round(at, 3)
        return datetime.datetime.fromtimestamp(rounded, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None


def listing(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return ", ".join(words[:-1]) + " and " + words[-1]


def count(number: int, noun: str) -> str:
    """`1 receipt`, `2 receipts`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

"""Where things stand on the long axis, so that nothing overlaps; numbers only, no drawing.

Every gap between neighbouring points has a floor and grows with the logarithm of its time, so a
long wait takes little room. Labels then ask for the distance they need, and the gaps between their
anchors are widened until each demand is met: a label is never moved, cut or dropped.
"""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .life import Point

FLOOR = 44.0
GROWTH = 22.0  # more for each tenfold of the shortest time that shows
SHORTEST = 0.03
WIDEST = 150.0
SOFT = 42.0  # beside a point that has a place but no time
LAST = 24.0  # after the last point at least
SHORTENED = 5.0  # seconds: from here on a gap carries the mark of a shortened one
END = 1 << 30  # as a point: the right edge
AIR = 9.0  # between two labels of one row

NARROW = set("ijl'|.,:;!ftI()[]/ \\-`")
ARROWS = set("\N{RIGHTWARDS ARROW}\N{LEFTWARDS ARROW}\N{MINUS SIGN}")
WIDE = set("mwMW@%&")
SAFETY = 1.06  # fonts differ: better a little too much room than an overlap


class Label(NamedTuple):
    """Text at a point. side: where the text lies, `start` is to the right of the anchor.

    row: labels of one row must not touch. css: its class. to: for a label centred between two
    points, the second one.
    """

    row: str
    anchor: int
    text: str
    css: str
    y: float
    side: str = "middle"
    dx: float = 0.0
    size: float = 12.0
    bold: bool = False
    mono: bool = False
    to: int | None = None

    @property
    def width(self) -> float:
        return text_width(self.text, self.size, self.bold, self.mono)

    @property
    def left(self) -> float:
        """From the anchor to the text's left edge; negative to the left."""
        return self.dx - {"start": 0.0, "middle": self.width / 2, "end": self.width}[self.side]

    @property
    def right(self) -> float:
        return self.left + self.width


class Demand(NamedTuple):
    """The points `first` and `last` lie at least `distance` apart."""

    first: int
    last: int
    distance: float


@dataclass(frozen=True)
class Axis:
    """The solved axis: x of every point, and the right edge."""

    xs: tuple[float, ...]
    end: float

    def x(self, index: int) -> float:
        return self.end if index >= len(self.xs) else self.xs[index]


def text_width(text: str, size: float, bold: bool = False, mono: bool = False) -> float:
    """About how wide a text is, rather too wide than too narrow, in any of the usual fonts."""
    if mono:
        return sum(_mono(character) for character in text) * size * 0.605 * SAFETY
    return sum(_em(character) for character in text) * size * (1.07 if bold else 1.0) * SAFETY


def _mono(character: str) -> float:
    return 1.7 if unicodedata.east_asian_width(character) in "WF" else 1.0


def _em(character: str) -> float:
    if character in NARROW:
        return 0.31
    if character in WIDE:
        return 0.87
    if character.isascii():
        return 0.69 if character.isupper() else 0.555
    if ord(character) < 0x600:
        return 0.72
    return 0.6 if 0x2000 <= ord(character) < 0x2070 else 1.05


def is_plain(text: str) -> bool:
    """Whether the width of a text can be foreseen; otherwise it is drawn at a forced width."""
    return all(ord(c) < 0x530 or 0x2010 <= ord(c) < 0x2070 or c in ARROWS for c in text)


def natural_gaps(points: Sequence[Point]) -> list[float]:
    """The width of each gap before any label asks for more; the last one runs to the edge."""
    gaps = []
    for before, after in itertools.pairwise(points):
        if before.at is None or after.at is None:
            gaps.append(SOFT)
        else:
            time = max(0.0, after.at - before.at)
            gaps.append(min(WIDEST, FLOOR + GROWTH * math.log10(1 + time / SHORTEST)))
    return [*gaps, LAST]


def demands_of(labels: Iterable[Label], floor: float) -> list[Demand]:
    """What a set of labels needs. floor: how far left of the first point a label may reach."""
    rows: dict[str, list[Label]] = {}
    demands = []
    for label in labels:
        if label.to is not None:
            demands.append(Demand(label.anchor, label.to, label.width + AIR))
            continue
        rows.setdefault(label.row, []).append(label)
        demands.append(Demand(0, label.anchor, -label.left - floor))
        demands.append(Demand(label.anchor, END, label.right + 2))
    for row in rows.values():
        for one in row:
            for other in row:
                if one.anchor < other.anchor:
                    space = one.right - other.left + AIR
                    demands.append(Demand(one.anchor, other.anchor, space))
    return demands


def solve(points: Sequence[Point], demands: Iterable[Demand], left: float, target: float) -> Axis:
    """Widen gaps until every demand is met, then fill up to the target width."""
    natural = natural_gaps(points)
    gaps, edge = list(natural), len(points)
    spans = [(d.first, min(d.last, edge), d.distance) for d in demands]
    for first, last, distance in sorted(spans, key=lambda span: span[1] - span[0]):
        have = sum(gaps[first:last])
        if first < last and have < distance:
            factor = distance / have
            for index in range(first, last):
                gaps[index] *= factor
    spare = target - left - sum(gaps)
    if spare > 0:
        shares = natural[:-1] or natural
        for index, share in enumerate(shares):
            gaps[index] += spare * share / sum(shares)
    xs, x = [], left
    for gap in gaps:
        xs.append(x)
        x += gap
    return Axis(tuple(xs), x)

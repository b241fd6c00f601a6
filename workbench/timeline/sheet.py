"""What the lanes of the wide picture put down, before and after its axis is solved."""

from __future__ import annotations

from collections.abc import Callable

from . import svg
from .layout import Axis, Demand, Label, demands_of, solve, text_width
from .life import Life, Point

AXIS_Y, CLOCK_Y, TOP = 36.0, 55.0, 62.0
STATUS, LANE, SERVICE = 42.0, 76.0, 94.0
BAR = 26.0
LEFT = 190.0
BACK, FRONT, OVER = 0, 1, 2  # layers

Draw = Callable[[Axis], str]


class Sheet:
    """Labels, demands and drawings of all lanes; `y` is where the next lane begins."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.labels: list[Label] = []
        self.demands: list[Demand] = []
        self.layers: tuple[list[Draw], ...] = ([], [], [])
        self.left = LEFT
        self.y = TOP
        self.middle: dict[int, float] = {}  # id of a lease or question -> y of its bar's middle

    def label(
        self,
        row: str,
        anchor: Point | int,
        text: str,
        css: str,
        y: float,
        side: str = "middle",
        dx: float = 0.0,
        to: Point | int | None = None,
        size: float = 12.0,
    ) -> None:
        """Text at a point, or centred between two."""
        self.labels.append(
            Label(
                row,
                index_of(anchor),
                text,
                css,
                y,
                side,
                dx,
                size,
                bold=any(word in css.split() for word in ("mk", "bt", "b", "s", "x2")),
                mono="m" in css.split(),
                to=None if to is None else index_of(to),
            )
        )

    def draw(self, draw: Draw, layer: int = FRONT) -> None:
        self.layers[layer].append(draw)

    def demand(self, first: Point | int, last: Point | int, distance: float) -> None:
        self.demands.append(Demand(index_of(first), index_of(last), distance))

    def name(self, title: str, below: str, y: float) -> None:
        """A lane's name, at the left."""
        wide = max(text_width(title, 13.5, bold=True), text_width(below, 12))
        self.left = max(self.left, wide + 22)
        self.draw(lambda axis: svg.text(0, y, title, "lane"))
        if below:
            self.draw(lambda axis: svg.text(0, y + 17, below, "sub"))

    def rule(self) -> None:
        """The line above the next lane."""
        y = self.y
        self.draw(lambda axis: svg.line(0, y, axis.end, y, "rule"), BACK)

    def solve(self, target: float) -> Axis:
        demands = [*self.demands, *demands_of(self.labels, 4)]
        return solve(self.life.points, demands, self.left, target)

    def render(self, axis: Axis) -> str:
        """Everything, from the back to the front; labels lie on top."""
        parts = [draw(axis) for layer in self.layers for draw in layer]
        parts += [svg.label(label, anchor_x(label, axis)) for label in self.labels]
        return "\n".join(part for part in parts if part)


def index_of(point: Point | int) -> int:
    return point if isinstance(point, int) else point.index


def anchor_x(label: Label, axis: Axis) -> float:
    """The x a solved label hangs at."""
    x = axis.x(label.anchor)
    return x if label.to is None else (x + axis.x(label.to)) / 2

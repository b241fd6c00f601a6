"""The wide picture: lanes from top to bottom, time from left to right."""

from __future__ import annotations

from typing import NamedTuple

from .lanes import put_approval, put_axis, put_lease, put_reconcile, put_status
from .life import Life
from .service import put_boundary, put_service
from .sheet import Sheet

TARGET = 1328.0


class Figure(NamedTuple):
    """A drawn picture: its natural size and its elements."""

    width: float
    height: float
    body: str


def figure(life: Life, target: float = TARGET) -> Figure:
    """Draw a life, at least `target` wide and wider where its labels need it."""
    sheet = sheet_of(life)
    axis = sheet.solve(target)
    return Figure(axis.end, sheet.y + 4, sheet.render(axis))


def sheet_of(life: Life) -> Sheet:
    """All lanes put down, from top to bottom, before the axis is solved."""
    sheet = Sheet(life)
    put_axis(sheet)
    put_status(sheet)
    if life.record.approvals or life.window:
        put_approval(sheet, life.window)
    for lease in life.leases:
        put_lease(sheet, lease)
    if life.questions or life.status == "reconciling":
        asked = sum(event.kind == "reconcile_started" for event in life.record.events)
        put_reconcile(sheet, life.questions, asked)
    put_service(sheet)
    put_boundary(sheet)
    return sheet

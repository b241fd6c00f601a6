"""The lanes above the wall: clock, status, approval, generations, reconcile.

Solid is what the local database records; dashed or hatched is what follows from it.
"""

from __future__ import annotations

import itertools

from . import svg
from .layout import END, SHORTENED, Axis, text_width
from .life import Lease, Life, Mark, Point, Question, Span, Window
from .sheet import AXIS_Y, BACK, BAR, CLOCK_Y, LANE, OVER, STATUS, Sheet
from .wording import brief, clock, duration, offset

CHIPS = {  # how a status is coloured
    "queued": "q",
    "running": "r",
    "waiting_approval": "w",
    "succeeded": "ok",
    "effect_confirmed": "ok",
    "cancelled": "q",
}
OPEN_END = 14.0  # what runs on stops this far from the right edge


def put_axis(sheet: Sheet) -> None:
    """Time between events above the line, the clock below it."""
    points = sheet.life.points
    sheet.draw(
        lambda a: (
            svg.text(0, AXIS_Y - 9, "time between events", "ax")
            + svg.text(0, CLOCK_Y, "clock, UTC", "ax")
            + svg.line(a.x(0), AXIS_Y, a.end - OPEN_END, AXIS_Y, "axis")
        )
    )
    timed = [point for point in points if point.at is not None]
    for before, after in itertools.pairwise(timed):
        _gap(sheet, before, after)
    for point in points:
        _tick(sheet, point)
    sheet.draw(lambda a: _clocks(sheet.life, a), OVER)


def _gap(sheet: Sheet, before: Point, after: Point) -> None:
    seconds = (after.at or 0.0) - (before.at or 0.0)
    said = duration(seconds)
    if seconds < 0:
        sheet.label(
            "gap",
            before,
            f"clock set back {duration(-seconds)}",
            "ax b bad",
            AXIS_Y - 9,
            to=after,
            size=11,
        )
    elif seconds >= SHORTENED:
        sheet.label("gap", before, said, "ax b", AXIS_Y - 9, to=after, size=11)
        sheet.draw(lambda a: _break((a.x(before.index) + a.x(after.index)) / 2))
    else:
        sheet.label("gap", before, said, "ax", AXIS_Y - 9, to=after, size=11)


def _break(x: float) -> str:
    slashes = f"M{svg.number(x - 6)},{svg.number(AXIS_Y + 5)} l5,-10 m2,10 l5,-10"
    return svg.rect(x - 9, AXIS_Y - 2, 18, 4, "bg") + svg.path(slashes, "brk")


def _tick(sheet: Sheet, point: Point) -> None:
    if point.kind in ("silent", "saved"):
        return
    low, index, dash = AXIS_Y + 5, point.index, "" if point.recorded else " dash"
    sheet.draw(lambda a: svg.line(a.x(index), low, a.x(index), sheet.y - 26, f"guide{dash}"), BACK)
    if point.kind == "skipped":
        said = f"{point.hidden:,} events not drawn"
        sheet.label("skip", point, said, "nt bad", CLOCK_Y)
        sheet.draw(lambda a: _break(a.x(index)))
    else:
        sheet.draw(lambda a: svg.line(a.x(index), AXIS_Y - 5, a.x(index), low, f"tick{dash}"))


def _clocks(life: Life, axis: Axis) -> str:
    """The clock at as many points as there is room for, the important ones first."""
    timed = [p for p in life.points if p.at is not None]
    if not timed:
        return ""
    first, last = timed[0], timed[-1]
    key = [first, last, *(s.start for s in life.spans[::-1]), *timed]
    taken = [
        (axis.x(p.index) - 75, axis.x(p.index) + 75) for p in life.points if p.kind == "skipped"
    ]
    days = clock(first.at, date=True)[:10] != clock(last.at, date=True)[:10]
    out, seen = [], set()
    for point in key:
        if point.index in seen or point.at is None:
            continue
        said = clock(point.at, date=days and point in (first, last))
        said = "now" if point.kind == "now" else said
        wide = text_width(said, 11)
        left = axis.x(point.index) - wide / 2
        left = min(max(left, axis.x(0)), axis.end - OPEN_END - wide)
        if any(left < high + 12 and left + wide > low - 12 for low, high in taken):
            continue
        seen.add(point.index)
        taken.append((left, left + wide))
        out.append(svg.text(left, CLOCK_Y, said, "clk"))
    return "".join(out)


def put_status(sheet: Sheet) -> None:
    y = sheet.y
    sheet.name("Job status", "", y + 21)
    for span in sheet.life.spans:
        _chip(sheet, span, y + 6)
    sheet.y += STATUS


def _chip(sheet: Sheet, span: Span, y: float) -> None:
    css = CHIPS.get(span.status, "k")
    end = span.end.index if span.end else END
    cut = 1.0 if span.end else OPEN_END

    def draw(axis: Axis) -> str:
        left, right = axis.x(span.start.index) + 1, axis.x(end) - cut
        chip = svg.rect(left, y, right - left, 22, f"s {css}", 3)
        if span.stale is None:
            return chip
        return chip + svg.rect(
            axis.x(span.stale.index), y, right - axis.x(span.stale.index), 22, "dead2", 3
        )

    sheet.draw(draw)
    if span.stale is not None:
        said = "still says running"
        sheet.label("chip", span.stale, said, "st x2", y + 15, to=end, size=11)
    until = _before_line(sheet, span)
    shift = -OPEN_END / 2 if until == END else 0.0
    sheet.label(
        "chip", span.start, brief(span.status, 24), f"st {css}", y + 15, dx=shift, to=until, size=11
    )
    if not span.end:
        wide = text_width(span.status, 11, bold=True) + OPEN_END + 16
        sheet.demand(span.start, END, wide)


def _before_line(sheet: Sheet, span: Span) -> Point | int:
    """A chip's own words end where it goes stale, or where a boundary line would cross them."""
    last = span.stale or span.end
    for line in (sheet.life.boundary, sheet.life.settled):
        inside = line is not None and line.index > span.start.index
        if line is not None and inside and (last is None or line.index < last.index):
            last = line
    return END if last is None else last


def put_approval(sheet: Sheet, window: Window | None) -> None:
    sheet.rule()
    y, top = sheet.y, sheet.y + 27
    if window is None:
        sheet.name("Approval", "not asked for yet", y + 36)
        sheet.y += LANE
        return
    first = window.start.at
    long = None if window.expires_at is None or first is None else window.expires_at - first
    sheet.name("Approval", f"open for {duration(long)}", y + 36)
    stops = [p for p in (window.closed, window.lapse) if p is not None and not window.used]
    end = min((p.index for p in stops), default=END)
    cut = 0.0 if stops else OPEN_END

    def draw(axis: Axis) -> str:
        left, right = axis.x(window.start.index), axis.x(end) - cut
        out = svg.rect(left, top, right - left, BAR, "apw", 4)
        if window.decided == "approved" and window.decision:
            begin = axis.x(window.decision.index)
            until = axis.x(window.used.index) if window.used else right
            out += svg.rect(begin, top, until - begin, BAR, "apk")
        out += svg.circle(left, top + 13, 6, "am")
        if window.decision:
            filled = "f" if window.decided == "approved" else "no"
            out += svg.circle(axis.x(window.decision.index), top + 13, 6, f"am {filled}")
        return out

    sheet.draw(draw)
    _approval_words(sheet, window, end, y)
    sheet.y += LANE + 2


def _approval_words(sheet: Sheet, window: Window, end: int, y: float) -> None:
    above, inside = y + 19, y + 44
    sheet.label("asked", window.start, "requested", "mk", above)
    who, expires = brief(window.actor, 20), offset(window.expires_at, sheet.life.start)
    if window.decision:
        css = "mk" if window.decided == "approved" else "mk bad"
        sheet.label("asked", window.decision, f"{window.decided} by {who}", css, above)
        sheet.label(
            "win",
            window.start,
            "a person reads the draft",
            "in",
            inside,
            to=window.decision,
            size=11.5,
        )
    else:
        sheet.label("win", window.start, "waits for a person", "in", inside, to=end, size=11.5)
    if window.decided == "approved" and window.decision:
        until = window.used.index if window.used else end
        sheet.label(
            "win", window.decision, "permission to send", "in s", inside, to=until, size=11.5
        )
    if window.lapse and window.lapse.index == end:
        sheet.label("asked", window.lapse, "time is up", "mk bad", above)
    elif window.used:
        _used(sheet, window.used, f"expires {expires}", inside)
    elif end == END:
        sheet.label("asked", END, f"expires {expires}", "nt", above, "end", -OPEN_END)


def _used(sheet: Sheet, used: Point, expires: str, y: float) -> None:
    """After the dispatch the window has done its work; its end no longer matters."""
    said = "used: expiry cannot undo a save"
    sheet.label("over", used, said, "in", y, "start", 12, size=11.5)
    sheet.label("over", END, expires, "in", y, "end", -OPEN_END - 10, size=11.5)
    settled = sheet.life.settled
    if settled is not None and settled.index > used.index:
        sheet.demand(used, settled, text_width(said, 11.5) + 22)
        sheet.demand(settled, END, text_width(expires, 11.5) + OPEN_END + 20)


def put_lease(sheet: Sheet, lease: Lease) -> None:
    """One generation: its lease as a bar, what it committed, how it ended."""
    sheet.rule()
    y, middle = sheet.y, sheet.y + 38
    sheet.middle[id(lease)] = middle
    long = "" if lease.seconds is None else f" · lease {duration(lease.seconds)}"
    sheet.name(f"Generation {lease.generation}", brief(lease.owner, 22) + long, y + 34)
    sheet.draw(lambda axis: _bar(lease, axis, middle))
    sheet.label(f"bar{y}", lease.start, "claim", "nt", middle + 4, "end", -8)
    for mark in lease.marks:
        if mark.kind == "renewed":
            sheet.label(f"above{y}", mark.point, mark.label, "nt", y + 17)
        else:
            _mark_name(sheet, mark, f"above{y}", y + 17)
    _ending(sheet, lease, y)
    sheet.draw(lambda axis: _marks(sheet.life, lease, axis, middle), OVER)
    sheet.y += LANE


def _mark_name(sheet: Sheet, mark: Mark, row: str, y: float) -> None:
    """A mark's name, beside the boundary's line where it stands on one."""
    side, dx = "middle", 0.0
    if mark.point is sheet.life.boundary:
        side, dx = "end", -7.0
    elif mark.point is sheet.life.settled:
        side, dx = "start", 7.0
    sheet.label(row, mark.point, brief(mark.label, 20), "mk hu", y, side, dx)


def _bar(lease: Lease, axis: Axis, middle: float) -> str:
    top, left = middle - 13, axis.x(lease.start.index)
    if lease.silent and lease.expiry:
        gone, right = axis.x(lease.silent.index), axis.x(lease.expiry.index)
        d = (
            f"M{svg.number(gone)},{svg.number(top)} H{svg.number(right - 4)} a4,4 0 0 1 4,4 v18"
            f" a4,4 0 0 1 -4,4 H{svg.number(gone)} Z"
        )
        bar = svg.rect(left, top, right - left, BAR, "lease", 4) + svg.path(d, "dead")
        bar += svg.line(right, top - 3, right, top + BAR + 3, "tick")
        if lease.idle_until and lease.idle_until.index > lease.expiry.index:
            until = axis.x(lease.idle_until.index)
            bar += svg.line(right + 6, middle, until - 6, middle, "gap")
        return bar
    stops = lease.end.index if lease.end else len(axis.xs) - 1
    right = axis.x(stops)
    bar = svg.rect(left, top, right - left, BAR, "lease", 4)
    if lease.ending in ("", "parked"):
        until = axis.x(lease.expiry.index) if lease.expiry else axis.end - OPEN_END
        bar = svg.rect(left, top, until - left, BAR, "runs", 4) + bar
    return bar


def _marks(life: Life, lease: Lease, axis: Axis, middle: float) -> str:
    out = ""
    for mark in lease.marks:
        x = axis.x(mark.point.index)
        said = f"{mark.label}: {offset(mark.point.at, life.start)}"
        if mark.kind == "step":
            out += svg.titled(f"checkpoint {brief(said, 60)}", svg.check(x, middle))
        elif mark.kind == "dispatch":
            out += svg.titled(f"dispatch_started {said}", svg.diamond(x, middle))
        else:
            out += svg.titled(said, svg.line(x, middle - 9, x, middle + 9, "renew"))
    if lease.silent:
        said = "inferred: a process that is gone writes nothing"
        out += svg.titled(said, svg.cross(axis.x(lease.silent.index), middle))
    elif lease.end and lease.ending in ("failed", "cancelled", "parked"):
        out += svg.stop(axis.x(lease.end.index), middle, "sb" if lease.ending == "failed" else "sq")
    elif lease.end and lease.ending == "retry":
        out += svg.retry(axis.x(lease.end.index), middle)
    return out


def _ending(sheet: Sheet, lease: Lease, y: float) -> None:
    """How a generation ended, in words beside its bar."""
    above, beside, below = f"above{y}", f"bar{y}", f"below{y}"
    if lease.silent and lease.expiry:
        sheet.label(above, lease.silent, "crashed or stalled", "mk bad hu", y + 17, "start", -6)
        sheet.label(below, lease.expiry, "lease runs out", "nt hu", y + 65)
        idle = lease.idle_until
        if idle and idle.index > lease.expiry.index:
            sheet.label(above, lease.expiry, "nobody holds it", "nt bad hu", y + 32, to=idle)
        return
    words = {
        "asked": "lease given back; the wait needs no worker",
        "retry": f"try again later: {brief(lease.reason, 40)}",
        "failed": brief(lease.reason, 48),
        "cancelled": "cancelled: its next write is refused",
        "overtaken": "taken over",
    }
    if lease.ending in words and lease.end:
        css = "nt bad" if lease.ending in ("failed", "overtaken") else "nt"
        sheet.label(beside, lease.end, words[lease.ending], css + " hu", y + 42, "start", 12)
    elif lease.ending == "parked" and lease.end:
        sheet.label(above, lease.end, "parked", "mk bad hu", y + 17)
        sheet.label(below, lease.end, brief(lease.reason, 52), "nt bad hu", y + 65, "start", -6)
        if lease.expiry:
            sheet.label(
                f"{below}2",
                lease.expiry,
                "reconcile waits for the lease",
                "nt hu",
                y + 17,
                "start",
                -40,
            )
    elif not lease.ending:
        until = offset(lease.until, sheet.life.start)
        sheet.label(beside, END, f"lease until {until}", "nt hu", y + 65, "end", -OPEN_END)


def put_reconcile(sheet: Sheet, questions: list[Question], asked: int) -> None:
    sheet.rule()
    y, middle = sheet.y, sheet.y + 36
    times = {0: "", 1: " · once"}.get(asked, f" · {asked:,} times")
    sheet.name("Reconcile", f"reads, never sends{times}", y + 32)
    for question in questions:
        sheet.middle[id(question)] = middle
        _ask(sheet, question, middle)
    sheet.y += LANE


def _ask(sheet: Sheet, question: Question, middle: float) -> None:
    end = question.end.index if question.end else END
    sheet.demand(question.start, end, 66)

    def draw(axis: Axis) -> str:
        left, right = axis.x(question.start.index), axis.x(end)
        if question.end is None:
            return svg.rect(left, middle - 13, min(60, right - left - OPEN_END), BAR, "runs", 4)
        bar = svg.rect(left, middle - 13, right - left, BAR, "lease", 4)
        if question.outcome == "confirmed":
            return bar + svg.check(right, middle)
        return bar + svg.question(right, middle)

    sheet.draw(draw, OVER)
    if question.end and question.outcome == "confirmed":
        sheet.label("rec", question.end, "publish checkpoint", "mk", middle + 4, "start", 12)
    elif question.end:
        sheet.label("rec", question.end, "inconclusive", "mk bad hu", middle - 19)
    else:
        sheet.label("rec", question.start, "no answer recorded", "nt bad hu", middle - 19, "start")

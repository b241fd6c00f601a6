"""Below the wall: the report service, the calls to it, and the span of the unknown outcome."""

from __future__ import annotations

from . import svg
from .infer import call_begins
from .lanes import OPEN_END
from .layout import END, Axis
from .life import Lease, Point, Question, Saved
from .sheet import BACK, OVER, SERVICE, TOP, Draw, Sheet
from .verdict import listed_senders, unknown_words

ANSWERS = (  # the start of a reconcile's reason, and what is written beside its arrow
    ("no receipt", "no receipt seen"),
    ("the publisher", "it could not be read"),
    ("conflict", "another report"),
)


def put_service(sheet: Sheet) -> None:
    life, wall = sheet.life, sheet.y + 2
    line = wall + 50
    sheet.draw(
        lambda a: (
            svg.line(0, wall, a.end, wall, "wall")
            + svg.text(0, wall + 15, "separate database, no shared transaction", "wallt")
        )
    )
    state = "publisher.sqlite" + (f" {life.record.service}" if life.record.service else "")
    sheet.name("Report service", state, wall + 44)
    if life.saved is not None:
        _receipt(sheet, life.saved, line)
    else:
        _nothing(sheet, line)
    _calls(sheet, life.saved, line)
    for number, question in enumerate(life.questions):
        _question(sheet, question, line, first=number == 0)
    sheet.y = wall + SERVICE + 6


def _receipt(sheet: Sheet, saved: Saved, line: float) -> None:
    x = saved.point
    stored = saved.where == "service"
    good = saved.how not in ("foreign", "stray") and saved.where != "gone"

    def draw(axis: Axis) -> str:
        left, right = axis.x(x.index), axis.end - OPEN_END
        life = ""
        if stored:
            known = axis.x(saved.known.index) if saved.known else right
            tone = "" if good else " bad"
            life = svg.line(left + 8, line, known, line, f"life dash{tone}")
            life += svg.line(known, line, right, line, f"life{tone}")
        css = "rc" if stored and good else "rcb" if stored else "rcd"
        return life + svg.titled(f"receipt {saved.name}", svg.receipt(left, line, css))

    sheet.draw(draw, OVER)
    words = {
        "fresh": "receipt saved, once",
        "earlier": "receipt saved, once" + listed_senders(saved),
        "seen": "receipt saved, once" + listed_senders(saved),
        "older": "receipt there before this job called",
        "stray": "a receipt that this history cannot have made",
        "foreign": "another report under this job's key",
    }[saved.how]
    if saved.where == "gone":
        words = "recorded here, but not at the service"
    elif saved.where == "recorded":
        words = "recorded here; the service cannot be read"
    css = "mk ok hu" if good and stored else "mk bad hu"
    sheet.label("doc", x, words, css, line + 27, "start", -8)
    sheet.label("doc2", x, saved.name, "nt m hu", line + 42, "start", -8, size=11)
    settled = sheet.life.settled
    if settled is not None and settled.index > x.index:
        sheet.demand(x, settled, sheet.labels[-2].right + 6)


def _nothing(sheet: Sheet, line: float) -> None:
    life = sheet.life
    if life.record.service:
        words, css = f"{life.record.service}: what it holds is not known", "nt bad hu"
    elif life.boundary is None:
        words, css = "no receipt" + ("" if life.doubts else ": nothing was sent"), "nt hu"
    else:
        words, css = "no receipt seen, which proves nothing", "nt bad hu"
    anchor = life.boundary or life.points[0]
    sheet.label("doc", anchor, words, css, line + 27, "start", 10 if life.boundary else 0)
    sheet.draw(
        lambda a: svg.line(a.x(anchor.index) + 4, line, a.end - OPEN_END, line, "void"), BACK
    )


def _calls(sheet: Sheet, saved: Saved | None, line: float) -> None:
    life = sheet.life
    if saved is None:
        if life.record.approvals:
            for lease in [x for x in life.leases if x.mark("dispatch")]:
                _maybe(sheet, lease, line)
        return
    if saved.how in ("fresh", "earlier", "seen"):
        _sent(sheet, saved, line)
    publisher = next((x for x in life.leases if x.ending == "published"), None)
    if publisher is not None and publisher.end is not None:
        said = {"fresh": ("", "receipt"), "earlier": ("sends again", "same receipt")}
        words = said.get(saved.how, ("asks", "receipt"))
        if saved.how == "fresh":
            _reply(sheet, saved, publisher, publisher.end, line)
        else:
            _again(sheet, publisher, publisher.end, line, words)
    elif life.settled is not None and not life.questions:
        _looked_up(sheet, life.settled, line)


def _sent(sheet: Sheet, saved: Saved, line: float) -> None:
    """The call that saved the report, and what became of its answer."""
    lease = saved.senders[0]
    begin, low = call_begins(sheet.life, lease), sheet.middle.get(id(lease))
    if low is None:
        return
    sure = sheet.life.record.approvals or saved.how == "fresh"
    css, head = ("msg", "ah") if sure else ("guess", "ah")
    sheet.draw(
        lambda a: svg.arrow(
            a.x(begin.index) + 2, low + 11, a.x(saved.point.index) - 2, line - 13, css, head
        )
    )
    if len(saved.senders) > 1:
        _others(sheet, saved.senders[1:], line)
        return
    lost = lease.silent if lease.ending == "expired" else lease.end
    if saved.how != "fresh" and lost is not None and lost.index > saved.point.index:
        sheet.draw(
            lambda a: svg.line(
                a.x(saved.point.index) + 3, line - 12, a.x(lost.index), low + 17, "lost"
            )
        )
        said = "reply lost" if lease.ending == "expired" else "answer not recorded"
        lower = lease.ending in ("expired", "parked")
        sheet.label("lost", lost, said, "nt bad hu", low + (56 if lower else 31), "start", 6)


def _others(sheet: Sheet, leases: list[Lease], line: float) -> None:
    """Where several generations can have made the call, each gets its arrow, all inferred."""
    for lease in leases:
        begin, low = call_begins(sheet.life, lease), sheet.middle.get(id(lease))
        if low is not None:
            sheet.draw(_guess(begin.index, low, line))


def _guess(index: int, low: float, line: float) -> Draw:
    return lambda a: svg.arrow(a.x(index) + 2, low + 13, a.x(index) + 30, line - 3, "guess", "ah")


def _reply(sheet: Sheet, saved: Saved, lease: Lease, end: Point, line: float) -> None:
    low = sheet.middle[id(lease)]
    sheet.draw(
        lambda a: svg.arrow(
            a.x(saved.point.index) + 3, line - 12, a.x(end.index) - 2, low + 12, "ask", "ah2"
        )
    )


def _again(sheet: Sheet, lease: Lease, end: Point, line: float, words: tuple[str, str]) -> None:
    begin, low = call_begins(sheet.life, lease), sheet.middle[id(lease)]
    sheet.demand(begin, end, 84)

    def draw(axis: Axis) -> str:
        left, right = axis.x(begin.index), axis.x(end.index)
        step = (right - left) / 4
        down = svg.arrow(left + 2, low + 13, left + step, line - 4, "ask", "ah2")
        return down + svg.arrow(right - step, line - 4, right - 2, low + 12, "ask", "ah2")

    sheet.draw(draw)
    beside = -6 if begin is sheet.life.boundary else 6
    sheet.label("talk", begin, words[0], "nt ok2 hu", line - 20, "end", beside)
    sheet.label("talk", end, words[1], "nt ok2 hu", line - 20, "start", 6)


def _maybe(sheet: Sheet, lease: Lease, line: float) -> None:
    """A dispatch of which nothing is known: the arrow stops short of the service."""
    begin, low = call_begins(sheet.life, lease), sheet.middle[id(lease)]
    sheet.draw(
        lambda a: svg.arrow(
            a.x(begin.index) + 2, low + 11, a.x(begin.index) + 26, line - 22, "guess", "ah"
        )
    )
    sheet.label("talk", begin, "sent?", "nt bad hu", line - 20, "start", 34)


def _looked_up(sheet: Sheet, point: Point, line: float) -> None:
    sheet.draw(
        lambda a: svg.arrow(a.x(point.index), line - 4, a.x(point.index), line - 47, "ask", "ah2")
    )
    sheet.label("talk", point, "looked up: found", "nt ok2 hu", line - 20, "start", 8)


def _question(sheet: Sheet, question: Question, line: float, first: bool) -> None:
    middle, end = sheet.middle[id(question)], question.end
    begin = question.start

    def draw(axis: Axis) -> str:
        left = axis.x(begin.index)
        wide = (axis.x(end.index) if end else left + 60) - left
        out = svg.arrow(left + 2, middle + 13, left + wide * 0.28, line - 4, "ask", "ah2")
        if end is None:
            return out
        found = question.outcome == "confirmed"
        css, head = ("ask", "ah2") if found else ("nay", "ah3")
        up = svg.arrow(left + wide * 0.72, line - 4, left + wide - 2, middle + 14, css, head)
        return out + up

    sheet.draw(draw)
    if first:
        sheet.label("talk", begin, "asks", "nt ok2 hu", line - 20, "end", 2)
    if end is None:
        return
    if question.outcome == "confirmed":
        said, css = "found: nothing to send", "nt ok2 hu"
    else:
        said = next((s for start, s in ANSWERS if question.reason.startswith(start)), "no answer")
        css = "nt bad hu"
    sheet.label("talk", end, said, css, line - 20, "start", 6)


def put_boundary(sheet: Sheet) -> None:
    """The line from which on an effect is possible, and the span in which it is unknown."""
    life, base = sheet.life, sheet.y + 16
    approvals = life.record.approvals
    sheet.name("Dispatch boundary" if approvals else "Publish boundary", "", base)
    sheet.y += 24
    bottom, boundary, settled = sheet.y, life.boundary, life.settled
    if boundary is None:
        never = "not reached" + ("" if life.doubts else ": nothing can have been sent")
        sheet.label("foot", life.points[0], never, "bt", base, "start", size=12.5)
        return
    end = settled.index if settled else END

    def shade(axis: Axis) -> str:
        left, right = axis.x(boundary.index), axis.x(end)
        return svg.rect(left, TOP, right - left, bottom - TOP - 4, "unk")

    def lines(axis: Axis) -> str:
        x = axis.x(boundary.index)
        out = svg.line(x, TOP, x, bottom, "bound")
        return out + (svg.line(axis.x(end), TOP, axis.x(end), bottom, "bound2") if settled else "")

    sheet.draw(shade, BACK)
    sheet.layers[BACK].insert(0, sheet.layers[BACK].pop())
    sheet.draw(lines)
    before = "cancel still stops the report" if approvals else "nothing can have been sent"
    sheet.label("foot", boundary, f"← {before}", "bt", base, "end", -10, size=12.5)
    sheet.label("unk", boundary, unknown_words(life), "bt u", base, to=end, size=12.5)
    if settled:
        sheet.label("foot", settled, "known →", "bt", base, "start", 10, size=12.5)

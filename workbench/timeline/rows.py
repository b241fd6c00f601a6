"""The picture turned upright: one row for each point, for narrow screens and terminals.

A row says what happened at its point and, for each rail, what holds from there to the next row.
"""

from __future__ import annotations

from typing import NamedTuple

from .life import Lease, Life, Point, Saved, reason_of
from .verdict import listed_senders
from .wording import brief, count, duration, offset, visible

REASON = 160


class Row(NamedTuple):
    """mark and lane: which sign stands on which rail. gap: time to the next row that has one.

    Rails: status (its name), stale, approval (open, permit, used), worker (lease, dead, idle, runs,
    ask), service (maybe, maybe bad, held), unknown. `edge`: boundary, settled or empty, at this
    row.
    """

    point: Point
    time: str
    gap: str
    long: bool
    mark: str
    lane: str
    title: str
    notes: tuple[str, ...]
    changed: bool
    status: str
    stale: bool
    approval: str
    worker: str
    service: str
    unknown: bool
    edge: str
    inferred: bool


def rows(life: Life) -> list[Row]:
    """All rows, in order."""
    return [_row(life, point) for point in life.points]


def _row(life: Life, point: Point) -> Row:
    mark, lane, title, notes = _said(life, point)
    index = point.index
    span = next((s for s in life.spans[::-1] if s.start.index <= index), None)
    following = next((p for p in life.points[index + 1 :] if p.at is not None), None)
    seconds = None
    if following is not None and following.at is not None and point.at is not None:
        seconds = following.at - point.at
    edge = "boundary" if point is life.boundary else "settled" if point is life.settled else ""
    until = life.settled.index if life.settled else len(life.points)
    return Row(
        point,
        "" if point.at is None else offset(point.at, life.start),
        "" if seconds is None else duration(seconds),
        seconds is not None and (seconds >= 1 or seconds < 0),
        mark,
        lane,
        title,
        tuple(note for note in (*notes, *_edge(life, point)) if note),
        span is not None and span.start is point,
        span.status if span else "",
        bool(span and span.stale and span.stale.index <= index),
        _approval(life, index),
        _worker(life, index),
        _service(life.saved, index),
        life.boundary is not None and life.boundary.index <= index < until,
        edge,
        not point.recorded,
    )


# What holds from one row to the next.


def _approval(life: Life, index: int) -> str:
    window = life.window
    if window is None or index < window.start.index:
        return ""
    if window.used:
        if index >= window.used.index:
            return "used"
    elif any(end and end.index <= index for end in (window.closed, window.lapse)):
        return ""
    granted = window.decision if window.decided == "approved" else None
    return "permit" if granted is not None and granted.index <= index else "open"


def _worker(life: Life, index: int) -> str:
    for question in life.questions:
        end = question.end.index if question.end else question.start.index + 1
        if question.start.index <= index < end:
            return "ask"
    found = ""
    for lease in life.leases:
        found = _of_lease(life, lease, index) or found
    return found


def _of_lease(life: Life, lease: Lease, index: int) -> str:
    if index < lease.start.index:
        return ""
    expiry = lease.expiry.index if lease.expiry else len(life.points)
    if lease.silent:
        if index >= expiry:
            idle = lease.idle_until
            return "idle" if idle and index < idle.index else ""
        return "dead" if index >= lease.silent.index else "lease"
    if lease.ending == "parked" and lease.end:
        return "lease" if index < lease.end.index else "runs" if index < expiry else ""
    if not lease.ending:
        return "lease" if index < len(life.points) - 1 else "runs"
    return "lease" if lease.end and index < lease.end.index else ""


def _service(saved: Saved | None, index: int) -> str:
    if saved is None or index < saved.point.index or saved.where != "service":
        return ""
    if saved.how in ("foreign", "stray"):
        return "maybe bad"
    return "held" if saved.known and index >= saved.known.index else "maybe"


def _edge(life: Life, point: Point) -> list[str]:
    """What is to be said of the service at this row."""
    said = []
    saved = life.saved
    if saved is not None and point is saved.point and point.kind != "saved":
        what = {
            "older": "the service already holds",
            "foreign": "another report stands under this job's key:",
            "stray": "a receipt stands that this history cannot have made:",
        }.get(saved.how, "the service holds")
        said.append(f"{what} {saved.name}")
    if point is life.boundary:
        said.append("from here on a report can have been sent")
    if point is life.points[-1] and saved is None:
        if life.record.service:
            said.append(f"the report service {life.record.service}")
        elif life.boundary:
            said.append("no receipt is seen, which proves nothing")
        else:
            said.append("no receipt" + ("" if life.doubts else ": nothing was sent"))
    return said


# What happened at a point: mark, rail, title, notes.

Said = tuple[str, str, str, list[str]]


def _said(life: Life, point: Point) -> Said:
    if point.recorded:
        event = point.events[0]
        teller = globals().get(f"_on_{event.kind}")
        if "effect_confirmed" in point.kinds:
            teller = _on_effect_confirmed
        if teller is None:
            return "dot", "status", visible(event.kind, 40), ["a kind of event not known here"]
        said: Said = teller(life, point)
        return said
    return _inferred(life, point)


def _inferred(life: Life, point: Point) -> Said:
    saved = life.saved
    if point.kind == "silent":
        return "cross", "worker", "Crashed or stalled", ["inferred: nothing more was recorded"]
    if point.kind == "expiry":
        return "end", "worker", "The lease runs out", []
    if point.kind == "lapse":
        permit = life.window is not None and life.window.decided
        what = "The permission runs out" if permit else "The time to decide runs out"
        return "end", "approval", what, []
    if point.kind == "saved" and saved is not None:
        notes = [f"{saved.name}{listed_senders(saved)}", "when exactly is not recorded"]
        if saved.where == "service":
            return "receipt", "service", "The report is saved, once", notes
        lost = "the service does not hold it" if saved.where == "gone" else "nothing confirms it"
        return "ghost", "service", "A receipt is recorded here", [*notes, lost]
    if point.kind == "skipped":
        return "dots", "status", f"{point.hidden:,} events not drawn", []
    return "dot", "status", "Now", []


def _on_submitted(life: Life, point: Point) -> Said:
    return "dot", "status", "Submitted", []


def _on_claimed(life: Life, point: Point) -> Said:
    event = point.events[0]
    lease = next((x for x in life.leases if x.start is point), None)
    long = "" if lease is None else f", lease {duration(lease.seconds)}"
    return (
        "bar",
        "worker",
        f"Generation {event.generation} claims the job",
        [f"{brief(event.detail, 60)}{long}"],
    )


def _on_lease_renewed(life: Life, point: Point) -> Said:
    many = len(point.events)
    return "bar", "worker", f"Lease renewed {count(many, 'time')}", []


def _on_step_committed(life: Life, point: Point) -> Said:
    step = brief(point.events[0].detail, 40)
    notes = []
    if step == "publish" and life.saved is not None:
        notes.append(
            {
                "fresh": f"receipt {life.saved.name}",
                "earlier": "sent again, and given the receipt of the earlier call",
                "older": "given a receipt from before this job's first call",
            }.get(life.saved.how, f"receipt {life.saved.name}")
        )
    return "check", "worker", f"{step} committed", notes


def _on_retry_scheduled(life: Life, point: Point) -> Said:
    event = point.events[0]
    return "retry", "worker", "Put off to another attempt", [visible(reason_of(event), REASON)]


def _by(life: Life, point: Point) -> str:
    return "worker" if any(lease.end is point for lease in life.leases) else "status"


def _looked_up(point: Point) -> list[str]:
    for event in point.events[1:]:
        if event.kind == "effect_found":
            return [f"the service was asked and holds {brief(event.detail, 40)}"]
        if event.kind == "effect_unknown":
            return [f"the service was asked in vain: {visible(event.detail, REASON)}"]
    return []


def _on_failed(life: Life, point: Point) -> Said:
    reason = visible(point.events[0].detail, REASON)
    return "stop", _by(life, point), "Failed", [reason, *_looked_up(point)]


def _on_cancelled(life: Life, point: Point) -> Said:
    worker = _by(life, point)
    notes = ["the worker's next write is refused"] if worker == "worker" else []
    return "halt", worker, "Cancelled", [*notes, *_looked_up(point)]


def _on_approval_requested(life: Life, point: Point) -> Said:
    expires = offset(life.window.expires_at if life.window else None, life.start)
    return (
        "ring",
        "approval",
        "Approval requested",
        [
            "lease given back; the wait needs no worker",
            f"expires {expires}",
        ],
    )


def _on_approved(life: Life, point: Point) -> Said:
    return "disc", "approval", f"Approved by {brief(point.events[0].detail, 40)}", []


def _on_rejected(life: Life, point: Point) -> Said:
    return "nay", "approval", f"Rejected by {brief(point.events[0].detail, 40)}", []


def _on_dispatch_started(life: Life, point: Point) -> Said:
    return "diamond", "worker", "Dispatch recorded", ["a cancel can no longer stop the report"]


def _on_reconciling(life: Life, point: Point) -> Said:
    reason = visible(point.events[0].detail, REASON)
    return "halt", _by(life, point), "Parked as reconciling", [reason]


def _on_reconcile_started(life: Life, point: Point) -> Said:
    return "bar", "worker", "Reconcile asks the service", ["it reads and never sends"]


def _on_reconcile_inconclusive(life: Life, point: Point) -> Said:
    return "question", "worker", "Inconclusive", [visible(point.events[0].detail, REASON)]


def _on_effect_confirmed(life: Life, point: Point) -> Said:
    name = brief(point.events[-1].detail, 40)
    return "check", "worker", "Found: publish committed", [f"{name}; nothing was sent"]

"""What the history and the report service say together: the receipt's place, and contradictions.

A receipt carries no time. It is put where the history allows it to have come about, with every
call that can have made it named; where none can, that is said instead.
"""

from __future__ import annotations

from .life import Lease, Life, Point, Replay, Saved
from .model import Record
from .wording import visible

MOST_POINTS = 44  # beyond this the middle is summed up, so that the page stays small
FIRST_POINTS, LAST_POINTS = 24, 16
MOST_QUESTIONS = 3
MOST_DOUBTS = 8
RECONCILING = {"reconcile_started", "reconcile_inconclusive"}
DECIDED = {  # what approvals.status must be, by how far the history got
    "": "pending",
    "approved": "approved",
    "rejected": "rejected",
}


def life_of(record: Record) -> Life:
    """The finished life of a job: replayed, its receipt placed, checked, and of bounded size."""
    life = Replay(record).play()
    life.saved = _saved(life)
    _doubt(life)
    _thin(life)
    for index, point in enumerate(life.points):
        point.index = index
    return life


def senders(life: Life) -> list[Lease]:
    """The generations that can have called the report service, as the history has it."""
    if life.record.approvals:
        return [lease for lease in life.leases if lease.mark("dispatch")]
    place = {id(point): index for index, point in enumerate(life.points)}
    if life.boundary is None:
        return []
    boundary = place[id(life.boundary)]
    return [
        lease
        for lease in life.leases
        if lease.mark("step", "verify") or place[id(lease.start)] > boundary
    ]


def call_begins(life: Life, lease: Lease) -> Point:
    """Where in a lease the call can have begun."""
    mark = lease.mark("dispatch") if life.record.approvals else lease.mark("step", "verify")
    return mark.point if mark else lease.start


def _saved(life: Life) -> Saved | None:
    record, able = life.record, senders(life)
    recorded = _recorded_name(life)
    if record.receipt is None and not recorded:
        return None
    name = record.receipt.name if record.receipt else visible(recorded, 40)
    where = "service" if record.receipt else "recorded" if record.service else "gone"
    first = life.points[0]
    if record.receipt and record.receipt.agrees is False:
        return Saved(name, "foreign", where, first, [])
    publisher = next((lease for lease in life.leases if lease.ending == "published"), None)
    if publisher is None or publisher.end is None:
        if not able:
            return Saved(name, "stray", where, first, [])
        return Saved(name, "seen", where, _insert(life, able[0]), able, life.settled)
    earlier = [lease for lease in able if lease is not publisher]
    if record.published.get("deduplicated") is not True:
        how, able = "fresh", [publisher]
        point = Point("saved")
        life.points.insert(life.points.index(publisher.end), point)
        return Saved(name, how, where, point, able, publisher.end)
    if not earlier:
        return Saved(name, "older", where, first, [], publisher.end)
    return Saved(name, "earlier", where, _insert(life, earlier[0]), earlier, publisher.end)


def _insert(life: Life, sender: Lease) -> Point:
    point = Point("saved")
    life.points.insert(life.points.index(call_begins(life, sender)) + 1, point)
    return point


def _recorded_name(life: Life) -> str:
    """The receipt that the local database names; empty without one."""
    name = life.record.published.get("receipt")
    if isinstance(name, str):
        return name
    found = [e for e in life.record.events if e.kind in ("effect_found", "effect_confirmed")]
    return found[-1].detail if found else ""


def _doubt(life: Life) -> None:
    """Add what does not fit together; a sound job has none."""
    record, doubts = life.record, life.doubts
    if not record.events:
        doubts.append("the job has no history")
    elif record.status != life.status:
        said = visible(record.status, 40)
        doubts.append(f"the job says {said}, its history {life.status or 'nothing'}")
    raising = ("claimed", "cancelled", "reconcile_started")
    raised = sum(event.kind in raising for event in record.events)
    claims = sum(event.kind == "claimed" for event in record.events)
    if record.events and record.generation != raised:
        at = "unreadable" if record.generation is None else record.generation
        doubts.append(f"the generation of the job is {at}, that of its history {raised}")
    if record.events and record.attempts != claims:
        counted = "unreadable" if record.attempts is None else record.attempts
        doubts.append(f"the claims the job counts are {counted}, those of its history {claims}")
    steps = [step for step, _ in life.steps]
    if sorted(steps) != sorted(record.steps):
        doubts.append("the checkpoints are not those whose commits the history records")
    _doubt_receipt(life)
    _doubt_approval(life)
    if len(doubts) > MOST_DOUBTS:
        doubts[MOST_DOUBTS:] = [f"and {len(doubts) - MOST_DOUBTS:,} more"]


def _doubt_receipt(life: Life) -> None:
    saved, doubts = life.saved, life.doubts
    done = life.status in ("succeeded", "effect_confirmed")
    if saved is not None and saved.how == "stray":
        doubts.append("a receipt stands where this history can have sent nothing")
    elif saved is not None and saved.how == "foreign" and done:
        doubts.append("the receipt at the service is of another report than this job's")
    elif saved is not None and saved.where == "gone":
        doubts.append("the job records a receipt that the report service does not have")
    elif saved is None and done:
        doubts.append("the job ended well without a receipt")
    if saved is not None and saved.where == "service":
        recorded = _recorded_name(life)
        if recorded and visible(recorded, 40) != saved.name:
            doubts.append("the job records another receipt than the report service holds")


def _doubt_approval(life: Life) -> None:
    row, window = life.record.approval, life.window
    if row is None or window is None:
        if (row is None) != (window is None):
            doubts = "the approvals row and the history disagree on whether a person was asked"
            life.doubts.append(doubts)
        return
    expected = DECIDED[window.decided]
    if window.used is not None:
        expected = {"succeeded": "executed", "effect_confirmed": "effect_confirmed"}.get(
            life.status, "dispatching"
        )
    if row.status != expected:
        shown = visible(row.status, 40)
        life.doubts.append(f"the approval says {shown}, the history {expected}")


def _thin(life: Life) -> None:
    """Sum up the middle of a very long life in one point that says how many events it stands for.

    The shapes keep their points; a hidden point takes the place of the one that stands for it.
    """
    points, questions = life.points, life.questions
    if len(questions) > MOST_QUESTIONS:
        first = points.index(questions[0].end or questions[0].start) + 1
        last = points.index(questions[-1].start)
        if all(set(p.kinds) <= RECONCILING for p in points[first:last]):
            _hide(life, first, last)
    if len(life.points) > MOST_POINTS:
        _hide(life, FIRST_POINTS, len(life.points) - LAST_POINTS)


def _hide(life: Life, first: int, last: int) -> None:
    hidden = life.points[first:last]
    stand_in = Point("skipped", hidden=sum(p.hidden or len(p.events) for p in hidden))
    life.points[first:last] = [stand_in]
    gone = {id(point) for point in hidden}

    def place(point: Point | None) -> Point | None:
        return stand_in if point is not None and id(point) in gone else point

    def inside(start: Point, end: Point | None) -> bool:
        return id(start) in gone and end is not None and id(end) in gone

    life.leases = [x for x in life.leases if not inside(x.start, x.expiry or x.end)]
    life.spans = [x for x in life.spans if not inside(x.start, x.end)]
    life.questions = [x for x in life.questions if not inside(x.start, x.end or x.start)]
    shapes: list[object] = [*life.leases, *life.spans, *life.questions, life.window, life.saved]
    shapes += [life, *(mark for lease in life.leases for mark in lease.marks)]
    for shape in shapes:
        for name, value in vars(shape).items() if shape else ():
            if isinstance(value, Point):
                setattr(shape, name, place(value))
    for lease in life.leases:
        lease.marks = [m for m in lease.marks if m.point is not stand_in or m.kind == "dispatch"]

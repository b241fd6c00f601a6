"""What happened to a job, as shapes in time: the history replayed, with what it implies added.

Order is that of the sequence numbers, whatever the clock did. Recorded moments come from events;
inferred ones (a lease that ran out, a worker gone silent, the moment a report arrived) are put
where the recorded ones allow them and are marked as inferred. Nothing here decides geometry.
"""

from __future__ import annotations

import bisect
import json
from dataclasses import dataclass, field

from .model import Event, Record

OPEN = ("queued", "running", "retry_wait", "waiting_approval", "reconciling")
TOGETHER = {  # kinds that one transaction writes, in this order
    ("claimed", "lease_renewed"),
    ("step_committed", "lease_renewed"),
    ("step_committed", "effect_confirmed"),
    ("failed", "effect_found"),
    ("failed", "effect_unknown"),
    ("cancelled", "effect_found"),
    ("cancelled", "effect_unknown"),
}


@dataclass(eq=False)
class Point:
    """A place on the axis. kind: event, expiry (of a lease), lapse (of an approval), silent, saved,
    now or skipped; `at` None: it has a place in the order but no known time.
    """

    kind: str
    at: float | None = None
    events: list[Event] = field(default_factory=list)
    hidden: int = 0
    index: int = -1

    @property
    def recorded(self) -> bool:
        return self.kind == "event"

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(event.kind for event in self.events)


@dataclass(eq=False)
class Mark:
    """Something recorded under a lease: a committed step, a renewal, the dispatch."""

    point: Point
    kind: str
    label: str


@dataclass(eq=False)
class Lease:
    """One generation's right to write. ending: how it stopped, empty while it is live.

    published, asked (for approval), retry, failed, cancelled, parked, expired or overtaken. `end`
    is where the worker's own record stops; `expiry` where the lease ran out, if it did.
    """

    generation: int | None
    owner: str
    start: Point
    until: float | None = None
    seconds: float | None = None
    renewals: int = 0
    marks: list[Mark] = field(default_factory=list)
    end: Point | None = None
    ending: str = ""
    reason: str = ""
    silent: Point | None = None
    expiry: Point | None = None
    idle_until: Point | None = None

    def mark(self, kind: str, label: str = "") -> Mark | None:
        found = [m for m in self.marks if m.kind == kind and label in ("", m.label)]
        return found[0] if found else None


@dataclass(eq=False)
class Span:
    """A stretch in one job status; from `stale` on nobody stands behind what it says."""

    status: str
    start: Point
    end: Point | None = None
    stale: Point | None = None


@dataclass(eq=False)
class Window:
    """The time to decide and to send. decided: approved, rejected or empty."""

    start: Point
    expires_at: float | None
    decided: str = ""
    actor: str = ""
    decision: Point | None = None
    used: Point | None = None
    closed: Point | None = None
    lapse: Point | None = None


@dataclass(eq=False)
class Question:
    """One reconcile. outcome: confirmed, inconclusive, or empty when none was recorded."""

    generation: int | None
    start: Point
    end: Point | None = None
    outcome: str = ""
    reason: str = ""


@dataclass(eq=False)
class Saved:
    """A receipt at the report service, and what the history says of how it came there.

    how: fresh (the publishing call made it), earlier (a call before it did), seen (some call did),
    older (before this job's first call), stray (no call of this history can have) or foreign
    (another report under this job's key). where: service, recorded (the service cannot be read)
    or gone (the job records it and the service has none).
    """

    name: str
    how: str
    where: str
    point: Point
    senders: list[Lease]
    known: Point | None = None


@dataclass(eq=False)
class Life:
    """The whole of it; points in order. boundary: from here on an effect is possible. settled:
    here the history says what became of it. doubts: what in the records does not fit together.
    """

    record: Record
    points: list[Point]
    leases: list[Lease]
    spans: list[Span]
    window: Window | None
    questions: list[Question]
    boundary: Point | None
    settled: Point | None
    finding: str
    steps: list[tuple[str, int | None]]
    status: str
    saved: Saved | None = None
    doubts: list[str] = field(default_factory=list)
    steps_back: list[tuple[Event, float]] = field(default_factory=list)

    @property
    def start(self) -> float | None:
        """The time everything is counted from: that of the first event which has one."""
        return next((p.at for p in self.points if p.at is not None), None)

    @property
    def open(self) -> bool:
        return self.status in OPEN

    @property
    def unknown_seconds(self) -> float | None:
        """How long this database could not tell the outcome; until now where it still cannot."""
        if self.boundary is None or self.boundary.at is None:
            return None
        last = self.settled or (self.points[-1] if self.open else None)
        return None if last is None or last.at is None else last.at - self.boundary.at


def moments(events: tuple[Event, ...]) -> list[Point]:
    """Events gathered into points: one for a transaction, one for a run of mere renewals."""
    points: list[Point] = []
    for event in events:
        last = points[-1] if points else None
        if last is not None and _belongs(last, event):
            last.events.append(event)
            last.at = event.at
        else:
            points.append(Point("event", event.at, [event]))
    return points


def _belongs(point: Point, event: Event) -> bool:
    last = point.events[-1]
    if last.generation != event.generation:
        return False
    if point.events[0].kind == "lease_renewed":
        return event.kind == "lease_renewed" and (event.at or 0.0) >= (last.at or 0.0)
    return last.at == event.at and (last.kind, event.kind) in TOGETHER


class Replay:
    """Plays the events in order; one method for each kind, named after it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.points: list[Point] = []
        self.leases: list[Lease] = []
        self.spans: list[Span] = []
        self.window: Window | None = None
        self.questions: list[Question] = []
        self.boundary: Point | None = None
        self.settled: Point | None = None
        self.finding = ""
        self.steps: list[tuple[str, int | None]] = []
        self.doubts: list[str] = []

    def play(self) -> Life:
        for point in moments(self.record.events):
            self._pass_time(point.events[0].at)
            self.points.append(point)
            for event in point.events:
                handler = getattr(self, f"on_{event.kind}", None)
                if handler is None:
                    self.doubts.append(f"event {event.seq} is of an unknown kind")
                else:
                    handler(event, point)
        if self.status in OPEN or not self.points:
            self._until_now()
        self._idle()
        return Life(
            self.record,
            self.points,
            self.leases,
            self.spans,
            self.window,
            self.questions,
            self.boundary,
            self.settled,
            self.finding,
            self.steps,
            self.status,
            doubts=self.doubts,
            steps_back=steps_back(self.record.events),
        )

    # Time that passes between two events.

    @property
    def status(self) -> str:
        return self.spans[-1].status if self.spans else ""

    @property
    def lease(self) -> Lease | None:
        """The latest lease while it still bars others: not given back, not run out."""
        last = self.leases[-1] if self.leases else None
        if last is None or last.expiry is not None or last.ending not in ("", "parked"):
            return None
        return last

    def _pass_time(self, at: float | None) -> None:
        """Insert what ran out before the moment `at`."""
        if at is None:
            return
        ends: list[tuple[float, str]] = []
        lease, window = self.lease, self.window
        if lease is not None and lease.until is not None and lease.until <= at:
            ends.append((lease.until, "expiry"))
        undecided = window is not None and not (window.used or window.closed or window.lapse)
        if window is not None and undecided and (window.expires_at or at + 1) <= at:
            ends.append((window.expires_at or at, "lapse"))
        for time, kind in sorted(ends):
            point = Point(kind, time)
            if kind == "expiry" and lease is not None:
                self._run_out(lease, point)
            elif window is not None:
                window.lapse = point
            self.points.append(point)

    def _run_out(self, lease: Lease, point: Point) -> None:
        lease.expiry = point
        if not lease.ending:
            lease.ending, lease.end = "expired", point
            lease.silent = Point("silent")
            self.points.append(lease.silent)
            self.spans[-1].stale = lease.silent

    def _until_now(self) -> None:
        last = max((p.at for p in self.points if p.at is not None), default=self.record.now)
        now = max(last, self.record.now)
        self._pass_time(now)
        self.points.append(Point("now", now))

    def _idle(self) -> None:
        """After a lease ran out nobody holds the job, until someone takes it up."""
        order = {id(point): index for index, point in enumerate(self.points)}
        takers = [lease.start for lease in self.leases] + [q.start for q in self.questions]
        takers += [span.start for span in self.spans] + self.points[-1:]
        places = sorted({order[id(point)] for point in takers})
        for lease in self.leases:
            if lease.ending == "expired" and lease.expiry is not None:
                later = bisect.bisect_right(places, order[id(lease.expiry)])
                if later < len(places):
                    lease.idle_until = self.points[places[later]]

    def _move(self, status: str, point: Point, *, again: bool = False) -> None:
        if self.spans:
            if self.spans[-1].status == status and not again:
                return
            if self.spans[-1].status not in OPEN:
                self.doubts.append(f"the history goes on after the job was {self.spans[-1].status}")
            self.spans[-1].end = point
        self.spans.append(Span(status, point))

    def _give_back(self, ending: str, point: Point, reason: str = "") -> None:
        lease = self.lease
        if lease is not None and not lease.ending:
            lease.ending, lease.end, lease.reason = ending, point, reason

    # One method for each kind of event.

    def on_submitted(self, event: Event, point: Point) -> None:
        self._move("queued", point)

    def on_claimed(self, event: Event, point: Point) -> None:
        if self.lease is not None:
            before = self.lease
            self.doubts.append(
                f"generation {event.generation} was claimed while generation "
                f"{before.generation} held its lease"
            )
            before.ending, before.end = before.ending or "overtaken", before.end or point
            before.expiry = point
        self.leases.append(Lease(event.generation, event.detail, point))
        self._move("running", point, again=True)

    def on_lease_renewed(self, event: Event, point: Point) -> None:
        lease = self.lease
        try:
            until = float(event.detail)
        except ValueError:
            until = float("nan")
        if lease is None or lease.generation != event.generation or not abs(until) < 1e14:
            self.doubts.append(f"event {event.seq} renews a lease that is not there")
            return
        if lease.until is not None and (event.at or 0.0) >= lease.until:
            self.doubts.append(f"event {event.seq} renews a lease that had run out")
        lease.until = until
        if point is lease.start and event.at is not None:
            lease.seconds = until - event.at
            return
        lease.renewals += 1
        if point.events[0].kind != "lease_renewed":
            return
        if lease.marks and lease.marks[-1].point is point:
            lease.marks[-1].label = f"renewed {len(point.events):,} times"
        else:
            lease.marks.append(Mark(point, "renewed", "renewed"))

    def on_step_committed(self, event: Event, point: Point) -> None:
        step = event.detail
        self.steps.append((step, event.generation))
        if "effect_confirmed" in point.kinds:
            return
        lease = self.lease
        if lease is None or lease.generation != event.generation:
            self.doubts.append(f"event {event.seq} commits a step outside any live lease")
        else:
            lease.marks.append(Mark(point, "step", step))
        if step == "verify" and not self.record.approvals:
            self.boundary = self.boundary or point
        if step == "publish":
            self.settled = self.settled or point
            self._give_back("published", point)
            self._move("succeeded", point)

    def on_retry_scheduled(self, event: Event, point: Point) -> None:
        self._give_back("retry", point, reason_of(event))
        self._move("retry_wait", point)

    def on_failed(self, event: Event, point: Point) -> None:
        self._give_back("failed", point, event.detail)
        self._close_window(point)
        self._move("failed", point)

    def on_cancelled(self, event: Event, point: Point) -> None:
        self._give_back("cancelled", point)
        self._close_window(point)
        self._move("cancelled", point)

    def on_effect_found(self, event: Event, point: Point) -> None:
        self.settled, self.finding = self.settled or point, event.detail

    def on_effect_unknown(self, event: Event, point: Point) -> None:
        self.finding = event.detail

    def on_approval_requested(self, event: Event, point: Point) -> None:
        self._give_back("asked", point)
        row = self.record.approval
        self.window = Window(point, row.expires_at if row else _number(event, "expires_at"))
        self._move("waiting_approval", point)

    def on_approved(self, event: Event, point: Point) -> None:
        self._decide("approved", event, point)
        self._move("queued", point)

    def on_rejected(self, event: Event, point: Point) -> None:
        self._decide("rejected", event, point)
        self._close_window(point)
        self._move("rejected", point)

    def _decide(self, decided: str, event: Event, point: Point) -> None:
        if self.window is None:
            self.doubts.append(f"event {event.seq} decides a request that is not there")
            self.window = Window(point, None)
        self.window.decided, self.window.actor = decided, event.detail
        self.window.decision = point

    def _close_window(self, point: Point) -> None:
        if self.window is not None and not (self.window.used or self.window.closed):
            self.window.closed = point

    def on_dispatch_started(self, event: Event, point: Point) -> None:
        lease = self.lease
        if lease is not None:
            lease.marks.append(Mark(point, "dispatch", "dispatch"))
        else:
            self.doubts.append(f"event {event.seq} dispatches outside any live lease")
        self.boundary = self.boundary or point
        if self.window is not None:
            self.window.used = point

    def on_reconciling(self, event: Event, point: Point) -> None:
        self._give_back("parked", point, event.detail)
        self._move("reconciling", point)

    def on_reconcile_started(self, event: Event, point: Point) -> None:
        self.questions.append(Question(event.generation, point))
        self._move("reconciling", point)

    def on_reconcile_inconclusive(self, event: Event, point: Point) -> None:
        self._answer("inconclusive", event, point)

    def on_effect_confirmed(self, event: Event, point: Point) -> None:
        self._answer("confirmed", event, point)
        self.settled = self.settled or point
        self._move("effect_confirmed", point)

    def _answer(self, outcome: str, event: Event, point: Point) -> None:
        if not self.questions or self.questions[-1].outcome:
            self.doubts.append(f"event {event.seq} answers a reconcile that was not started")
            return
        last = self.questions[-1]
        last.end, last.outcome, last.reason = point, outcome, event.detail


def _number(event: Event, key: str) -> float | None:
    try:
        value = json.loads(event.detail)[key]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e14 else None


def reason_of(event: Event) -> str:
    """The reason in a retry's detail; the detail itself when it holds none."""
    try:
        value = json.loads(event.detail)["reason"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return event.detail
    return value if isinstance(value, str) else event.detail


def steps_back(events: tuple[Event, ...]) -> list[tuple[Event, float]]:
    """The events that are earlier than the one before them, and by how many seconds."""
    found, last = [], None
    for event in events:
        if event.at is None:
            continue
        if last is not None and event.at < last:
            found.append((event, last - event.at))
        last = event.at
    return found

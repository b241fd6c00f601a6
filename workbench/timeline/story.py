"""The same story in words, and as a table of events."""

from __future__ import annotations

import json
from typing import NamedTuple

from .life import Lease, Life, Point, Question, reason_of
from .model import Event
from .wording import (
    ELLIPSIS,
    MINUS,
    brief,
    clock,
    count,
    day,
    duration,
    iso,
    listing,
    offset,
    visible,
)

EN_DASH = "\N{EN DASH}"
ALONE = 3  # more renewals than this in a row become one line of the table


class Line(NamedTuple):
    """One row of the event table; `at` is ISO 8601 or what can be said of the time."""

    seq: str
    at: str
    since: str
    generation: str
    kind: str
    detail: str
    quiet: bool = False


def words(life: Life) -> list[str]:
    """The story as paragraphs; what was inferred is said to be."""
    history = [sentence for _, sentence in sorted(_history(life), key=lambda found: found[0])]
    found = [" ".join(history), " ".join(_outcome(life)), " ".join(_remarks(life))]
    return [paragraph for paragraph in found if paragraph]


def _history(life: Life) -> list[tuple[int, str]]:
    """Sentences with the index of the point that each belongs to."""
    job, first = visible(life.record.job), next(iter(life.record.events), None)
    if first is None:
        return [(0, f"Job {job} has no history.")]
    told = [(0, f"Job {job} was submitted on {day(first.at)} at {clock(first.at)} UTC.")]
    told += [(lease.start.index, _lease(life, lease)) for lease in life.leases]
    told += [(lease.expiry.index, _idle(lease)) for lease in life.leases if lease.expiry]
    told += _approval(life) + _ends(life) + _questions(life)
    for point in life.points:
        if point.kind == "skipped":
            told.append((point.index, f"{point.hidden:,} more events are not told here."))
        elif point.kind == "now":
            told.append((point.index, f"It is now {offset(point.at, life.start)}."))
    return [(index, sentence) for index, sentence in told if sentence]


def _lease(life: Life, lease: Lease) -> str:
    when = offset(lease.start.at, life.start)
    said = f"Generation {lease.generation} ({brief(lease.owner, 40)}) claimed it at {when}"
    did = []
    steps = [m.label for m in lease.marks if m.kind == "step" and m.label != "publish"]
    if steps:
        did.append(f"committed {listing([brief(step, 20) for step in steps])}")
    renewed = lease.renewals - len(steps)
    if renewed > 0:
        did.append(f"renewed its lease {count(renewed, 'time')} besides")
    mark = lease.mark("dispatch")
    if mark:
        did.append(f"recorded dispatch_started at {offset(mark.point.at, life.start)}")
    end = _lease_end(life, lease)
    lead = listing([said, *did]) if end.startswith(".") else ", ".join([said, *did])
    return f"{lead}{end}."


def _lease_end(life: Life, lease: Lease) -> str:
    at = offset(lease.end.at if lease.end else None, life.start)
    if lease.ending == "expired":
        return (
            ", and then nothing more: it crashed or was held up, which a database cannot tell "
            f"apart. Its lease, {duration(lease.seconds)} at a time, ran out at {at}"
        )
    if lease.ending == "published":
        if life.saved is not None and life.saved.how == "earlier":
            return f", called the report service again, and recorded at {at} the receipt it got"
        return f", published, and recorded the receipt at {at}"
    return {
        "asked": ", then gave its lease back to wait for a person",
        "retry": f", then put the next attempt off at {at} ({visible(lease.reason, 160)})",
        "failed": f", then ended the job as failed at {at} ({visible(lease.reason, 160)})",
        "cancelled": f". The job was cancelled at {at}: a later write by that worker is refused",
        "parked": f". The job was parked at {at} ({visible(lease.reason, 160)})",
        "overtaken": f", and was taken over at {at}",
    }.get(lease.ending, f", and holds its lease until {offset(lease.until, life.start)}")


def _idle(lease: Lease) -> str:
    later = lease.idle_until
    if lease.expiry is None or later is None or later.at is None or lease.expiry.at is None:
        return ""
    seconds = later.at - lease.expiry.at
    return f"For {duration(seconds)} nobody held it." if seconds > 0 else ""


def _approval(life: Life) -> list[tuple[int, str]]:
    window = life.window
    if window is None:
        return []
    told = []
    if window.decision:
        since = _between(window.start, window.decision)
        row = life.record.approval
        binding = f" (binding {brief(row.binding_hash, 9)})" if row else ""
        verb = "approved exactly this content" if window.decided == "approved" else "rejected it"
        who = brief(window.actor, 30)
        told.append((window.decision.index, f"After {since} {who} {verb}{binding}."))
    if window.lapse:
        what = "permission" if window.decided else "time to decide"
        when = offset(window.lapse.at, life.start)
        told.append((window.lapse.index, f"The {what} ran out at {when}."))
    return told


def _ends(life: Life) -> list[tuple[int, str]]:
    """Ends that no generation recorded: found at a claim, or made by a person."""
    told = []
    for point in life.points:
        for event in point.events:
            when = offset(event.at, life.start)
            by_worker = any(lease.end is point for lease in life.leases)
            if event.kind == "failed" and not by_worker:
                reason = visible(event.detail, 160)
                told.append((point.index, f"The next run ended it as failed at {when} ({reason})."))
            elif event.kind == "cancelled" and not by_worker:
                told.append((point.index, f"It was cancelled at {when}."))
            elif event.kind == "reconciling" and not by_worker:
                reason = visible(event.detail, 160)
                told.append((point.index, f"It was parked as reconciling at {when} ({reason})."))
            elif event.kind == "effect_found":
                told.append((point.index, "The report service was asked, and held the report."))
            elif event.kind == "effect_unknown":
                reason = visible(event.detail, 160)
                told.append((point.index, f"The report service was asked in vain ({reason})."))
    return told


def _questions(life: Life) -> list[tuple[int, str]]:
    return [(question.start.index, _question(life, question)) for question in life.questions]


def _question(life: Life, question: Question) -> str:
    asked = f"At {offset(question.start.at, life.start)} reconcile asked the report service"
    if question.outcome == "confirmed":
        return f"{asked} without sending: the receipt was there. The job became effect_confirmed."
    if question.outcome:
        return f"{asked} without sending, inconclusively ({visible(question.reason, 160)})."
    return f"{asked}; no answer was recorded."


def _outcome(life: Life) -> list[str]:
    """The boundary, the span of the unknown, and what the service holds."""
    told = []
    if life.boundary is None:
        sure = "No call to the report service can have been made."
        told.append("This history shows no call to the service." if life.doubts else sure)
    else:
        what = "dispatch_started" if life.record.approvals else "the commit of verify"
        when = offset(life.boundary.at, life.start)
        told.append(f"From {what} at {when} on, a report can have been sent.")
        seconds = life.unknown_seconds
        if life.settled is None and not life.open:
            told.append("What became of it was never settled in this database.")
        elif seconds is not None and seconds >= 0:
            lead = "The outcome was" if life.settled else "So far the outcome has been"
            told.append(f"{lead} unknown here for {duration(seconds)}.")
    told.append(_service(life))
    return told


def _service(life: Life) -> str:
    saved, record = life.saved, life.record
    if record.service:
        also = f" The job recorded receipt {saved.name}." if saved else ""
        return f"The report service {record.service}.{also}"
    if saved is None:
        proof = "" if life.boundary is None else ", which proves nothing about a call under way"
        return f"The report service holds no receipt of this job{proof}."
    if saved.where == "gone":
        return f"The job recorded receipt {saved.name}; the report service does not hold it."
    what = "one receipt, of another report," if saved.how == "foreign" else "one receipt,"
    tail = {
        "older": "made before this job's first call",
        "stray": "which this history cannot have made",
        "foreign": "under this job's key",
    }.get(saved.how, "and no time is recorded with it")
    return f"The report service holds {what} {saved.name}, {tail}."


def _remarks(life: Life) -> list[str]:
    told = []
    for event, seconds in life.steps_back[:3]:
        told.append(
            f"The clock stepped back by {duration(seconds)} before event {event.seq}; "
            "the order is that of the sequence numbers."
        )
    if len(life.steps_back) > 3:
        told.append(f"It did so {count(len(life.steps_back) - 3, 'time')} more.")
    last = life.record.events[-1].at if life.record.events else None
    if life.open and last is not None and life.record.now < last:
        told.append("The clock here is behind the last event: that event's time is taken as now.")
    return told


def _between(first: Point, last: Point) -> str:
    if first.at is None or last.at is None:
        return "a time that cannot be read"
    return duration(last.at - first.at)


def table(life: Life) -> list[Line]:
    """Every event, but runs of renewals and the middle of a very long life as one line each."""
    lines = []
    for point in life.points:
        if point.kind == "skipped":
            lines.append(Line(ELLIPSIS, "", "", "", "", f"{point.hidden:,} events not shown", True))
        elif len(point.events) > ALONE:
            lines.append(_run(life, point.events))
        else:
            lines += [_line(life, event) for event in point.events]
    return lines


def _run(life: Life, events: list[Event]) -> Line:
    first, last = events[0], events[-1]
    return Line(
        f"{first.seq}{EN_DASH}{last.seq}",
        iso(first.at),
        _since(life, first),
        _generation(first),
        first.kind,
        f"{len(events):,} times, last at {offset(last.at, life.start)}, {_detail(life, last)}",
        True,
    )


def _line(life: Life, event: Event) -> Line:
    return Line(
        str(event.seq),
        iso(event.at) or "no date",
        _since(life, event),
        _generation(event),
        visible(event.kind, 40),
        _detail(life, event),
        event.kind == "lease_renewed",
    )


def _since(life: Life, event: Event) -> str:
    if event.at is None or life.start is None:
        return "?"
    return f"{event.at - life.start:+,.3f}".replace("-", MINUS)


def _generation(event: Event) -> str:
    if event.generation is None:
        return "?"
    return str(event.generation) if event.generation else EN_DASH


def _detail(life: Life, event: Event) -> str:
    try:
        value = json.loads(event.detail)
    except (ValueError, RecursionError):
        return visible(event.detail, 120) if event.detail else ""
    if event.kind == "lease_renewed" and isinstance(value, (int, float)):
        return f"until {offset(_time(value), life.start)}"
    if not isinstance(value, dict):
        return visible(event.detail, 120)
    if event.kind == "submitted" and "input_hash" in value:
        deadline = offset(_time(value.get("deadline")), life.start)
        return f"input {brief(value['input_hash'], 9)}, deadline {deadline}"
    if event.kind == "approval_requested" and "binding_hash" in value:
        expires = offset(_time(value.get("expires_at")), life.start)
        return f"binding {brief(value['binding_hash'], 9)}, expires {expires}"
    if event.kind == "retry_scheduled" and "available_at" in value:
        again = offset(_time(value["available_at"]), life.start)
        return f"not before {again}: {visible(reason_of(event), 120)}"
    return visible(event.detail, 120)


def _time(value: object) -> float | None:
    usable = isinstance(value, (int, float)) and abs(value) < 1e14
    return float(value) if usable and isinstance(value, (int, float)) else None

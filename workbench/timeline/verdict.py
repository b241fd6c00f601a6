"""The headline and the facts: never more than the two databases show.

"Saved" is said only when a receipt of this job's report is at the service; "nothing was sent" only
when the history excludes a call; a contradiction in the records comes before everything else.
"""

from __future__ import annotations

from runtime import MAX_CLAIMS

from .life import Life, Saved
from .wording import brief, duration, listing, offset, visible

GOOD, BAD, OPEN = "good", "bad", "open"
REASONS = (  # how a recorded reason begins, and how a headline says it
    ("memory_revision_changed", "the memory it was given had changed"),
    ("memory_expired", "the memory it was given had expired"),
    ("approval_expired_before_dispatch", "the permission had run out"),
    ("approval_expired", "nobody had decided in time"),
    ("binding_mismatch", "the content had changed since it was reviewed"),
    ("deadline exceeded", "its deadline had passed"),
)


def headline(life: Life) -> tuple[str, str]:
    """What became of the job, in one or two short sentences, and its tone."""
    if life.doubts:
        what = f": {life.doubts[0]}" if len(life.doubts) == 1 else " in several ways"
        return f"The records contradict each other{what}.", BAD
    teller = {
        "succeeded": _succeeded,
        "effect_confirmed": _confirmed,
        "failed": _ended,
        "cancelled": _ended,
        "rejected": lambda _: ("A person said no. Nothing was sent.", BAD),
        "waiting_approval": _waiting,
        "queued": _queued,
        "retry_wait": _retry_wait,
        "running": _running,
        "reconciling": _reconciling,
    }.get(life.status)
    return teller(life) if teller else ("The status of this job is not known here.", BAD)


def _unconfirmed(life: Life) -> tuple[str, str] | None:
    """When the service cannot be asked, what the job recorded is all that can be said."""
    if not life.record.service:
        return None
    lead = f"The job recorded a receipt. The report service {life.record.service}"
    return f"{lead}, so nothing confirms it.", OPEN


def _succeeded(life: Life) -> tuple[str, str]:
    missing = _unconfirmed(life)
    if missing:
        return missing
    how = life.saved.how if life.saved else ""
    if how == "older":
        return "The report service already held this report. This job saved nothing new.", GOOD
    if how == "earlier":
        return (
            "The report was saved once. Recovery sent it again and was given the first receipt.",
            GOOD,
        )
    if any(lease.ending == "expired" for lease in life.leases):
        kept = kept_steps(life)
        if kept:
            return f"The report was saved once. Recovery kept {listing(kept)}.", GOOD
        return "The report was saved once. Recovery began again: no step had been finished.", GOOD
    retries = sum(lease.ending == "retry" for lease in life.leases)
    if retries:
        more = "one retry" if retries == 1 else f"{retries} retries"
        return f"The report was saved once, after {more}.", GOOD
    if life.window:
        return "The report was saved once, as a person had approved it.", GOOD
    return "The report was saved once, in one run without a break.", GOOD


def _confirmed(life: Life) -> tuple[str, str]:
    told = "The report was saved once. Recovery asked the service and sent nothing."
    return _unconfirmed(life) or (told, GOOD)


def _ended(life: Life) -> tuple[str, str]:
    failed = life.status == "failed"
    if life.boundary is None:
        why = _why(life) if failed else ""
        return (f"{'Failed' if failed else 'Cancelled'} before anything was sent{why}.", BAD)
    what = "failed" if failed else "was cancelled"
    saved = life.saved
    if saved is not None and saved.how == "foreign":
        return f"The job {what}. The service holds another report under its key.", BAD
    if life.settled is not None:
        if saved is not None and saved.where == "service":
            return f"The job {what}, but its report had been saved, once.", BAD
        return f"The job {what}. It recorded that its report had been saved.", BAD
    if saved is not None and saved.where == "service":
        return f"The job {what} without knowing the outcome. The service holds its report.", BAD
    return f"The job {what}. Whether its report was saved is not known.", BAD


def _why(life: Life) -> str:
    reason = life.record.error or ""
    if reason == "deadline_or_attempt_budget":
        spent = claims(life) >= MAX_CLAIMS
        return ": all its claims were used" if spent else ": its deadline had passed"
    return next((f": {words}" for start, words in REASONS if reason.startswith(start)), "")


def _waiting(life: Life) -> tuple[str, str]:
    if life.window and life.window.lapse:
        return "The time to decide ran out. Nothing has been sent.", OPEN
    return "Waiting for a person to decide. Nothing has been sent.", OPEN


def _queued(life: Life) -> tuple[str, str]:
    if life.window and life.window.decided:
        if life.window.lapse:
            return "Approved, but the permission ran out unused. Nothing has been sent.", OPEN
        return "Approved, waiting for the run that sends it. Nothing has been sent.", OPEN
    return "Waiting for its first run. Nothing has been sent.", OPEN


def _retry_wait(life: Life) -> tuple[str, str]:
    lead = f"Attempt {claims(life)} of {MAX_CLAIMS} did not succeed; another is allowed."
    return f"{lead} {_so_far(life)}", OPEN


def _running(life: Life) -> tuple[str, str]:
    lease = life.leases[-1] if life.leases else None
    if lease is not None and lease.ending == "expired":
        return f"It still says running, but nobody holds the job. {_so_far(life)}", OPEN
    number = "?" if lease is None else lease.generation
    return f"Generation {number} holds the job. {_so_far(life)}", OPEN


def _so_far(life: Life) -> str:
    if life.boundary is None:
        return "Nothing has been sent."
    if life.saved is not None and life.saved.how != "foreign":
        return "The service holds the report; the job has yet to record it."
    return "Whether the report was saved is not known here."


def _reconciling(life: Life) -> tuple[str, str]:
    saved, service = life.saved, life.record.service
    if saved is not None and saved.how == "foreign":
        return "The service holds another report under this job's key. A person must look.", OPEN
    if saved is not None:
        return "The service holds the report. Reconcile has yet to record it.", OPEN
    if service:
        return f"Dispatched, outcome unknown: the report service {service}.", OPEN
    return "Dispatched, outcome unknown. No receipt is seen, and that proves nothing.", OPEN


def claims(life: Life) -> int:
    return sum(event.kind == "claimed" for event in life.record.events)


def kept_steps(life: Life) -> list[str]:
    """The steps that a later generation found done and did not do again."""
    last = life.leases[-1].generation if life.leases else None
    return [step for step, generation in life.steps if generation != last]


def listed_senders(saved: Saved) -> str:
    """Which generations can have saved a report, where it is not just one."""
    if len(saved.senders) < 2:
        return ""
    names = [str(lease.generation) for lease in saved.senders]
    return f", by generation {', '.join(names[:-1])} or {names[-1]}"


def unknown_words(life: Life) -> str:
    """The span of the unknown outcome, as the picture names it."""
    seconds = life.unknown_seconds
    if life.settled is None and not life.open:
        return "outcome unknown here, never settled"
    if seconds is None or seconds < 0:
        return "outcome unknown here"
    so_far = "" if life.settled else " so far"
    return f"outcome unknown here · {duration(seconds)}{so_far}"


def facts(life: Life) -> list[tuple[str, str]]:
    """Names and values under the headline."""
    record = life.record
    found = [
        ("Status", visible(record.status, 40)),
        ("Claims", f"{claims(life)} of {MAX_CLAIMS}"),
        ("Checkpoints", f"{len(record.steps)} of 4"),
        ("Receipts", _receipts(life)),
    ]
    if life.window and life.window.decision:
        found.append(("Decided by", brief(life.window.actor, 30)))
    if len(life.leases) > 1 and not life.window and life.steps:
        found.append(("Kept by recovery", listing(kept_steps(life)) or "nothing"))
    if life.status == "effect_confirmed" or (life.saved and life.saved.how == "earlier"):
        found.append(("Written by recovery", "nothing"))
    seconds = life.unknown_seconds
    if seconds is not None and seconds >= 0:
        so_far = "" if life.settled else " so far"
        found.append(("Outcome unknown for", duration(seconds) + so_far))
    elif life.boundary is not None and life.settled is None:
        found.append(("Outcome", "never settled here"))
    if record.error:
        found.append(("Reason", visible(record.error, 120)))
    if life.status == "retry_wait" and record.available_at is not None:
        found.append(("Next attempt from", offset(record.available_at, life.start)))
    return found


def _receipts(life: Life) -> str:
    if life.record.service:
        return f"service {life.record.service}"
    if life.record.receipt is None:
        return "0"
    return "1, of another report" if life.record.receipt.agrees is False else "1"

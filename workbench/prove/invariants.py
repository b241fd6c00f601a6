"""The promises of the lab as checks on what its two databases say, and on nothing else.

Guarantee: each invariant is decided from rows, by a replay of the events written for this module;
it imports nothing of the lab and shares no code with the lab's own evaluation. Limit: it knows what
was recorded. That a request was sent and lost leaves no row; only a receipt proves an effect.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple

ONE = "at-most-one-receipt-per-key"
AGREES = "terminal-agrees"
CERTAIN = "no-false-certainty"
ONCE = "finished-steps-not-redone"
RISE = "generations-rise"
LEASE = "no-write-outside-lease"
LIMITS = "work-within-limits"
APPROVED = "sent-is-approved"
SENT = "nothing-sent-after-dispatch"
RESTS = "can-finish-or-park"
INTEGRITY = "integrity"

INVARIANTS = {
    ONE: "a job has one operation key; at most one receipt stands under it, none under another",
    AGREES: "the job's row, its checkpoints, its events and its receipt tell the same story",
    CERTAIN: "no end claims more than the receipts bear out, or says found or unknown beside it",
    ONCE: "each step commits once, in workflow order; no later state changes or loses a row of it",
    RISE: "a claim, a cancel and a reconcile raise the generation by one; every event carries it",
    LEASE: "a worker writes before its recorded lease ends; takeover and reconcile come after",
    LIMITS: "nothing commits, asks or dispatches past the deadline or on memory not in force",
    APPROVED: "one dispatch, of the bound action, on one yes in force; the receipt is its report's",
    SENT: "once a dispatch is on record, a recovery adds no receipt",
    RESTS: "from every state, fresh workers and time end the job or honestly park it",
    INTEGRITY: "both files pass integrity_check and foreign_key_check",
}

STEPS = ("collect", "draft", "verify", "publish")
BASE = "report/v1"
OPEN = ("queued", "running", "retry_wait")
SENT_OFF = ("succeeded", "effect_confirmed")
CLOSED = ("failed", "cancelled", "rejected")
OVER = (*SENT_OFF, *CLOSED)
BUDGET = "deadline_or_attempt_budget"
MOST_CLAIMS = 3
TABLES = ("jobs", "checkpoints", "events", "memory", "approvals", "receipts")


class Finding(NamedTuple):
    """One broken invariant and what was seen."""

    invariant: str
    seen: str


class JobRow(NamedTuple):
    """A row of `jobs`."""

    id: str
    spec: str
    input_hash: str
    status: str
    generation: int
    owner: str | None
    lease_until: float
    attempts: int
    available_at: float
    scope: str
    memory_rev: int
    memory_expires: float
    deadline: float
    error: str | None


class EventRow(NamedTuple):
    """A row of `events`."""

    seq: int
    job_id: str
    at: float
    generation: int
    kind: str
    detail: str


class ApprovalRow(NamedTuple):
    """A row of `approvals`."""

    job_id: str
    action_json: str
    binding_hash: str
    operation_key: str
    status: str
    requested_at: float
    expires_at: float
    decided_by: str | None
    decided_at: float | None


Rows = tuple[tuple[Any, ...], ...]


class Image(NamedTuple):
    """Every row of both databases, in key order, and what is wrong with the files themselves."""

    jobs: Rows = ()
    checkpoints: Rows = ()
    events: Rows = ()
    memory: Rows = ()
    approvals: Rows = ()
    receipts: Rows = ()
    damage: tuple[str, ...] = ()

    @property
    def status(self) -> str | None:
        """The status of the only job; None without one."""
        return str(self.jobs[0][3]) if self.jobs else None

    @property
    def dispatched(self) -> bool:
        """True once a dispatch is on record."""
        return any(row[4] == "dispatch_started" for row in self.events)


def read(path: str, publisher: str | None = None) -> Image:
    """Both databases of one path as plain SQLite finds them; opening recovers a killed writer's."""
    found: dict[str, Rows] = {}
    damage: list[str] = []
    for file in (path, publisher or f"{path}.publisher.sqlite"):
        try:
            found.update(_rows(file))
        except sqlite3.Error as error:
            damage.append(f"{os.path.basename(file)}: {error}")
        else:
            damage += [f"{os.path.basename(file)}: {trouble}" for trouble in _checks(file)]
    return Image(**{name: found.get(name, ()) for name in TABLES}, damage=tuple(damage))


def _rows(file: str) -> dict[str, Rows]:
    if not os.path.exists(file):
        return {}
    with contextlib.closing(sqlite3.connect(file)) as connection:
        names = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if name in TABLES
        ]
        return {
            name: tuple(connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2"))  # noqa: S608
            for name in names
        }


def _checks(file: str) -> list[str]:
    if not os.path.exists(file):
        return []
    with contextlib.closing(sqlite3.connect(file)) as connection:
        found = [row[0] for row in connection.execute("PRAGMA integrity_check")]
        loose = connection.execute("PRAGMA foreign_key_check").fetchall()
    return [text for text in found if text != "ok"] + [f"row without a job: {row}" for row in loose]


def digest(value: object) -> str:
    """The contract's hash: SHA-256 of canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


# --- One job's events, replayed -------------------------------------------------------------------


class Story:
    """What the events of a job lead to, and every rule that they break on the way."""

    def __init__(self, job: JobRow, events: list[EventRow]) -> None:
        self.job = job
        self.approval_job = json.loads(job.spec)["workflow"] != BASE
        self.findings: list[Finding] = []
        self.status = ""
        self.generation = self.attempts = 0
        self.owner: str | None = None
        self.lease_until = 0.0
        self.granting = False  # a claim whose grant is still to come
        self.steps: list[str] = []
        self.effects: list[EventRow] = []
        self.reason: str | None = None
        self.expires_at = self.available_at = 0.0
        self.approval: str | None = None
        self.decisions: list[EventRow] = []
        self.dispatches = 0
        for event in events:
            self.take(event)

    def wrong(self, invariant: str, seen: str) -> None:
        self.findings.append(Finding(invariant, f"job {self.job.id!r}: {seen}"))

    def take(self, event: EventRow) -> None:
        rises = event.kind in ("claimed", "cancelled", "reconcile_started")
        expected = self.generation + rises
        if event.generation != expected:
            due = "raised to" if rises else "still"
            said = f"event {event.seq} {event.kind} carries generation {event.generation}"
            self.wrong(RISE, f"{said}, it is {due} {expected}")
        self.generation = max(self.generation, event.generation)
        rule = RULES.get(event.kind)
        if rule is None:
            self.wrong(AGREES, f"event {event.seq} is of no known kind: {event.kind}")
        else:
            rule(self, event)

    def move(self, event: EventRow, allowed: tuple[str, ...], status: str) -> None:
        """The event is possible in the allowed statuses; only a running job has an owner."""
        if self.status not in allowed:
            seen = f"event {event.seq} {event.kind} while the job is {self.status or 'not there'}"
            self.wrong(AGREES, seen)
        self.status = status
        if status != "running":
            self.owner = None

    def leased(self, event: EventRow) -> bool:
        return self.status == "running" and event.at < self.lease_until

    def need_lease(self, event: EventRow) -> None:
        """A worker's write: under a lease that history shows to be live and this generation's."""
        if not self.leased(event) or event.generation != self.generation:
            self.wrong(
                LEASE,
                f"event {event.seq} {event.kind} {event.detail:.40} by generation"
                f" {event.generation} at {event.at:.3f}, but the job is {self.status} and the"
                f" lease of generation {self.generation} ends at {self.lease_until:.3f}",
            )

    def need_limits(self, event: EventRow) -> None:
        if event.at >= self.job.deadline:
            self.wrong(LIMITS, f"event {event.seq} {event.kind} {event.detail:.40} past deadline")
        if self.job.memory_rev and event.at >= self.job.memory_expires:
            self.wrong(LIMITS, f"event {event.seq} {event.kind} {event.detail:.40} on old memory")


def _submitted(story: Story, event: EventRow) -> None:
    story.move(event, ("",), "queued")


def _claimed(story: Story, event: EventRow) -> None:
    if story.leased(event):
        until = f"{event.at:.3f} before the lease's end at {story.lease_until:.3f}"
        story.wrong(LEASE, f"generation {event.generation} took over at {until}")
    if story.dispatches:
        story.wrong(APPROVED, f"generation {event.generation} claimed it after the dispatch")
    if story.status == "retry_wait" and event.at < story.available_at:
        story.wrong(LEASE, f"claimed at {event.at:.3f}, not before {story.available_at:.3f}")
    story.move(event, OPEN, "running")
    story.attempts += 1
    if story.attempts > MOST_CLAIMS or event.at >= story.job.deadline:
        story.wrong(LIMITS, f"claim {story.attempts} at {event.at:.3f}")
    story.owner, story.granting, story.reason = event.detail, True, None


def _lease_renewed(story: Story, event: EventRow) -> None:
    if not story.granting:
        story.need_lease(event)
    story.granting = False
    story.lease_until = float(event.detail)


def _step_committed(story: Story, event: EventRow) -> None:
    if event.detail not in STEPS[len(story.steps) : len(story.steps) + 1]:
        story.wrong(ONCE, f"{event.detail} committed after {', '.join(story.steps) or 'nothing'}")
    story.steps.append(event.detail)
    if story.status == "reconciling":  # what a reconcile read; effect_confirmed follows
        return
    story.need_lease(event)
    story.need_limits(event)
    if event.detail == STEPS[-1]:
        story.move(event, ("running",), "succeeded")
        if story.approval is not None:
            story.approval = "executed"


def _retry_scheduled(story: Story, event: EventRow) -> None:
    story.need_lease(event)
    detail = json.loads(event.detail)
    story.available_at, story.reason = float(detail["available_at"]), detail["reason"]
    story.move(event, ("running",), "retry_wait")


def _failed(story: Story, event: EventRow) -> None:
    spent, asking = event.detail == BUDGET, story.approval_job and "verify" in story.steps
    if story.status == "running" and not (spent and not story.leased(event)):
        story.need_lease(event)
        if spent and not (asking and story.attempts >= MOST_CLAIMS):
            story.wrong(LEASE, f"event {event.seq} ends the job under a live lease: {BUDGET}")
    if story.status == "waiting_approval" and event.at < story.expires_at:
        story.wrong(APPROVED, f"event {event.seq} {event.detail} before the request expired")
    story.reason = event.detail
    story.move(event, (*OPEN, "waiting_approval"), "failed")


def _cancelled(story: Story, event: EventRow) -> None:
    story.move(event, (*OPEN, "waiting_approval"), "cancelled")


def _effect(story: Story, event: EventRow) -> None:
    if story.status not in ("failed", "cancelled") or story.effects or story.approval_job:
        story.wrong(AGREES, f"event {event.seq} {event.kind} while the job is {story.status}")
    story.effects.append(event)


def _approval_requested(story: Story, event: EventRow) -> None:
    story.need_lease(event)
    story.need_limits(event)
    story.expires_at = float(json.loads(event.detail)["expires_at"])
    story.move(event, ("running",), "waiting_approval")
    story.approval = "pending"


def _decided(story: Story, event: EventRow) -> None:
    if story.approval != "pending":
        story.wrong(APPROVED, f"event {event.seq} {event.kind} on a request that is not pending")
    if event.at >= story.expires_at:
        story.wrong(APPROVED, f"event {event.seq} {event.kind} after the request expired")
    yes = event.kind == "approved"
    story.approval = event.kind
    story.decisions.append(event)
    story.move(event, ("waiting_approval",), "queued" if yes else "rejected")


def _dispatch_started(story: Story, event: EventRow) -> None:
    story.need_lease(event)
    story.need_limits(event)
    if story.approval != "approved":
        story.wrong(APPROVED, f"event {event.seq}: dispatched while it is {story.approval}")
    if event.at >= story.expires_at:
        story.wrong(APPROVED, f"event {event.seq}: dispatched after the approval expired")
    story.dispatches += 1
    story.approval = "dispatching"


def _reconciling(story: Story, event: EventRow) -> None:
    if not story.dispatches:
        story.wrong(AGREES, f"event {event.seq}: parked without a dispatch")
    story.reason = event.detail
    story.move(event, OPEN, "reconciling")


def _reconcile_started(story: Story, event: EventRow) -> None:
    if event.at < story.lease_until:
        story.wrong(LEASE, f"event {event.seq}: reconciled before {story.lease_until:.3f}")
    if not story.dispatches:
        story.wrong(AGREES, f"event {event.seq}: reconciled without a dispatch")
    story.move(event, ("running", "reconciling"), "reconciling")


def _reconcile_inconclusive(story: Story, event: EventRow) -> None:
    story.reason = event.detail
    story.move(event, ("reconciling",), "reconciling")


def _effect_confirmed(story: Story, event: EventRow) -> None:
    story.move(event, ("reconciling",), "effect_confirmed")
    story.approval = "effect_confirmed"


RULES: dict[str, Callable[[Story, EventRow], None]] = {
    "submitted": _submitted,
    "claimed": _claimed,
    "lease_renewed": _lease_renewed,
    "step_committed": _step_committed,
    "retry_scheduled": _retry_scheduled,
    "failed": _failed,
    "cancelled": _cancelled,
    "effect_found": _effect,
    "effect_unknown": _effect,
    "approval_requested": _approval_requested,
    "approved": _decided,
    "rejected": _decided,
    "dispatch_started": _dispatch_started,
    "reconciling": _reconciling,
    "reconcile_started": _reconcile_started,
    "reconcile_inconclusive": _reconcile_inconclusive,
    "effect_confirmed": _effect_confirmed,
}


# --- One image ------------------------------------------------------------------------------------


def judge(image: Image) -> list[Finding]:
    """Every invariant that a single state of the two databases can break."""
    if image.damage:
        return [Finding(INTEGRITY, "; ".join(image.damage))]
    findings: list[Finding] = []
    keys = [str(row[0]) for row in image.receipts]
    jobs = [JobRow(*row) for row in image.jobs]
    known = {digest([job.id, "publish/v1"]) for job in jobs}
    for key in sorted(set(keys)):
        if keys.count(key) > 1:
            findings.append(Finding(ONE, f"{keys.count(key)} receipts under {key[:12]}"))
        if key not in known:
            findings.append(Finding(ONE, f"a receipt under {key[:12]}, which is no job's key"))
    for job in jobs:
        events = [EventRow(*row) for row in image.events if row[1] == job.id]
        story = Story(job, events)
        findings += story.findings
        payloads = {row[1]: row[2] for row in image.checkpoints if row[0] == job.id}
        found = [row for row in image.receipts if row[0] == digest([job.id, "publish/v1"])]
        receipt = found[0] if found else None
        findings += _agrees(job, story, payloads, receipt)
        findings += _certain(job, story, receipt)
        for row in image.approvals:
            if row[0] == job.id:
                findings += _approved(job, story, ApprovalRow(*row), payloads, receipt)
        if story.approval and not any(row[0] == job.id for row in image.approvals):
            findings.append(Finding(APPROVED, f"job {job.id!r}: its approvals row is gone"))
    return findings


def _agrees(
    job: JobRow, story: Story, payloads: dict[str, str], receipt: tuple[Any, ...] | None
) -> list[Finding]:
    wrong = []
    row = (job.status, job.generation, job.attempts, job.owner, job.lease_until)
    told = (story.status, story.generation, story.attempts, story.owner, story.lease_until)
    if row != told:
        wrong.append(f"the row says {row}, its events say {told}")
    if job.status in ("failed", "retry_wait", "reconciling") and job.error != story.reason:
        wrong.append(f"the row's reason is {job.error!r}, the event's {story.reason!r}")
    if sorted(payloads) != sorted(story.steps):
        wrong.append(f"checkpoints {sorted(payloads)}, events {story.steps}")
    if story.status in SENT_OFF and tuple(story.steps) != STEPS:
        wrong.append(f"{story.status} after {story.steps}")
    if "publish" in payloads and (
        receipt is None or json.loads(payloads["publish"])["receipt"] != receipt[2]
    ):
        wrong.append(f"checkpoint {payloads['publish']}, receipt {receipt}")
    if receipt is not None and not story.approval_job and "verify" not in story.steps:
        wrong.append("a receipt stands before verify was committed")
    return [Finding(AGREES, f"job {job.id!r}: {text}") for text in wrong]


def _certain(job: JobRow, story: Story, receipt: tuple[Any, ...] | None) -> list[Finding]:
    wrong = []
    found = [event for event in story.effects if event.kind == "effect_found"]
    if job.status in CLOSED and not story.effects:
        if receipt is not None:
            wrong.append(f"{job.status}, though the receipt {receipt[2]} stands")
        elif not story.approval_job and "verify" in story.steps:
            wrong.append(f"{job.status} after verify, and nothing says what became of the effect")
        elif story.dispatches:
            wrong.append(f"{job.status} after a dispatch, whose outcome is unknown")
    if job.status in SENT_OFF and receipt is None:
        wrong.append(f"{job.status} without a receipt")
    if found and (receipt is None or found[0].detail != receipt[2]):
        wrong.append(f"effect_found {found[0].detail}, receipt {receipt}")
    return [Finding(CERTAIN, f"job {job.id!r}: {text}") for text in wrong]


def _approved(
    job: JobRow,
    story: Story,
    approval: ApprovalRow,
    payloads: dict[str, str],
    receipt: tuple[Any, ...] | None,
) -> list[Finding]:
    wrong = []
    if approval.status != story.approval:
        wrong.append(f"the approval is {approval.status}, its events say {story.approval}")
    if story.dispatches > 1:
        wrong.append(f"{story.dispatches} dispatches of one approval")
    if receipt is not None and not story.dispatches:
        wrong.append("a receipt stands without a dispatch")
    if story.dispatches:
        wrong += _binding(job, story, approval, payloads, receipt)
    return [Finding(APPROVED, f"job {job.id!r}: {text}") for text in wrong]


def _binding(
    job: JobRow,
    story: Story,
    approval: ApprovalRow,
    payloads: dict[str, str],
    receipt: tuple[Any, ...] | None,
) -> list[str]:
    """What was dispatched, bound again from the job and its draft."""
    wrong = []
    draft, spec = json.loads(payloads["draft"]), json.loads(job.spec)
    action = {
        "job_id": job.id,
        "action": "report.publish/v1",
        "target": spec.get("report_target", "local-report-store"),
        "scope": job.scope,
        "requester": json.loads(job.scope)[1],
        "input_hash": job.input_hash,
        "payload_hash": digest({"summary": draft["summary"], "citations": draft["citations"]}),
        "memory_rev": job.memory_rev,
        "memory_expires": job.memory_expires,
    }
    if json.loads(approval.action_json) != action or approval.binding_hash != digest(action):
        wrong.append("what was dispatched is not what the approval binds")
    if receipt is not None and receipt[1] != json.loads(approval.action_json)["payload_hash"]:
        wrong.append("the receipt is of another report than the approved one")
    yes = [event.detail for event in story.decisions if event.kind == "approved"]
    if yes != [approval.decided_by] or approval.decided_by == action["requester"]:
        wrong.append(f"decided by {approval.decided_by!r}, recorded {yes}")
    return wrong


# --- Two images, the second later -----------------------------------------------------------------


def judge_change(before: Image, after: Image) -> list[Finding]:
    """What no later state may undo, whoever worked in between."""
    findings = []
    if after.events[: len(before.events)] != before.events:
        findings.append(Finding(ONCE, "events on record were changed or removed"))
    for table in ("checkpoints", "receipts"):
        lost = set(getattr(before, table)) - set(getattr(after, table))
        if lost:
            findings.append(Finding(ONCE, f"{table}: changed or removed {sorted(lost)!r:.120}"))
    later = {row[0]: JobRow(*row) for row in after.jobs}
    for row in before.jobs:
        job, now = JobRow(*row), later.get(row[0])
        if now is None or (job.status in OVER and now.status != job.status):
            became = "nothing" if now is None else now.status
            findings.append(Finding(AGREES, f"job {job.id!r}: {job.status} became {became}"))
    return findings + _stale_memory(before, after)


def _stale_memory(before: Image, after: Image) -> list[Finding]:
    """The pinned memory was out of force before, so nothing new may rest on it."""
    revisions = {row[0]: row[2] for row in before.memory}
    stale = {
        job.id
        for job in (JobRow(*row) for row in before.jobs)
        if job.memory_rev and revisions.get(job.scope) != job.memory_rev
    }
    new = [EventRow(*row) for row in after.events[len(before.events) :]]
    confirmed = {event.at for event in new if event.kind == "effect_confirmed"}
    return [
        Finding(LIMITS, f"job {event.job_id!r}: {event.kind} {event.detail:.40} on revoked memory")
        for event in new
        if event.job_id in stale
        and event.kind in ("step_committed", "approval_requested", "dispatch_started")
        and event.at not in confirmed
    ]


def judge_recovery(before: Image, after: Image) -> list[Finding]:
    """After fresh workers alone went on from `before`, to their end."""
    findings = judge_change(before, after)
    if before.dispatched and after.receipts != before.receipts:
        was, now = len(before.receipts), len(after.receipts)
        findings.append(Finding(SENT, f"{was} receipts before the recovery, {now} after it"))
    if after.status not in (*OVER, "reconciling", None):
        findings.append(Finding(RESTS, f"it stays {after.status}"))
    return findings

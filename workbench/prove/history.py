"""One job's events replayed by rules of this module's own, and every rule they break on the way.

Guarantee: a replay knows nothing but the job's row and its events; it imports nothing of the lab.
Limit: an order of events that no run of the lab can write is reported, not understood.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

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
    LIMITS: "nothing commits, asks, sends or retries too soon, or past deadline, claims or memory",
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
DELAYS = {1: 2.0, 2: 4.0}  # seconds before the next claim, by claims made


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
        self.dispatches: list[float] = []  # when
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
    delay = DELAYS.get(story.attempts)
    if delay is None:
        story.wrong(LIMITS, f"event {event.seq}: a retry after claim {story.attempts}")
    elif not event.at + delay <= story.available_at < story.job.deadline:
        due = f"{event.at:.3f} + {delay:g} s at least, before {story.job.deadline:.3f}"
        story.wrong(LIMITS, f"event {event.seq}: a retry at {story.available_at:.3f}: {due}")
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
    if story.attempts >= MOST_CLAIMS:
        story.wrong(LIMITS, f"event {event.seq}: no claim is left to carry out a yes")
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
    story.dispatches.append(event.at)
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

"""Publishing only what a person approved: workflow `report-approval/v1`.

Guarantee: what is sent is what was reviewed, byte for byte, by someone who may decide, in time; and
once a send may have begun, nothing is ever sent again for that job. An outcome that cannot be known
stays `reconciling` until the report service shows a receipt.
Limit: the principals are fixtures, not authentication, and `binding_hash` is no signature: whoever
can write the database and the event log can forge both.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from typing import Any, NamedTuple

import provider as steps
from provider import LabError, PermanentError, RetryableError
from runtime import (
    BUDGET_SPENT,
    MAX_CLAIMS,
    STEPS,
    Busy,
    Conflict,
    Effect,
    Event,
    Job,
    Lease,
    PublisherUnavailable,
    Refused,
    Run,
    Runtime,
    Start,
    Status,
    check_seconds,
    digest,
    encode,
    input_hash,
    operation_key,
    read_checkpoints,
    read_job,
    verified,
)

ACTION = "report.publish/v1"
DEFAULT_TARGET = "local-report-store"
APPROVER = "report.approver"
APPROVAL_SECONDS = 120.0  # long enough to read a report, short enough that the yes is about now
APPROVAL_EXPIRED = "approval_expired"
EXPIRED_BEFORE_DISPATCH = "approval_expired_before_dispatch"


class ApprovalStatus(Status):
    """The job statuses that approvals add."""

    WAITING_APPROVAL = "waiting_approval"
    REJECTED = "rejected"
    RECONCILING = "reconciling"
    EFFECT_CONFIRMED = "effect_confirmed"


class ApprovalEvent(Event):
    """The event kinds that approvals add."""

    APPROVAL_REQUESTED = "approval_requested"
    APPROVED = "approved"
    REJECTED = "rejected"
    DISPATCH_STARTED = "dispatch_started"
    RECONCILING = "reconciling"
    RECONCILE_STARTED = "reconcile_started"
    RECONCILE_INCONCLUSIVE = "reconcile_inconclusive"
    EFFECT_CONFIRMED = "effect_confirmed"


class Decision:
    """`approvals.status`: how far the permission got. Expired and cancelled are never stored."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    DISPATCHING = "dispatching"
    EXECUTED = "executed"
    EFFECT_CONFIRMED = "effect_confirmed"


APPROVALS = """CREATE TABLE approvals (
    job_id TEXT NOT NULL PRIMARY KEY REFERENCES jobs(id),
    action_json TEXT NOT NULL,
    binding_hash TEXT NOT NULL,
    operation_key TEXT NOT NULL,
    status TEXT NOT NULL,
    requested_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    decided_by TEXT,
    decided_at REAL
)"""


class Approval(NamedTuple):
    """One row of `approvals`, columns in order."""

    job_id: str
    action_json: str
    binding_hash: str
    operation_key: str
    status: str
    requested_at: float
    expires_at: float
    decided_by: str | None
    decided_at: float | None


class Principal(NamedTuple):
    """Someone who acts: a local fixture that stands in for an authenticated session."""

    name: str
    role: str | None
    tenant: str
    project: str


PRINCIPALS = {
    principal.name: principal
    for principal in (
        Principal("reviewer", APPROVER, "local", "research"),
        Principal("operator", None, "local", "research"),
        Principal("outsider", APPROVER, "elsewhere", "research"),
    )
}


class Forbidden(Refused, PermissionError):
    """This actor may not decide this request."""


class Expired(Refused):
    """The time to decide is over."""


class Unresolved(LabError):
    """A lease is still live, or another reconcile is at work: not now."""

    exit_code = 3
    definite = False


class Decided(NamedTuple):
    """A decision as it stands: the job afterwards and the approvals row."""

    job: Job
    approval: Approval


class Reconciled(NamedTuple):
    """What a reconcile left: the job, the receipt it found (None: still unknown), and why."""

    job: Job
    receipt: str | None
    reason: str


def envelope(job: Job, report: object) -> dict[str, Any]:
    """Everything that a yes is bound to: the action, on what, for whom, from which input."""
    spec = json.loads(job.spec)
    return {
        "job_id": job.id,
        "action": ACTION,
        "target": spec.get("report_target", DEFAULT_TARGET),
        "scope": job.scope,
        "requester": json.loads(job.scope)[1],
        "input_hash": input_hash(spec),
        "payload_hash": digest(report),
        "memory_rev": job.memory_rev,
        "memory_expires": job.memory_expires,
    }


def _scope_of(job: Job) -> tuple[str, str, str]:
    try:
        tenant, requester, project = json.loads(job.scope)
    except (ValueError, TypeError) as error:
        raise Forbidden(f"forbidden: the scope of job {job.id!r} cannot be read") from error
    return tenant, requester, project


def read_approval(connection: sqlite3.Connection, job: str) -> Approval | None:
    """The job's approvals row; None without one, also in a file that never had approvals."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'approvals'").fetchone():
        return None
    row = connection.execute("SELECT * FROM approvals WHERE job_id = ?", (job,)).fetchone()
    return None if row is None else Approval(*row)


class ApprovalRuntime(Runtime):
    """The runtime with a person between `verify` and `publish`.

    approval_seconds: how long a request waits for a decision. principals: who may act, by name.
    """

    WORKFLOW = "report-approval/v1"
    EXTRA_TABLES = {"approvals": APPROVALS}
    TERMINAL = (*Runtime.TERMINAL, ApprovalStatus.REJECTED, ApprovalStatus.EFFECT_CONFIRMED)
    TRANSITIONS = {
        # A dispatched job is parked from whichever status a claim, a cancel or an edit left it in.
        Status.QUEUED: (*Runtime.TRANSITIONS[Status.QUEUED], ApprovalStatus.RECONCILING),
        Status.RETRY_WAIT: (*Runtime.TRANSITIONS[Status.RETRY_WAIT], ApprovalStatus.RECONCILING),
        Status.RUNNING: (
            *Runtime.TRANSITIONS[Status.RUNNING],
            ApprovalStatus.WAITING_APPROVAL,
            ApprovalStatus.RECONCILING,
        ),
        ApprovalStatus.WAITING_APPROVAL: (
            Status.QUEUED,
            ApprovalStatus.REJECTED,
            Status.FAILED,
            Status.CANCELLED,
            ApprovalStatus.RECONCILING,
        ),
        ApprovalStatus.RECONCILING: (ApprovalStatus.RECONCILING, ApprovalStatus.EFFECT_CONFIRMED),
    }

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        approval_seconds: float = APPROVAL_SECONDS,
        principals: Mapping[str, Principal] = PRINCIPALS,
        **options: Any,
    ) -> None:
        super().__init__(path, **options)
        check_seconds("approval_seconds", approval_seconds)
        self.approval_seconds, self.principals = approval_seconds, principals

    # Asking, once verify is committed.

    def run(self, job: str, owner: str) -> Run:
        """As in the base, up to the request; after the yes, the publish. Waiting uses no attempt.

        A request that ran out of time fails here: `approval_expired`.
        """
        self._expire(job)
        return super().run(job, owner)

    def _expire(self, job: str) -> None:
        if self._own(job).status != ApprovalStatus.WAITING_APPROVAL:
            return
        with self._transaction():
            row, approval = self._own(job), self._approval(job)
            waiting = row.status == ApprovalStatus.WAITING_APPROVAL
            if waiting and self._dispatched(job):
                self._park(row, "the request was dispatched: the outcome is unknown")
            elif waiting and approval is not None and approval.expires_at <= self.now:
                self._move(row, Status.FAILED, error=APPROVAL_EXPIRED)
                self._event(job, row.generation, Event.FAILED, APPROVAL_EXPIRED)

    def _start(self, lease: Lease, step: str) -> Start | None:
        start = super()._start(lease, step)
        if step != STEPS[-1] or self._approval(lease.job) is not None:
            return start
        self._request(lease)
        return None

    def _request(self, lease: Lease) -> None:
        """Store what is to be decided and give the lease back: no process sleeps while waiting."""
        with self._transaction():
            row = self.guard(*lease)
            self._check_limits(row)
            if row.attempts >= MAX_CLAIMS:
                raise PermanentError(BUDGET_SPENT)  # a yes could no longer be carried out
            action = envelope(row, self._report(row.id))
            expires_at = min(self.now + self.approval_seconds, row.deadline)
            approval = Approval(
                job_id=row.id,
                action_json=encode(action),
                binding_hash=digest(action),
                operation_key=operation_key(row.id),
                status=Decision.PENDING,
                requested_at=self.now,
                expires_at=expires_at,
                decided_by=None,
                decided_at=None,
            )
            self._db.execute("INSERT INTO approvals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", approval)
            self._move(row, ApprovalStatus.WAITING_APPROVAL)
            detail = {"binding_hash": approval.binding_hash, "expires_at": expires_at}
            self._event(row.id, row.generation, ApprovalEvent.APPROVAL_REQUESTED, encode(detail))

    # Deciding.

    def approve(self, job: str, binding_hash: str, actor: str) -> Decided:
        """Permit exactly the action with this binding hash; the job is queued for a run.

        Forbidden, Conflict or Expired, in that order, leave everything as it was. The same decision
        by the same actor is answered as made.
        """
        return self._decide(job, binding_hash, actor, Decision.APPROVED, Status.QUEUED)

    def reject(self, job: str, binding_hash: str, actor: str) -> Decided:
        """Refuse it, for good; rules and errors as for approve."""
        return self._decide(job, binding_hash, actor, Decision.REJECTED, ApprovalStatus.REJECTED)

    def _decide(
        self, job: str, binding_hash: str, actor: str, decision: str, status: str
    ) -> Decided:
        with self._transaction():
            row, approval = self._own(job), self._approval(job)
            self.authorize(actor, row)
            if approval is None:
                raise Conflict(f"conflict: job {job!r} has no request to decide ({row.status})")
            if approval.status != Decision.PENDING:
                return self._decided_before(row, approval, binding_hash, actor, decision)
            if row.status == Status.CANCELLED:
                raise Conflict(f"conflict: job {job!r} is cancelled")
            if binding_hash.strip() != approval.binding_hash:
                raise Conflict(f"conflict: that is not the binding hash of job {job!r}'s request")
            try:
                self.validate_binding(row, approval, self._report(job))
            except PermanentError as error:
                raise Conflict(f"conflict: job {job!r}: {error}") from error
            if approval.expires_at <= self.now:
                raise Expired(f"expired: the request of job {job!r} ran out; submit a new job")
            if row.status != ApprovalStatus.WAITING_APPROVAL:
                raise Conflict(
                    f"conflict: job {job!r} is {row.status}: nothing waits for a decision"
                )
            self._db.execute(
                "UPDATE approvals SET status = ?, decided_by = ?, decided_at = ? WHERE job_id = ?",
                (decision, actor, self.now, job),
            )
            self._move(row, status)
            self._event(job, row.generation, decision, actor)
            return Decided(self._own(job), self._approval(job) or approval)

    def _decided_before(
        self, row: Job, approval: Approval, binding_hash: str, actor: str, decision: str
    ) -> Decided:
        made = Decision.REJECTED if approval.status == Decision.REJECTED else Decision.APPROVED
        same = (approval.decided_by, approval.binding_hash, made)
        if same == (actor, binding_hash.strip(), decision):
            return Decided(row, approval)
        raise Conflict(f"conflict: job {row.id!r} was already {made} by {approval.decided_by!r}")

    def authorize(self, actor: str, row: Job) -> None:
        """Forbidden unless actor is known, an approver, of this scope, and not the requester."""
        principal = self.principals.get(actor)
        tenant, requester, project = _scope_of(row)
        if principal is None:
            raise Forbidden(f"forbidden: {actor!r} is not a known actor")
        if principal.role != APPROVER:
            raise Forbidden(f"forbidden: {actor!r} lacks the role {APPROVER}")
        if (principal.tenant, principal.project) != (tenant, project):
            raise Forbidden(f"forbidden: {actor!r} may not decide in scope {row.scope}")
        if principal.name == requester:
            raise Forbidden(f"forbidden: {actor!r} asked for it and may not decide it")

    def validate_binding(self, row: Job, approval: Approval, report: object) -> None:
        """PermanentError unless the approval is of exactly this action on this report.

        Recomputed from the job as it is now, and found in the log as put to review: an edit of the
        job, of the approval or of both consistently disagrees with one of the two.
        """
        try:
            action = envelope(row, report)
            edited = action["input_hash"] != row.input_hash
        except (ValueError, TypeError, LookupError) as error:
            raise PermanentError("binding_mismatch: the job cannot be read any more") from error
        hashed, asked = digest(action), self._details(row.id, ApprovalEvent.APPROVAL_REQUESTED)
        reviewed = any(hashed in detail for detail in asked)
        stored = (approval.action_json, approval.binding_hash, approval.operation_key)
        same = stored == (encode(action), hashed, operation_key(row.id))
        if edited or not reviewed or not same:
            raise PermanentError("binding_mismatch: content changed since it was put to review")
        done = read_checkpoints(self._db, row.id)
        if done["verify"] != verified(done["draft"], done["collect"], report):
            raise PermanentError("binding_mismatch: verify's checkpoint is not of this draft")

    # Sending, once.

    def publish(self, job: str, payload: object) -> dict[str, Any]:
        """Dispatch, then the base's publish; PermissionError outside a guarded run of the job."""
        lease = self._lease
        if lease is None or lease.job != job:
            raise PermissionError("publish needs the lease of a run: approve, then run")
        self._dispatch(lease, payload)
        try:
            receipt = super().publish(job, payload)
        except PublisherUnavailable as error:
            raise PermanentError(str(error)) from error  # after dispatch: parked, not left running
        return {**receipt, "fresh_write_performed": not receipt["deduplicated"]}

    def _dispatch(self, lease: Lease, payload: object) -> None:
        """The edge of the unknown: after this commit an effect may exist and nothing resends."""
        trouble = self._look_up(lease.job).trouble
        if isinstance(trouble, Busy):
            raise RetryableError(str(trouble))
        if trouble is not None:
            raise trouble
        with self._transaction():
            row, approval = self.guard(*lease), self._approval(lease.job)
            if approval is None or approval.status != Decision.APPROVED:
                raise PermanentError("not_approved: there is no yes to carry out")
            self.validate_binding(row, approval, payload)
            self._check_limits(row)
            self._check_approver(row, approval)
            if approval.expires_at <= self.now:
                raise PermanentError(EXPIRED_BEFORE_DISPATCH)
            self._set_approval(row.id, Decision.DISPATCHING)
            self._event(
                row.id, row.generation, ApprovalEvent.DISPATCH_STARTED, approval.operation_key
            )

    def _check_approver(self, row: Job, approval: Approval) -> None:
        """The yes is on record, and whoever gave it may still give it."""
        try:
            self.authorize(approval.decided_by or "", row)
        except Forbidden as error:
            raise PermanentError(f"approver_no_longer_allowed: {error}") from error
        if approval.decided_by not in self._details(row.id, ApprovalEvent.APPROVED):
            raise PermanentError("not_approved: no decision is on record")

    def _finish(self, row: Job, payload: Mapping[str, Any]) -> None:
        if not self._dispatched(row.id):
            raise Refused(f"job {row.id!r} was never dispatched: nothing can have been published")
        super()._finish(row, payload)
        self._set_approval(row.id, Decision.EXECUTED)

    # After dispatch: whatever goes wrong, the job is parked and the truth is looked up.

    def _before_claim(self, job: str) -> None:
        if not self._dispatched(job):
            super()._before_claim(job)

    def _check_input(self, row: Job) -> None:
        """Once asked for, an edit is the binding's to find: the job then fails by its name."""
        if self._approval(row.id) is None:
            super()._check_input(row)

    def _grant(self, row: Job, owner: str, effect: Effect) -> int | None:
        if self._ready(row) and self._dispatched(row.id):
            self._park(row, "the lease ended after dispatch: the outcome is unknown")
            return None
        return super()._grant(row, owner, effect)

    def _record(self, row: Job, error: LabError, effect: Effect) -> None:
        if self._dispatched(row.id):
            self._park(row, str(error))
        else:
            super()._record(row, error, effect)

    def _cancel(self, row: Job, effect: Effect) -> None:
        if not self._dispatched(row.id):
            super()._cancel(row, effect)
        elif row.status != ApprovalStatus.RECONCILING:
            self._park(row, "cancelled after dispatch: an effect may exist")

    def _park(self, row: Job, reason: str) -> None:
        self._move(row, ApprovalStatus.RECONCILING, error=reason)
        self._event(row.id, row.generation, ApprovalEvent.RECONCILING, reason)

    def _may_have_published(self, job: str) -> bool:
        return False  # a job ends without a confirmed effect only before its dispatch

    def reconcile(self, job: str) -> Reconciled:
        """Ask the report service about a dispatched job; reads there, never sends.

        Only a receipt of the approved payload settles it: no receipt proves nothing while a request
        may be under way. Raises Unresolved under a live lease, Refused for other statuses.
        """
        question = self._open_question(job)
        if question is not None:
            generation, approved = question
            receipt, reason = self._answer(job, approved)
            row = self._close_question(job, generation, receipt, reason)
            if row.status != ApprovalStatus.EFFECT_CONFIRMED:
                return Reconciled(row, None, reason)
        with self._storage():
            checkpoint = read_checkpoints(self._db, job)[STEPS[-1]]
        return Reconciled(self._own(job), str(checkpoint["receipt"]), "")

    def _open_question(self, job: str) -> tuple[int, str] | None:
        """Fence every worker off, in one transaction; the new generation and approved hash.

        None when the question has its answer already.
        """
        with self._transaction():
            row, approval = self._own(job), self._approval(job)
            if row.status == ApprovalStatus.EFFECT_CONFIRMED:
                return None
            open_statuses = (Status.RUNNING, ApprovalStatus.RECONCILING)
            if row.status not in open_statuses or approval is None or not self._dispatched(job):
                raise Refused(f"job {job!r} is {row.status}: there is nothing to reconcile")
            if row.lease_until > self.now:
                wait = row.lease_until - self.now
                raise Unresolved(f"job {job!r}: a lease is live for {wait:.1f} s more; then again")
            generation = row.generation + 1
            self._move(row, ApprovalStatus.RECONCILING, generation=generation)
            self._event(job, generation, ApprovalEvent.RECONCILE_STARTED, approval.operation_key)
            return generation, str(json.loads(approval.action_json)["payload_hash"])

    def _answer(self, job: str, approved: str) -> tuple[str | None, str]:
        try:
            receipts = self._receipts(job)
        except LabError as error:
            return None, f"the publisher could not be read: {error}"
        if not receipts:
            return None, "no receipt seen: that proves nothing while a request may be under way"
        if receipts[0]["payload_hash"] != approved:
            return None, "conflict: the operation key holds another payload than the approved one"
        return receipts[0]["receipt"], ""

    def _close_question(self, job: str, generation: int, receipt: str | None, reason: str) -> Job:
        """Record the answer, guarded by the generation; no memory, deadline or expiry matters."""
        with self._transaction():
            row = self._own(job)
            if row.status == ApprovalStatus.EFFECT_CONFIRMED:
                return row
            if (row.status, row.generation) != (ApprovalStatus.RECONCILING, generation):
                raise Unresolved(f"another reconcile of job {job!r} is at work; ask again")
            if receipt is None:
                self._move(row, ApprovalStatus.RECONCILING, error=reason)
                self._event(job, generation, ApprovalEvent.RECONCILE_INCONCLUSIVE, reason)
            else:
                payload = {"receipt": receipt, "fresh_write_performed": False}
                self._checkpoint(job, generation, STEPS[-1], encode(payload))
                self._move(row, ApprovalStatus.EFFECT_CONFIRMED)
                self._set_approval(job, Decision.EFFECT_CONFIRMED)
                self._event(job, generation, ApprovalEvent.EFFECT_CONFIRMED, receipt)
            return self._own(job)

    # Rows.

    def _approval(self, job: str) -> Approval | None:
        with self._storage():
            return read_approval(self._db, job)

    def _dispatched(self, job: str) -> bool:
        """Whether a send may have begun; the event is the fact that nothing takes back."""
        approval = self._approval(job)
        if approval is not None and approval.status == Decision.DISPATCHING:
            return True
        return bool(self._details(job, ApprovalEvent.DISPATCH_STARTED))

    def _details(self, job: str, kind: str) -> list[str]:
        """What the log says of this kind, in order: the witness beside the approvals row."""
        with self._storage():
            rows = self._db.execute(
                "SELECT detail FROM events WHERE job_id = ? AND kind = ? ORDER BY seq", (job, kind)
            )
            return [row[0] for row in rows]

    def _set_approval(self, job: str, status: str) -> None:
        self._db.execute("UPDATE approvals SET status = ? WHERE job_id = ?", (status, job))

    def _report(self, job: str) -> dict[str, Any]:
        return steps.report(read_checkpoints(self._db, job)["draft"])

    def _view(self, local: sqlite3.Connection, job: str) -> dict[str, Any]:
        view = super()._view(local, job)
        draft, approval = view["checkpoints"].get("draft"), read_approval(local, job)
        view["report"] = None if draft is None else steps.report(draft)
        view["approval"] = None
        if approval is not None:
            row = read_job(local, job)
            view["approval"] = {
                **approval._asdict(),
                "action": json.loads(approval.action_json),
                "state": self._state(row, approval),
                "may_decide": [name for name in self.principals if self._may_decide(name, row)],
            }
        return view

    def _state(self, row: Job, approval: Approval) -> str:
        """The approval for a person: expired and cancelled are read from clock and job."""
        if approval.status not in (Decision.PENDING, Decision.APPROVED):
            return approval.status
        if row.status == Status.CANCELLED:
            return "cancelled"
        return "expired" if approval.expires_at <= self.clock() else approval.status

    def _may_decide(self, actor: str, row: Job) -> bool:
        try:
            self.authorize(actor, row)
        except Forbidden:
            return False
        return True

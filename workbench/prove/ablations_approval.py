"""The approval lab with one mechanism taken out, one method at a time; conventions as in the base.

Each stands for a mistake that real systems make: a yes without scope, a marker that is missing or
comes late, a request sent again, an absence taken for a fact.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from workbench.prove.ablations_base import Ablation, Patch
from workbench.prove.history import APPROVED as SENT_IS_APPROVED
from workbench.prove.history import CERTAIN, SENT
from workbench.prove.lives import Lab

APPROVED, DISPATCHING = "approved", "dispatching"


def _dispatching(lab: Lab, checks: Callable[[Any, Any, Any, Any], None]) -> list[Patch]:
    """A dispatch with other checks of (runtime, row, approval, payload) than the lab's."""

    def _dispatch(self: Any, lease: Any, payload: Any) -> None:
        with self._transaction():
            row, approval = self.guard(*lease), self._approval(lease.job)
            checks(self, row, approval, payload)
            self._set_approval(row.id, DISPATCHING)
            self._event(row.id, row.generation, "dispatch_started", approval.operation_key)

    return [(_kind(lab), "_dispatch", _dispatch)]


def _kind(lab: Lab) -> Any:
    if lab.approval is None:
        raise FileNotFoundError("no approval_runtime.py in the lab under test")
    return lab.approval.ApprovalRuntime


def _need_yes(lab: Lab, approval: Any) -> None:
    if approval is None or approval.status != APPROVED:
        raise lab.runtime.PermanentError("not_approved")


def approval_as_boolean(lab: Lab) -> list[Patch]:
    return _dispatching(lab, lambda self, row, approval, payload: _need_yes(lab, approval))


def binding_unchecked(lab: Lab) -> list[Patch]:
    return [(_kind(lab), "validate_binding", lambda self, row, approval, report: None)]


def expiry_unchecked_at_dispatch(lab: Lab) -> list[Patch]:
    def checks(self: Any, row: Any, approval: Any, payload: Any) -> None:
        _need_yes(lab, approval)
        self.validate_binding(row, approval, payload)
        self._check_limits(row)
        self._check_approver(row, approval)

    return _dispatching(lab, checks)


def memory_unchecked_at_dispatch(lab: Lab) -> list[Patch]:
    def checks(self: Any, row: Any, approval: Any, payload: Any) -> None:
        _need_yes(lab, approval)
        self.validate_binding(row, approval, payload)
        self._check_approver(row, approval)
        if approval.expires_at <= self.now:
            raise lab.runtime.PermanentError("approval_expired_before_dispatch")

    return _dispatching(lab, checks)


def yes_unchecked_at_dispatch(lab: Lab) -> list[Patch]:
    """A run that takes the existence of a request for a yes."""
    return _dispatching(lab, lambda self, row, approval, payload: None)


def expiry_unchecked_at_decision(lab: Lab) -> list[Patch]:
    kind = _kind(lab)
    real = kind._approval

    def _decide(self: Any, *arguments: Any) -> Any:
        self._approval = lambda job: (
            (found := real(self, job)) and found._replace(expires_at=self.now + 1)
        )
        try:
            return decide(self, *arguments)
        finally:
            del self._approval

    decide = kind._decide
    return [(kind, "_decide", _decide)]


def approver_unchecked_at_dispatch(lab: Lab) -> list[Patch]:
    return [(_kind(lab), "_check_approver", lambda self, row, approval: None)]


def no_dispatch_marker(lab: Lab) -> list[Patch]:
    kind = _kind(lab)

    def _dispatch(self: Any, lease: Any, payload: Any) -> None:
        with self._transaction("BEGIN"):
            row, approval = self.guard(*lease), self._approval(lease.job)
            _need_yes(lab, approval)
            self.validate_binding(row, approval, payload)
            self._check_limits(row)

    return [(kind, "_dispatch", _dispatch)]


def marker_after_send(lab: Lab) -> list[Patch]:
    kind, base = _kind(lab), lab.runtime.Runtime

    def publish(self: Any, job: str, payload: Any) -> Any:
        lease = self._lease
        receipt = base.publish(self, job, payload)
        self._dispatch(lease, payload)
        return {**receipt, "fresh_write_performed": not receipt["deduplicated"]}

    return [(kind, "publish", publish)]


def resend_after_dispatch(lab: Lab) -> list[Patch]:
    """A claim goes on after the dispatch, and the dispatch takes its own marker for a yes."""
    kind, base = _kind(lab), lab.runtime.Runtime

    def checks(self: Any, row: Any, approval: Any, payload: Any) -> None:
        if approval.status not in (APPROVED, DISPATCHING):
            raise lab.runtime.PermanentError("not_approved")
        self.validate_binding(row, approval, payload)
        self._check_limits(row)

    return [(kind, "_grant", base._grant), *_dispatching(lab, checks)]


def claim_after_dispatch(lab: Lab) -> list[Patch]:
    return [(_kind(lab), "_grant", lab.runtime.Runtime._grant)]


def failure_after_dispatch(lab: Lab) -> list[Patch]:
    return [(_kind(lab), "_record", lab.runtime.Runtime._record)]


def cancel_after_dispatch(lab: Lab) -> list[Patch]:
    return [(_kind(lab), "_cancel", lab.runtime.Runtime._cancel)]


def dispatching_back_to_queued(lab: Lab) -> list[Patch]:
    """What looks stuck is put back to run again; only the approval's status says that it is."""

    def _park(self: Any, row: Any, reason: str) -> None:
        self._db.execute(
            "UPDATE jobs SET status = 'queued', owner = NULL, error = ? WHERE id = ?",
            (reason, row.id),
        )
        self._set_approval(row.id, APPROVED)

    def _dispatched(self: Any, job: str) -> bool:
        return bool((found := self._approval(job)) and found.status == DISPATCHING)

    return [(_kind(lab), "_park", _park), (_kind(lab), "_dispatched", _dispatched)]


def _opening(lab: Lab, *, raised: bool, lease: bool) -> list[Patch]:
    def _open_question(self: Any, job: str) -> Any:
        with self._transaction():
            row, approval = self._own(job), self._approval(job)
            if row.status == "effect_confirmed":
                return None
            if row.status not in ("running", "reconciling") or not self._dispatched(job):
                raise lab.runtime.Refused(f"job {job!r} is {row.status}")
            if lease and row.lease_until > self.now:
                raise _unresolved(lab, job)
            generation = row.generation + raised
            self._move(row, "reconciling", generation=generation)
            self._event(job, generation, "reconcile_started", approval.operation_key)
            return generation, str(json.loads(approval.action_json)["payload_hash"])

    return [(_kind(lab), "_open_question", _open_question)]


def _unresolved(lab: Lab, job: str) -> Exception:
    error: Exception = _module(lab).Unresolved(f"job {job!r}: a lease is live")
    return error


def _module(lab: Lab) -> Any:
    return lab.approval


def reconcile_keeps_generation(lab: Lab) -> list[Patch]:
    return _opening(lab, raised=False, lease=True)


def reconcile_under_lease(lab: Lab) -> list[Patch]:
    return _opening(lab, raised=True, lease=False)


def _closing(
    lab: Lab, ends: Callable[[Any, Any, str | None], str], fenced: bool = True
) -> list[Patch]:
    """An answer that fails the job where `ends` gives a reason."""
    kind = _kind(lab)
    real = kind._close_question

    def _close_question(
        self: Any, job: str, generation: int, receipt: str | None, reason: str
    ) -> Any:
        with self._transaction():
            row, approval = self._own(job), self._approval(job)
            why = ends(self, approval, receipt)
            mine = (row.status, row.generation) == ("reconciling", generation) or not fenced
            if why and mine:
                self._db.execute("UPDATE jobs SET status = 'failed', error = ?", (why,))
                self._event(job, row.generation, "failed", why)
                return self._own(job)
        return real(self, job, generation, receipt, reason)

    return [(kind, "_close_question", _close_question)]


def absence_as_proof(lab: Lab) -> list[Patch]:
    return _closing(lab, lambda self, approval, receipt: "" if receipt else "nothing was sent")


def expiry_over_effect(lab: Lab) -> list[Patch]:
    return _closing(
        lab,
        lambda self, approval, receipt: (
            "approval_expired" if receipt and approval.expires_at <= self.now else ""
        ),
    )


def reconcile_takes_any_report(lab: Lab) -> list[Patch]:
    kind = _kind(lab)
    real = kind._answer

    def _answer(self: Any, job: str, approved: str) -> Any:
        receipts = self._receipts(job)
        return (receipts[0]["receipt"], "") if receipts else real(self, job, approved)

    return [(kind, "_answer", _answer)]


def _undecided(lab: Lab) -> list[Patch]:
    kind = _kind(lab)
    real, decide = kind._approval, kind._decide

    def _decide(self: Any, *arguments: Any) -> Any:
        self._approval = lambda job: (found := real(self, job)) and found._replace(status="pending")
        try:
            return decide(self, *arguments)
        finally:
            del self._approval

    return [(kind, "_decide", _decide)]


def decided_twice(lab: Lab) -> list[Patch]:
    return _undecided(lab)


def decided_twice_anywhere(lab: Lab) -> list[Patch]:
    """A decision on a decided request, and on a job that no longer waits for one."""
    kind = _kind(lab)

    def _decide(self: Any, job: str, bound: str, actor: str, decision: str, status: str) -> Any:
        with self._transaction():
            row, approval = self._own(job), self._approval(job)
            if row.status not in ("waiting_approval", "queued", "rejected"):
                raise _module(lab).Conflict(f"job {job!r} is {row.status}")
            self._db.execute(
                "UPDATE approvals SET status = ?, decided_by = ?, decided_at = ?",
                (decision, actor, self.now),
            )
            self._db.execute("UPDATE jobs SET status = ?", (status,))
            self._event(job, row.generation, decision, actor)
            return _module(lab).Decided(row, approval)

    return [(kind, "_decide", _decide)]


def request_unguarded(lab: Lab) -> list[Patch]:
    """A stale worker may ask as well."""
    kind, real = _kind(lab), lab.runtime.Runtime.guard

    def guard(self: Any, job: str, owner: str, generation: int) -> Any:
        row = self._own(job)
        verified = self._db.execute("SELECT 1 FROM checkpoints WHERE step = 'verify'").fetchone()
        asking = row.status == "running" and verified and self._approval(job) is None
        return row if asking else real(self, job, owner, generation)

    return [(kind, "guard", guard)]


def request_on_last_claim(lab: Lab) -> list[Patch]:
    return [(lab.approval, "MAX_CLAIMS", 99)]


MASKS = {
    "decided-twice": "masked by the job's status: a decided job no longer waits for a decision; the"
    " pair of both is caught (decided-twice-anywhere)"
}
HARM = {
    "no-dispatch-marker": SENT_IS_APPROVED,
    "resend-after-dispatch": SENT,
    "dispatching-back-to-queued": SENT,
    "absence-as-proof": CERTAIN,
    "expiry-over-effect": CERTAIN,
}
APPROVAL_ABLATIONS = tuple(
    Ablation(name, words, patches, True, MASKS.get(name, ""), HARM.get(name, ""))
    for name, words, patches in (
        ("approval-as-boolean", "a yes is a flag without a scope", approval_as_boolean),
        ("binding-unchecked", "what was reviewed is not compared", binding_unchecked),
        ("yes-unchecked-at-dispatch", "a request is as good as a yes", yes_unchecked_at_dispatch),
        ("expiry-unchecked-at-dispatch", "an old yes is used", expiry_unchecked_at_dispatch),
        ("expiry-unchecked-at-decision", "a late yes is taken", expiry_unchecked_at_decision),
        ("memory-unchecked-at-dispatch", "revoked memory is sent", memory_unchecked_at_dispatch),
        ("approver-unchecked-at-dispatch", "a yes outlives a role", approver_unchecked_at_dispatch),
        ("no-dispatch-marker", "nothing says that a send began", no_dispatch_marker),
        ("marker-after-send", "the marker is set when the send is over", marker_after_send),
        ("resend-after-dispatch", "a dispatched report is sent again", resend_after_dispatch),
        ("claim-after-dispatch", "a dispatched job is claimed", claim_after_dispatch),
        ("failure-after-dispatch", "an error after dispatch fails it", failure_after_dispatch),
        ("cancel-after-dispatch", "a dispatched job is cancelled", cancel_after_dispatch),
        ("dispatching-back-to-queued", "what looks stuck runs again", dispatching_back_to_queued),
        ("reconcile-keeps-generation", "a reconcile fences nobody", reconcile_keeps_generation),
        ("reconcile-under-lease", "a reconcile does not wait", reconcile_under_lease),
        ("absence-as-proof", "no receipt is taken for nothing sent", absence_as_proof),
        ("expiry-over-effect", "an expiry outweighs a receipt", expiry_over_effect),
        ("reconcile-takes-any-report", "any receipt confirms", reconcile_takes_any_report),
        ("request-on-last-claim", "a yes comes after the last claim", request_on_last_claim),
        ("request-unguarded", "a stale worker asks for approval", request_unguarded),
        ("decided-twice", "a decided request is decided again", decided_twice),
        ("decided-twice-anywhere", "a decision at any time", decided_twice_anywhere),
    )
)

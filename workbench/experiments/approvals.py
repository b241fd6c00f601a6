"""The experiments in which a person stands between the report and its publication."""

from __future__ import annotations

from .parts import (
    FIRST,
    SECOND,
    STEPS,
    after,
    answer,
    approval,
    before,
    broken_checks,
    count,
    crash,
    evaluate,
    events,
    job,
    last_event,
    lease_over,
    outside,
    says,
)
from .script import Experiment, Fact, Outcome, Sleep, TakeHash

INSPECT = approval("inspect")
YES = ("--actor", "reviewer", "--hash", "{hash}")
ASK = (approval("submit"), approval("run", *FIRST, name="ask"))
AGREE = (TakeHash(), approval("approve", *YES))
DRIFT_SQL = "UPDATE checkpoints SET payload = replace(payload, 'Sources', 'Secrets')"
DRIFT_SQL += " WHERE step = 'draft'"

APPROVAL = Experiment(
    name="approval",
    db="approval.sqlite",
    broken="own approval, a wrong hash",
    held="refused; 1 yes, then 1 report",
    unproven="who sits at the keyboard: --actor picks a fixture, it is no login",
    story="The job waits for a person, and no process waits with it. The requester may not decide,"
    " nor may a yes be given to anything but the full hash of what was shown.",
    steps=(
        *ASK,
        before(INSPECT),
        TakeHash(),
        approval(
            "approve",
            *("--actor", "operator", "--hash", "{hash}"),
            name="approve-own",
            exits=1,
        ),
        approval(
            "approve",
            *("--actor", "reviewer", "--hash", "0123456789ab"),
            name="approve-other",
            exits=1,
        ),
        approval("approve", *YES),
        approval("run", *SECOND),
        after(INSPECT),
        evaluate(),
    ),
    outcome=Outcome(
        last="run",
        exit=0,
        status="succeeded",
        checkpoints=4,
        receipts=1,
        generation=2,
        attempts=2,
        effect="confirmed",
        verdict="accepted",
        approval="executed",
        reused=STEPS[:3],
        deduplicated=False,
    ),
    facts=(
        Fact("status while it waits", answer("before", "job", "status"), "waiting_approval"),
        Fact("owner while it waits", answer("before", "job", "owner"), None),
        Fact("receipts before the yes", count("before", "receipts"), 0),
        Fact("the requester is told", says("approve-own", "forbidden"), "forbidden"),
        Fact("the wrong hash is told", says("approve-other", "conflict"), "conflict"),
        Fact("decisions", events("approved"), 1),
        Fact("dispatches", events("dispatch_started"), 1),
    ),
)

EFFECT = Experiment(
    name="approved-effect",
    db="approved-effect.sqlite",
    broken="death after the approved save",
    held="found by reading, not resent",
    unproven="that a receipt is there to be read: a real service may not keep one",
    story="The approved report is saved and the process dies before it can say so. Nothing is sent"
    " again: reconcile asks the report service and writes down what it finds.",
    steps=(
        *ASK,
        *AGREE,
        crash(approval("run", *SECOND, name="crash"), "after_effect"),
        approval("reconcile", name="too-early", exits=3)._replace(urgent=True),
        before(INSPECT),
        lease_over(2),
        approval("reconcile"),
        after(INSPECT),
        evaluate(),
    ),
    outcome=Outcome(
        last="reconcile",
        exit=0,
        status="effect_confirmed",
        checkpoints=4,
        receipts=1,
        generation=3,
        attempts=2,
        effect="confirmed",
        verdict="accepted",
        approval="effect_confirmed",
    ),
    facts=(
        Fact("approval after the crash", answer("before", "approval", "status"), "dispatching"),
        Fact("receipts after the crash", count("before", "receipts"), 1),
        Fact("fresh write by reconcile", answer("reconcile", "fresh_write_performed"), False),
        Fact("dispatches", events("dispatch_started"), 1),
    ),
)

BEFORE_EFFECT = Experiment(
    name="approved-before-effect",
    db="approved-before-effect.sqlite",
    broken="death just before the save",
    held="unknown stays so, not resent",
    unproven="that nothing was saved: no receipt yet is no proof of none",
    story="The process dies after the dispatch was recorded and before anything was sent. From the"
    " outside that cannot be told from a request still under way, so nothing resends and nothing"
    " calls it failed, whatever one tries.",
    steps=(
        *ASK,
        *AGREE,
        crash(approval("run", *SECOND, name="crash"), "before_effect"),
        before(INSPECT),
        lease_over(2),
        approval("reconcile", exits=3),
        approval("run", "--owner", "third", name="run-again", exits=3),
        approval("cancel", exits=3),
        approval("reconcile", name="reconcile-again", exits=3),
        after(INSPECT),
        evaluate(exits=1),
    ),
    outcome=Outcome(
        last="reconcile",
        exit=3,
        status="reconciling",
        checkpoints=3,
        receipts=0,
        generation=4,
        attempts=2,
        effect="unknown",
        verdict="unknown",
        approval="dispatching",
    ),
    facts=(
        Fact("approval after the crash", answer("before", "approval", "status"), "dispatching"),
        Fact("dispatches", events("dispatch_started"), 1),
        Fact("ends called failed or cancelled", lambda e: _ends(e.events()), []),
    ),
)


def _ends(found: list[tuple[str, int, str]]) -> list[str]:
    return [kind for kind, _, _ in found if kind in ("failed", "cancelled")]


EXPIRED = Experiment(
    name="approval-expired",
    db="approval-expired.sqlite",
    broken="the yes comes too late",
    held="refused; failed, nothing sent",
    unproven="several machines whose clocks differ",
    story="A request is good for a second here. The yes that comes after it is refused, and the"
    " next run ends the job.",
    steps=(
        approval("submit"),
        approval("run", *FIRST, "--approval-seconds", "1", name="ask"),
        before(INSPECT),
        TakeHash(),
        Sleep(
            1,
            "until the time to decide is over",
            at=lambda e: e.answer("before")["approval"]["expires_at"],
        ),
        approval("approve", *YES, exits=1),
        approval("run", *SECOND, exits=1),
        after(INSPECT),
        evaluate(exits=1),
    ),
    outcome=Outcome(
        last="run",
        exit=1,
        status="failed",
        checkpoints=3,
        receipts=0,
        generation=1,
        attempts=1,
        effect="none",
        verdict="not_accepted",
        approval="pending",
    ),
    facts=(
        Fact("the reviewer is told", says("approve", "expired"), "expired"),
        Fact("decisions", events("approved"), 0),
        Fact("error", job("error"), "approval_expired"),
        Fact("dispatches", events("dispatch_started"), 0),
    ),
)

DRIFT = Experiment(
    name="approval-drift",
    db="approval-drift.sqlite",
    broken="the draft changes after a yes",
    held="refused before any dispatch",
    unproven="a forger who rewrites approval and log alike: the hash is no signature",
    story="After the yes someone edits the draft in the database. What would be sent is no longer"
    " what was reviewed: the run refuses, and the judge calls the database unsound.",
    steps=(
        *ASK,
        before(INSPECT),
        *AGREE,
        outside("drift", "edit", "{db}", DRIFT_SQL)._replace(behind=False, exits=0),
        approval("run", *SECOND, exits=1),
        after(INSPECT),
        evaluate(exits=1),
    ),
    outcome=Outcome(
        last="run",
        exit=1,
        status="failed",
        checkpoints=3,
        receipts=0,
        generation=2,
        attempts=2,
        effect="none",
        verdict="unsound",
        approval="approved",
        reused=STEPS[:3],
    ),
    facts=(
        Fact(
            "what the judge finds",
            lambda e: broken_checks(e.answer("evaluate")),
            ["citations", "binding"],
        ),
        Fact("drafts edited", lambda e: e.said("drift").strip(), "rows changed: 1"),
        Fact("error", lambda e: str(job("error")(e)).partition(":")[0], "binding_mismatch"),
        Fact("last event", last_event, "failed"),
        Fact("dispatches", events("dispatch_started"), 0),
    ),
)

APPROVALS = (APPROVAL, EFFECT, BEFORE_EFFECT, EXPIRED, DRIFT)

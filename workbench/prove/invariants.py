"""The promises of the lab as checks on what its two databases say, and on nothing else.

Guarantee: each invariant is decided from rows, by a replay of the events written for this module;
it imports nothing of the lab and shares no code with the lab's own evaluation. Limit: it knows what
was recorded. That a request was sent and lost leaves no row; only a receipt proves an effect. Until
when somebody may approve is in no row either: whoever makes it end has to say so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
from typing import Any, NamedTuple

from workbench.prove.history import (
    AGREES,
    APPROVED,
    CERTAIN,
    CLOSED,
    INTEGRITY,
    INVARIANTS,
    LIMITS,
    ONCE,
    ONE,
    OPEN,
    OVER,
    RESTS,
    SENT,
    SENT_OFF,
    STEPS,
    ApprovalRow,
    EventRow,
    Finding,
    JobRow,
    Story,
)

__all__ = ["INTEGRITY", "INVARIANTS", "OPEN", "OVER", "RESTS", "TABLES", "Finding", "Image", "Rows"]

TABLES = ("jobs", "checkpoints", "events", "memory", "approvals", "receipts")


Rows = tuple[tuple[Any, ...], ...]


class Image(NamedTuple):
    """Every row of both databases, in key order, and what is wrong with the files themselves.

    mandates: who may approve until when, where that ends.
    """

    jobs: Rows = ()
    checkpoints: Rows = ()
    events: Rows = ()
    memory: Rows = ()
    approvals: Rows = ()
    receipts: Rows = ()
    mandates: Rows = ()
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
            rows, wrong = _read(file)
        except sqlite3.Error as error:
            rows, wrong = {}, [str(error)]
        found.update(rows)
        damage += [f"{os.path.basename(file)}: {trouble}" for trouble in wrong]
    return Image(**{name: found.get(name, ()) for name in TABLES}, damage=tuple(damage))


def _read(file: str) -> tuple[dict[str, Rows], list[str]]:
    """The known tables of one file, and what SQLite's own checks say of it."""
    if not os.path.exists(file):
        return {}, []
    with contextlib.closing(sqlite3.connect(file)) as connection:
        wrong = [row[0] for row in connection.execute("PRAGMA integrity_check")]
        loose = connection.execute("PRAGMA foreign_key_check").fetchall()
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        rows = {
            name: tuple(connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2"))  # noqa: S608
            for (name,) in names
            if name in TABLES
        }
    wrong = [text for text in wrong if text != "ok"]
    return rows, wrong + [f"row without a job: {row}" for row in loose]


def digest(value: object) -> str:
    """The contract's hash: SHA-256 of canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


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
        findings += _certain(job, story, payloads, receipt)
        for row in image.approvals:
            if row[0] == job.id:
                approval = ApprovalRow(*row)
                findings += _approved(job, story, approval, payloads, receipt)
                findings += _mandated(job, story, approval, dict(image.mandates))
        if story.approval and not any(row[0] == job.id for row in image.approvals):
            findings.append(Finding(APPROVED, f"job {job.id!r}: its approvals row is gone"))
    return findings


def _hash_of(payloads: dict[str, str]) -> str | None:
    """The payload hash of the report that the draft makes; None before there is one."""
    if "draft" not in payloads:
        return None
    draft = json.loads(payloads["draft"])
    return digest({key: draft[key] for key in ("summary", "citations")})


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
    if job.status == "retry_wait" and job.available_at != story.available_at:
        wrong.append(f"the row's retry is at {job.available_at}, the event's {story.available_at}")
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
    if receipt is not None and _hash_of(payloads) not in (None, receipt[1]):
        wrong.append("the receipt is of another report than the draft's")
    return [Finding(AGREES, f"job {job.id!r}: {text}") for text in wrong]


def _certain(
    job: JobRow, story: Story, payloads: dict[str, str], receipt: tuple[Any, ...] | None
) -> list[Finding]:
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
    if (found or job.status in SENT_OFF) and receipt and receipt[1] != _hash_of(payloads):
        wrong.append(f"{job.status} by a receipt of another report, {receipt[2]}")
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
    if len(story.dispatches) > 1:
        wrong.append(f"{len(story.dispatches)} dispatches of one approval")
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
    spec = json.loads(job.spec)
    action = {
        "job_id": job.id,
        "action": "report.publish/v1",
        "target": spec.get("report_target", "local-report-store"),
        "scope": job.scope,
        "requester": json.loads(job.scope)[1],
        "input_hash": job.input_hash,
        "payload_hash": _hash_of(payloads),
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


def _mandated(
    job: JobRow, story: Story, approval: ApprovalRow, mandates: dict[str, float]
) -> list[Finding]:
    """Whoever said yes could still say it at the dispatch."""
    until = mandates.get(approval.decided_by or "", math.inf)
    late = [f"{at:.3f}" for at in story.dispatches if at >= until]
    if not late:
        return []
    seen = f"dispatched at {late[0]}, but {approval.decided_by} may approve until {until:.3f}"
    return [Finding(APPROVED, f"job {job.id!r}: {seen}")]


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
    standing = {row[:2] for row in before.receipts}
    reports: dict[str, dict[str, str]] = {}
    for job_id, step, payload in before.checkpoints:
        reports.setdefault(job_id, {})[step] = payload
    for event in (EventRow(*row) for row in after.events[len(before.events) :]):
        own = digest([event.job_id, "publish/v1"]), _hash_of(reports.get(event.job_id, {}))
        if event.kind == "effect_unknown" and own in standing:
            seen = f"job {event.job_id!r}: {event.detail}, though its receipt stood all along"
            findings.append(Finding(CERTAIN, seen))
    return findings
